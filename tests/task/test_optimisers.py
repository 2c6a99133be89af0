"""Recipes: update rules, schedules, early stopping, augmentation, precision, weights of classes."""

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedapa.config.experiment import config_hash
from fedapa.config.load import check, dump, load
from fedapa.config.sections import Config
from fedapa.core.tree import Tree
from fedapa.data.federated import ClientData, Federated, Split, from_arrays
from fedapa.errors import InputError
from fedapa.methods.apfl import APFL
from fedapa.methods.catalogue import make
from fedapa.methods.scaffold import Scaffold
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import Record, Request, visit
from fedapa.simulation import make_task, simulate
from fedapa.training.augment import augmentation
from fedapa.training.engines.choice import engine_note
from fedapa.training.engines.native import available
from fedapa.training.local import Local
from fedapa.training.objective import Classification, make_objective
from fedapa.training.optimizers import base_rate, schedule_factor
from fedapa.training.settings import Engine, Training
from fedapa.training.task import Batch, Task, task_loss
from fedapa.verify.case import Case
from fedapa.verify.laws import resume_is_exact


def arrays(n: int = 30, seed: int = 0, shape: tuple[int, ...] = (4,)) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    x = random.normal(size=(n, *shape)).astype(np.float32)
    x.reshape(n, -1)[:, 0] += 2 * y
    return x, y


def federated(shape: tuple[int, ...] = (4,), clients: int = 2) -> Federated:
    return from_arrays([(*arrays(30, k, shape), *arrays(10, 50 + k, shape)) for k in range(clients)], 3)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def task_of(**settings: object) -> Task:
    training = Training(**{"batch": 8, "epochs": 2, **settings})  # type: ignore[arg-type]
    return make_task(federated(), net, training, 10, "2", engine="torch")


def toolbox(task: Task, round: int = 0, memory: Tree | None = None, held: Split | None = None) -> Local:
    return Local(task, 0, round, 7, federated().clients[0].train, memory or {}, validation=held)


def begin(task: Task) -> Tree:
    return dict(zip(("theta", "phi"), task.init(1), strict=True))


def gap(one: Tree, other: Tree) -> float:
    return max(float((one[k] - other[k]).abs().max()) for k in one)


# ------------------------------------------------------------------------------------------------------ update rules


RULES = {
    "sgd": {},
    "nesterov": {"nesterov": True},
    "adam": {"optimizer": "adam", "betas": (0.8, 0.99), "eps": 1e-6},
    "adamw": {"optimizer": "adamw"},
}


def torchs(name: str, params: list[Tensor], training: Training) -> torch.optim.Optimizer:
    if name in ("adam", "adamw"):
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(params, training.lr, training.betas, training.eps, training.weight_decay)
    return torch.optim.SGD(params, training.lr, training.momentum, 0.0, training.weight_decay, name == "nesterov")


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", RULES)
def test_rules_are_those_of_torch(name: str, decay: float) -> None:
    task = task_of(lr=0.02, weight_decay=decay, **RULES[name])
    box, start = toolbox(task), begin(task)
    found = box.sgd(task_loss, start)
    leaves = {k: v.clone().requires_grad_() for k, v in start.items()}
    optimizer, data = torchs(name, list(leaves.values()), task.training), federated().clients[0].train
    for index in toolbox(task).batches(2):
        optimizer.zero_grad()
        task_loss(task, leaves, Batch(data.x[index], data.y[index]), {}).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert gap(found, {k: v.detach() for k, v in leaves.items()}) < 2e-6
    assert gap(found, start) > 1e-3


def test_moments_stay_from_visit_to_visit_or_start_afresh() -> None:
    """Two visits with kept moments are one of twice the batches; Adam begun anew takes other steps."""
    kept, fresh = (task_of(optimizer="adam", keep_momentum=k) for k in (True, False))
    first = toolbox(kept)
    after = first.sgd(task_loss, begin(kept))
    assert set(first.memory) == {f"main/{k}{more}" for k in ("theta", "phi") for more in ("", "/square", "/steps")}
    assert first.memory["main/theta/steps"].item() == 6
    again = toolbox(kept, 1, first.memory).sgd(task_loss, after)
    anew = toolbox(fresh, 1, first.memory).sgd(task_loss, after)
    assert first.memory["main/theta/steps"].item() == 6  # what a visit is given stays as it is
    assert gap(again, anew) > 1e-3


def test_a_method_with_a_rate_and_momentum_of_its_own_keeps_to_sgd() -> None:
    plain, adam = task_of(lr=0.3), task_of(lr=0.3, optimizer="adam", lr_schedule="cosine")
    own = {"lr": 0.05, "momentum": 0.0, "weight_decay": 0.0, "memory": None}
    found = [toolbox(task, 5).sgd(task_loss, begin(task), **own) for task in (plain, adam)]  # type: ignore[arg-type]
    assert gap(*found) == 0


def test_apfl_forgets_all_moments_of_the_model_that_is_replaced() -> None:
    case = Case(APFL(), training=Training(0.05, batch=8, epochs=1, optimizer="adam"))
    names = {name for record in case.run(1).records for name in record.memory if name.startswith("main/")}
    assert names == {f"main/own_{k}{more}" for k in ("theta", "phi") for more in ("", "/square", "/steps")}


def test_scaffold_trains_its_corrections_with_sgd_and_says_so() -> None:
    plain, adam = (Training(0.05, batch=8, epochs=1, **more) for more in ({}, {"optimizer": "adamw"}))  # type: ignore[arg-type]
    one, other = (Case(Scaffold(), training=training) for training in (plain, adam))
    assert gap(one.run(2).tree(), other.run(2).tree()) == 0
    assert not Scaffold().remarks(one.task)
    assert "plain SGD" in Scaffold().remarks(other.task)[0]


# ------------------------------------------------------------------------------------------------------------- rates


def test_schedules_by_hand() -> None:
    cosine = Training(lr_schedule="cosine")
    assert [schedule_factor(cosine, t, 4) for t in range(4)] == pytest.approx([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5])
    steps = Training(lr_schedule="step", lr_every=2, lr_decay=0.5, lr_warmup=1)
    assert [schedule_factor(steps, t, 9) for t in range(6)] == [0.5, 1, 1, 0.5, 0.5, 0.25]
    warm = Training(lr_warmup=3)
    assert [schedule_factor(warm, t, 9) for t in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert schedule_factor(Training(), 7, 9) == 1.0


def test_a_round_has_the_rate_of_its_schedule() -> None:
    late, half = task_of(lr=0.2, momentum=0.0, lr_schedule="cosine"), task_of(lr=0.1, momentum=0.0)
    found = toolbox(late, 5).sgd(task_loss, begin(late)), toolbox(half, 5).sgd(task_loss, begin(half))
    assert gap(*found) < 1e-7


def test_rates_within_a_visit_fall_step_by_step() -> None:
    task, seen = task_of(lr=1.0, momentum=0.0, lr_schedule="cosine", lr_steps=True, epochs=1), list[float]()

    def down(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
        seen.append(float(params["w"].detach()))
        return params["w"].sum()

    end = toolbox(task, 9).sgd(down, {"w": torch.zeros(1)})  # 3 steps of the last of 10 rounds
    moves = -np.diff([*seen, float(end["w"])])
    assert moves == pytest.approx([0.5 * (1 + math.cos(math.pi * (9 + k / 3) / 10)) for k in range(3)], abs=1e-6)


def test_parts_have_rates_of_their_own_also_in_a_second_model() -> None:
    training = Training(lr=0.1, lr_theta=0.2, lr_phi=0.3)
    assert [base_rate(training, k) for k in ("theta", "own_phi", "p")] == [0.2, 0.3, 0.1]
    one = task_of(lr_theta=1e-30)
    moved = toolbox(one).sgd(task_loss, begin(one))
    assert torch.equal(moved["theta"], begin(one)["theta"])
    assert not torch.equal(moved["phi"], begin(one)["phi"])


# ---------------------------------------------------------------------------------------------------- early stopping


def test_patience_ends_a_visit_with_its_best_epoch() -> None:
    """Held-out labels that contradict the train labels: the first epoch is the best, and two more are waited for."""
    data = federated().clients[0].train
    wrong = Split(data.x, (data.y + 1) % 3)
    task = task_of(epochs=50, lr=0.1)
    task = dataclasses.replace(task, training=dataclasses.replace(task.training, patience=2))
    steps = list[int]()

    def counted(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
        steps.append(len(batch.y))
        return task_loss(task, params, batch, given)

    found = toolbox(task, held=wrong).sgd(counted, begin(task))
    one = task_of(epochs=1, lr=0.1)
    assert len(steps) == 3 * 3
    assert gap(found, toolbox(one).sgd(task_loss, begin(one))) == 0


def test_patience_without_held_out_data_is_refused() -> None:
    with pytest.raises(InputError, match="no client has validation data"):
        task_of(patience=2)


# ------------------------------------------------------------------------------------------- recipes of some clients


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_a_client_may_have_a_recipe_of_its_own(engine: Engine) -> None:
    """It trains as in a run where all have that recipe, and the others as if it had none."""
    own: dict[str, Any] = {"epochs": 3, "optimizer": "adam", "betas": [0.8, 0.99], "lr": 0.003}
    data, plan = federated((1, 8, 8), clients=3), Plan(2, seed=3)

    def ends(**settings: Any) -> list[Tree]:
        task = make_task(data, "cnn8", Training(batch=8, **settings), 2, engine=engine)
        return [record.state for record in simulate(make("local"), task, data, plan).records]

    mixed, all_own, all_plain = ends(by_client={"1": own, "2": {"momentum": 0.9}}), ends(**own), ends()
    assert gap(mixed[1], all_own[1]) < 1e-6
    assert gap(mixed[1], all_plain[1]) > 1e-3
    assert max(gap(mixed[k], all_plain[k]) for k in (0, 2)) < 1e-6


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"1": {"lrr": 0.1}}, r"training\.by_client\.1 has no key 'lrr'"),
        ({"1": {"lr": -0.1}}, r"training\.by_client\.1\.lr is -0\.1"),
        ({"1": {"augment": "flip"}}, "has no key 'augment'"),
        ({"9": {"lr": 0.1}}, "names '9', which no client is called"),
        ({"1": {"patience": 2}}, "no client has validation data"),
    ],
)
def test_recipes_of_clients_are_checked(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        task_of(by_client=wrong)
    assert caught.value.hint


def test_recipes_of_clients_in_a_config(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('methods = ["local"]\n[training.by_client.3]\nlr = 0.5\n')
    config = load(str(path), ["training.by_client.3.epochs=7"])
    assert config.training.of_client(3, "3") == Training(lr=0.5, epochs=7)
    assert config.training.of_client(4, "4") is config.training
    assert load_again(config).training == config.training
    assert config_hash(config) != config_hash(load(str(path)))


def load_again(config: Config) -> Config:
    return check(tomllib.loads(dump(config)))


# ------------------------------------------------------------------------------------------------------ augmentation


def test_augmentation_is_drawn_anew_for_every_batch_and_repeats() -> None:
    seen = list[Tensor]()

    def remember(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
        seen.append(batch.x)
        return task_loss(task, params, batch, given)

    task = dataclasses.replace(task_of(epochs=1), augment=lambda x, random: x + random.normal())
    for _ in range(2):
        toolbox(task).sgd(remember, begin(task))
    data, order = federated().clients[0].train.x, list(toolbox(task).batches(1))
    moves = [x - data[index] for x, index in zip(seen, order * 2, strict=True)]
    size = [float(move.mean()) for move in moves]
    assert all(torch.allclose(move, move.mean(), atol=1e-5) for move in moves)
    assert size[:3] == pytest.approx(size[3:])  # the same visit again
    assert len({round(one, 4) for one in size[:3]}) == 3  # a draw for every batch


def test_augmentation_does_not_depend_on_workers_or_a_resume() -> None:
    case = Case(make("fedapa"), images=True, training=Training(0.05, batch=8, epochs=1, augment="flip+crop"))
    assert resume_is_exact(case)
    one, three = case.run(2), case.run(2, workers=3)
    assert gap(one.tree(), three.tree()) == 0
    plain = dataclasses.replace(case, training=Training(0.05, batch=8, epochs=1))
    assert gap(one.tree(), plain.run(2).tree()) > 1e-4


def test_flips_and_crops_keep_pixels_where_they_belong() -> None:
    x = torch.arange(2 * 3 * 8 * 8, dtype=torch.uint8).view(2, 3, 8, 8) + 1
    random = np.random.default_rng(0)
    flipped = augmentation("flip")(torch.cat([x] * 8), random)  # type: ignore[misc]
    kinds = {torch.equal(a, b) for a, b in zip(flipped, torch.cat([x] * 8), strict=True)}
    assert kinds == {True, False}
    assert all(
        torch.equal(a, b) or torch.equal(a, b.flip(-1)) for a, b in zip(flipped, torch.cat([x] * 8), strict=True)
    )
    moved = augmentation("crop")(x, random)  # type: ignore[misc]
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    places = [[(a, b) for a in range(3) for b in range(3) if torch.equal(p[:, a : a + 8, b : b + 8], m)]
              for p, m in zip(padded, moved, strict=True)]  # fmt: skip
    assert all(len(found) == 1 for found in places)
    assert moved.dtype == torch.uint8


@pytest.mark.parametrize(("spec", "said"), [("flip+twist", "names 'twist'"), ("nowhere.py:f", "cannot be imported")])
def test_unknown_augmentations_are_refused(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        augmentation(spec)


def test_an_augmentation_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n\ndef wrong(x, random):\n    return torch.cat([x, random])\n")
    with pytest.raises(InputError, match=r"augmentation '.*mine.py:wrong' failed: TypeError") as caught:
        augmentation(f"{tmp_path}/mine.py:wrong")(torch.zeros(2, 3), np.random.default_rng(0))  # type: ignore[misc]
    assert caught.value.hint == f"see {tmp_path}/mine.py, line 4"


@pytest.mark.parametrize("words", [{"optimizer": "adam"}, {"momentum": 0.0}])
def test_nesterov_is_refused_where_it_would_do_nothing(words: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"training\.nesterov"):
        task_of(nesterov=True, **words)


def test_images_only_are_flipped() -> None:
    task = task_of(augment="flip")
    with pytest.raises(InputError, match="need samples of"):
        toolbox(task).sgd(task_loss, begin(task))


# -------------------------------------------------------------------------------------------------------- objective


def test_smoothing_and_weights_are_those_of_torch() -> None:
    z, y = torch.randn(12, 3, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
    smooth, weighted = Classification(0.2), Classification(class_weights=[1.0, 2.0, 0.5])
    assert torch.allclose(smooth.mean_loss(z, y), nn.functional.cross_entropy(z, y, label_smoothing=0.2))
    theirs = nn.functional.cross_entropy(z, y, torch.tensor([1.0, 2.0, 0.5]), reduction="none")
    assert torch.allclose(weighted.losses(z, y), theirs)
    assert smooth.measure(z, y) == weighted.measure(z, y) == Classification().measure(z, y)


def test_balanced_weights_are_each_clients_own() -> None:
    y = torch.tensor([0, 0, 0, 2])
    assert Classification(class_weights="balanced").at(y, 3).class_weights == pytest.approx((4 / 6, 0, 2))  # type: ignore[attr-defined]
    assert Classification().at(y, 3) == Classification()
    seen = list[object]()

    class Watching(type(make("local"))):  # type: ignore[misc]
        def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
            seen.append((task.objective, local.task.objective))
            return super().train(task, client, down, local)  # type: ignore[no-any-return]

    objective = Classification(class_weights="balanced")
    data = federated().clients[0]
    mine = ClientData("a", Split(data.train.x[:4], y), data.test)
    task = make_task(federated(), "mlp", Training(batch=4), engine="torch", objective=objective)
    request = Request(0, 0, dict, train=True, evaluate=False)
    visit(Watching(), task, mine, Record(begin(task), {}), request, 0)
    assert [one.class_weights for one in seen[0]] == [pytest.approx((4 / 6, 0, 2))] * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("weights", ["heavy", [1.0, -1.0], [0.0, 0.0], [True], 3])
def test_senseless_weights_are_refused(weights: object) -> None:
    with pytest.raises(InputError, match="class_weights"):
        make_objective("classification", class_weights=weights).outputs(2)


# ------------------------------------------------------------------------------------------------ precision, engines


def test_half_precision_is_near_and_not_the_same() -> None:
    whole, half = task_of(), task_of(precision="bf16")
    one, other = (toolbox(task).sgd(task_loss, begin(task)) for task in (whole, half))
    assert 1e-6 < gap(one, other) < 0.02
    assert all(v.dtype == torch.float32 for v in other.values())


def test_scaled_losses_change_nothing_but_half_precision() -> None:
    whole, half = task_of(), task_of(precision="fp16")
    one, other = (toolbox(task).sgd(task_loss, begin(task)) for task in (whole, half))
    assert 0 < gap(one, other) < 0.02


@pytest.mark.skipif(not available()[0], reason="native engine not built")
@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({}, "native"),
        ({"optimizer": "adamw"}, "native"),
        ({"nesterov": True, "clip_norm": 1.0}, "native"),
        ({"lr_steps": True}, "native, batch by batch (the rate changes within a visit by training.lr_steps)"),
        ({"by_client": {"0": {"lr": 0.1}}}, "native"),
        ({"augment": "flip"}, "native, batch by batch (batches are augmented by training.augment)"),
        ({"precision": "bf16"}, "torch (it computes in float32, training.precision is bf16)"),
    ],
)
def test_the_engine_says_why_it_is_not_the_fastest(settings: dict[str, object], note: str) -> None:
    task = make_task(federated((3, 16, 16)), "lenet5", Training(batch=8, **settings))  # type: ignore[arg-type]
    assert engine_note(task) == note
    balanced = dataclasses.replace(task, objective=Classification(class_weights="balanced"))
    assert engine_note(balanced) == note


@pytest.mark.skipif(not available()[0], reason="native engine not built")
def test_the_kernel_takes_adams_steps() -> None:
    tasks = [make_task(federated((3, 16, 16)), "lenet5", Training(0.01, batch=8, optimizer="adam", eps=1e-3), engine=e)
             for e in ("torch", "native")]  # type: ignore[arg-type]  # fmt: skip
    data = federated((3, 16, 16)).clients[0].train
    found = [Local(task, 0, 0, 7, data).sgd(task_loss, begin(task)) for task in tasks]
    assert gap(*found) < 1e-4
    assert gap(found[0], begin(tasks[0])) > 1e-3


def test_an_engine_that_cannot_run_a_recipe_says_so() -> None:
    with pytest.raises(InputError, match="native engine cannot run this recipe: it computes in float32"):
        make_task(federated(), "mlp", Training(precision="bf16"), engine="native")
    held = tuple(dataclasses.replace(c, validation=c.test) for c in federated().clients)
    data = dataclasses.replace(federated(), clients=held)
    with pytest.raises(InputError, match="clients stop early"):
        make_task(data, "mlp", Training(patience=1), engine="vmap")


# ------------------------------------------------------------------------------------------------------ what is told


def test_defaults_leave_no_trace_in_what_a_run_is_known_by() -> None:
    """A run that was begun before these keys came is compared by these texts."""
    old = "Training(lr=0.01, momentum=0.9, batch=64, epochs=2, weight_decay=0.0, clip_norm=0.0, drop_last=True, "
    assert repr(Training()) == f"{old}keep_momentum='auto')"
    assert repr(Training(optimizer="adam")) == f"{old}keep_momentum='auto', optimizer='adam')"
    assert (repr(Classification()), repr(Classification(0.1))) == (
        "Classification()",
        "Classification(label_smoothing=0.1)",
    )


def test_the_recipe_in_one_line() -> None:
    assert Training().told() == "sgd 0.9, lr 0.01, batch 64, 2 epochs"
    whole = Training(optimizer="adamw", lr_phi=0.1, lr_schedule="cosine", lr_warmup=2, clip_norm=1.0, patience=3)
    assert (
        whole.told() == "adamw, lr 0.01, lr_phi 0.1, cosine schedule, warm-up 2, clip 1, patience 3, batch 64, 2 epochs"
    )
