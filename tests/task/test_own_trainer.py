"""A user's own training loop in place of the library's."""

import copy
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import fedapa as fa
from fedapa.core.tree import digest
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make
from fedapa.rounds.expected_uploads import Expected
from fedapa.simulation import make_task
from fedapa.training.objective import Classification
from fedapa.training.own_trainer import Samples
from fedapa.training.settings import Training

PLAIN = {
    "local", "fedavg", "fedavg-ft", "fedper", "fedrep", "fedbabu", "lg-fedavg", "fedbn", "fedapa", "fedapa-exact",
    "fedapa-scored", "fedapa-reference", "fedala", "pfedhn", "pfedhn-pc", "pfedla", "pfedla-heur", "knnper", "ifca",
    "cfl", "fedfomo", "fedgh",
}  # fmt: skip


def plain_sgd(module, data, training, generator):
    """The library's own loop, written out: whole shuffled batches, SGD with momentum."""
    batches = DataLoader(data, training.batch, shuffle=True, drop_last=True, generator=generator)
    chosen = [p for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(chosen, lr=training.lr, momentum=training.momentum)
    for _ in range(training.epochs):
        for x, y in batches:
            optimiser.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimiser.step()


def nothing(module, data, training, generator):
    pass


@pytest.fixture(scope="module")
def data():
    return fa.load("digits", "dirichlet", clients=3, seed=0, alpha=1.0)


def dry(name, data, trainer=nothing):
    task = make_task(data, "mlp", trainer=trainer)
    return Expected(make(name), task, data.clients[0].train.x[0])


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_plain_loss_take_it_and_the_others_refuse_in_one_line(name, data):
    calls = []
    if name in PLAIN:
        dry(name, data, lambda *given: calls.append(given))
        assert calls == []  # a dry visit trains nothing
        return
    with pytest.raises(InputError, match=r"training.trainer cannot train this method, which needs its own loss"):
        dry(name, data)


def test_a_method_without_its_pull_takes_it(data):
    """FedAMP, and FedProx, which is FedAvg then."""
    assert fa.fit(fa.FedAMP(lam=0.0), data, "mlp", rounds=1, trainer=plain_sgd).logs
    thetas = [
        fa.fit(method, data, "mlp", rounds=2, trainer=plain_sgd).state.server["omega"]
        for method in ("fedavg", fa.FedProx(mu=0.0))
    ]
    assert torch.equal(*thetas)


def test_it_learns_under_fedapa_as_the_librarys_own_loop_does(data):
    own = fa.fit("fedapa", data, "mlp", rounds=4, trainer=plain_sgd, lr=0.05, batch=16)
    ours = fa.fit("fedapa", data, "mlp", rounds=4, lr=0.05, batch=16, keep_momentum=False, engine="torch")
    assert own.curve()[-1].pooled > 80
    assert own.curve()[-1].pooled == pytest.approx(ours.curve()[-1].pooled, abs=5)  # other batches
    assert own.task.engine == "torch"


def test_it_gets_the_weights_that_arrived_the_data_and_the_recipe(data):
    seen = []

    def look(module, samples, training, generator):
        seen.append((module, samples, training, generator.initial_seed()))

    done = fa.fit("fedavg", data, "mlp", rounds=1, trainer=look, lr=0.03, epochs=3)
    theta, phi = done.task.init(0)
    largest_first = sorted(data.clients, key=lambda client: -len(client.train.y))
    for (module, samples, training, _), client in zip(seen, largest_first, strict=True):
        assert torch.equal(torch.cat(done.task.model.vectors(module)), torch.cat([theta, phi]))
        assert module.training
        assert (training.lr, training.epochs) == (0.03, 3)
        assert training.trainer.endswith("look")
        torch.testing.assert_close(samples.tensors[0], done.task.prepare(client.train.x))
        assert torch.equal(samples.tensors[1], client.train.y)
    assert len({seed for *_, seed in seen}) == 3
    assert torch.equal(done.state.server["omega"], torch.cat([theta, phi]))  # nothing was trained


def draws(module, data, training, generator):
    """A loop that draws from torch's own generator."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.01 * torch.randn_like(p))


def test_the_same_seed_gives_the_same_bits_whatever_was_drawn_before(data):
    found = []
    for before in (1, 2):
        torch.manual_seed(before)
        state = torch.random.get_rng_state()
        found.append(fa.fit("fedapa", data, "mlp", rounds=2, trainer=draws, workers=3))
        assert torch.equal(torch.random.get_rng_state(), state)
    assert digest(found[0].state.server) == digest(found[1].state.server)
    assert not torch.equal(found[0].records[0].state["theta"], found[0].records[1].state["theta"])


def test_a_part_that_the_method_holds_still_stays(data):
    """FedRep: the head under a fixed extractor, then the extractor under a fixed head."""
    trainable = []

    def push(module, samples, training, generator):
        trainable.append({name for name, p in module.named_parameters() if p.requires_grad})
        with torch.no_grad():
            for p in module.parameters():
                p.add_(1.0)  # also what is held still

    task = replace(make_task(data, "mlp", Training(), trainer=push), rounds=1)
    method = make("fedrep")
    server, client = method.init(task, 0)
    local = fa.Local(task, 0, 0, 0, data.clients[0].train)
    state, up = method.train(task, method.receive(task, client, method.send(task, server, 0), local), server, local)
    assert trainable == [{"head.weight", "head.bias"}, {f"fc{k}.{p}" for k in (1, 2) for p in ("weight", "bias")}]
    torch.testing.assert_close(state["phi"], client["phi"] + 1)
    torch.testing.assert_close(up["theta"], client["theta"] + 1)


def test_it_may_return_another_module_of_the_same_architecture(data):
    def other(module, samples, training, generator):
        return nn.Sequential(*module)  # the same layers under other names

    def copied(module, samples, training, generator):
        new = copy.deepcopy(module)
        nn.init.ones_(new.head.bias)
        return new

    done = fa.fit("local", data, "mlp", rounds=1, trainer=copied)
    assert torch.equal(done.records[0].state["phi"][-10:], torch.ones(10))
    with pytest.raises(InputError, match="returned a module without"):
        fa.fit("local", data, "mlp", rounds=1, trainer=other)
    with pytest.raises(InputError, match="changed the size of phi"):
        fa.fit("local", data, "mlp", rounds=1, trainer=_wider)


def _wider(module, samples, training, generator):
    module.head = nn.Linear(64, 11)


def broken(module, data, training, generator):
    raise KeyError("no such column")


def two(module, data):
    pass


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (broken, "trainer 'test_own_trainer:broken' failed: KeyError: 'no such column'"),
        (f"{__file__}:missing", "has no 'missing'"),
        (f"{__file__}:two", "cannot be called with (module, data, training, generator)"),
        ("train", "training.trainer is 'train'"),
    ],
)
def test_mistakes_are_one_line(trainer, said, data):
    with pytest.raises(InputError, match=re.escape(said)):
        fa.fit("fedapa", data, "mlp", rounds=1, trainer=trainer)


def test_a_training_that_diverges_is_refused(data):
    def explode(module, samples, training, generator):
        nn.init.constant_(module.head.weight, float("nan"))

    with pytest.raises(fa.RunError, match="every upload was refused"):
        fa.fit("fedapa", data, "mlp", rounds=1, trainer=explode)


@pytest.mark.parametrize("engine", ["vmap", "native"])
def test_other_engines_say_why_not(engine, data):
    with pytest.raises(InputError, match="it has a trainer of its own"):
        fa.fit("fedapa", data, "mlp", rounds=1, trainer=nothing, engine=engine)


def test_the_file_is_found_beside_its_config(tmp_path: Path):
    from fedapa.config.load import load, training_of

    (tmp_path / "run.toml").write_text(
        '[training]\ntrainer = "loop.py:train"\n[method.local.training]\ntrainer = "other.py:train"\n'
    )
    (tmp_path / "loop.py").write_text("")
    (tmp_path / "other.py").write_text("")
    config = load(str(tmp_path / "run.toml"))
    assert training_of(config, "fedapa").trainer == f"{tmp_path / 'loop.py'}:train"
    assert training_of(config, "local").trainer == f"{tmp_path / 'other.py'}:train"


@pytest.mark.parametrize("kind", ["fields", "lazy"])
def test_samples_that_are_no_tensor_train_as_those_that_are(kind):
    """A loop that takes x and y from a DataLoader needs no line more for them."""
    x = np.random.default_rng(0).random((24, 6), dtype=np.float32)
    y, model = (x[:, 0] > 0.5).astype(np.int64), OfEither()
    found = []
    for made in (x, {"a": x} if kind == "fields" else fa.Lazy(x)):
        data = fa.from_arrays([(made, y, made, y)] * 2, 2)
        found.append(fa.fit("fedapa", data, model, rounds=2, trainer=plain_sgd, lr=0.1, batch=8))
    assert digest(found[0].state.server) == digest(found[1].state.server)
    assert found[0].curve("after")[-1] == found[1].curve("after")[-1]


class OfEither(nn.Module):
    """Of a tensor, or of one by name."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x if isinstance(x, torch.Tensor) else x["a"]))


def test_rows_read_lazily_are_normalised_as_those_in_memory_are(data):
    task = make_task(data, "mlp", trainer=nothing)
    client = data.clients[0].train
    lazy = Samples(task, client._replace(x=fa.Lazy(client.x.numpy())))
    found = torch.stack([lazy[k][0] for k in range(4)])
    assert torch.equal(found, task.prepare(client.x[:4]))
    assert not torch.equal(found, client.x[:4])


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"training": Training(augment="flip")}, "training.augment"),
        ({"training": Training(precision="bf16")}, "training.precision"),
        ({"training": Training(patience=1)}, "training.patience"),
        ({"objective": Classification(label_smoothing=0.1)}, "objective.label_smoothing"),
    ],
)
def test_what_does_not_reach_the_loop_is_refused(settings, name, data):
    with pytest.raises(InputError, match=f"training.trainer has its own loop, which {name}"):
        make_task(data, "mlp", trainer=nothing, **settings)
