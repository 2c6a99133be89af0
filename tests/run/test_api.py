"""fedapa from Python: own data, own model, own folder."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedapa as fa
from command import Call
from fedapa.analysis import comparison, result_sets
from fedapa.store import run_db


class Net(nn.Module):
    """Somebody's own module; its last layer is called ``classifier``."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.classifier = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


def data(sizes: tuple[int, ...] = (30, 20, 12, 1), one_class: bool = True) -> fa.Federated:
    """Clients of three easy classes; the last but one has one class only, the last one sample only."""
    random = np.random.default_rng(1)
    clients = []
    for i, n in enumerate(sizes):
        y = np.full(n, 2) if one_class and i == 2 else random.integers(0, 3, n)
        x = random.normal(size=(n, 6)) + 2 * np.eye(6)[y]
        clients.append((x, y, x[:5], y[:5]))
    return fa.from_arrays(clients, classes=3, names=("ward", "clinic", "lab", "office")[: len(sizes)])


FIT = {"rounds": 2, "lr": 0.1, "batch": 8}


def test_the_readme_call_with_an_own_module() -> None:
    result = fa.fit(fa.FedAPA(), data(), model=Net(), head="classifier", **FIT)
    assert len(result.logs) == len(result.curve("after")) == 2
    assert len(result.curve("before")) == 3  # the last is what the second aggregation would send
    assert result.predict(0, torch.zeros(7, 6)).shape == (7, 3)
    assert 0 <= result.curve("after")[-1].pooled <= 100


def test_the_module_is_the_start_and_stays_as_it_is() -> None:
    net = Net()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    one = fa.fit("fedavg", data(), model=net, head="classifier", **FIT)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    two = fa.fit("fedavg", data(), model=net, head="classifier", **FIT)
    assert one.curve() == two.curve()


def start(model: object, seed: int) -> Tensor:
    """What everybody starts from."""
    result = fa.fit(Still(), data(), model, 1, head="classifier", seed=seed)  # type: ignore[arg-type]
    return result.state.server["omega"]


class Still(fa.FedAvg):
    """The server keeps its first model."""

    def absorb(self, task: fa.Task, server: Any, ids: Any, downs: Any, ups: Any) -> Any:
        return server


def two_words(shape: tuple[int, ...], classes: int) -> nn.Module:
    assert (shape, classes) == ((6,), 3)
    return Net()


def test_a_module_is_the_same_start_for_every_seed() -> None:
    net = Net()
    assert torch.equal(start(net, 0), start(net, 1))
    assert torch.equal(start(net, 0), torch.cat([p.detach().reshape(-1) for p in net.parameters()]))


@pytest.mark.parametrize("make", [Net, two_words, lambda: Net()])
def test_what_makes_a_module_is_seeded(make: object) -> None:
    torch.manual_seed(5)
    one = start(make, 0)
    torch.manual_seed(6)
    assert torch.equal(one, start(make, 0))
    assert not torch.equal(one, start(make, 1))


def test_the_callers_module_stays_in_its_mode_and_torch_keeps_its_threads() -> None:
    net, threads = Net().train(), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        inside: list[int] = []
        count = lambda log: inside.append(torch.get_num_threads())  # noqa: E731
        fa.fit("fedavg", data(), model=net, head="classifier", progress=count, **FIT)
        assert (inside, torch.get_num_threads()) == ([1, 1], 3)
        with pytest.raises(fa.RunError):
            fa.fit("fedavg", data(), "mlp", rounds=3, lr=1e30)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert all(module.training for module in net.modules())


def test_a_curve_has_two_phases_and_two_kinds_of_data() -> None:
    held = fa.fit("fedavg", fa.load("digits", "iid", clients=3, validation=0.2), "mlp", rounds=2)
    for phase in ("before", "after"):
        counts = [getattr(log, phase) for log in held.logs]
        counts += [held.logs[-1].final] if phase == "before" else []
        assert [s.pooled for s in held.curve(phase)] == [100 * c[:, 0, 0].sum() / c[:, 0, 1].sum() for c in counts]
        validation = [s.pooled for s in held.curve(phase, "validation")]
        assert validation == [100 * c[:, 0, 2].sum() / c[:, 0, 3].sum() for c in counts]
    plain = fa.fit("fedavg", data(), "mlp", **FIT)
    for words, message in (
        (("befor",), "phase is 'befor'"),
        (("validation",), "phase is 'validation'"),
        (("after", "trial"), "data is 'trial'"),
        (("after", "validation"), "no validation data"),
    ):
        with pytest.raises(fa.InputError, match=message) as caught:
            plain.curve(*words)
        assert caught.value.hint


@pytest.mark.parametrize("method", ["local", "fedavg", "fedavg-ft", "fedapa", "fedapa-reference"])
def test_one_class_and_one_sample_are_enough_for_a_client(method: str) -> None:
    result = fa.fit(method, data(), "mlp", participation=1.0, **FIT)
    assert all(len(log.trained) == 4 for log in result.logs)
    assert all(not log.events for log in result.logs)
    assert result.records[3].state.keys() == result.records[0].state.keys()


def test_one_client_alone() -> None:
    result = fa.fit("fedapa", data((10,)), "mlp", **FIT)
    assert [log.trained for log in result.logs] == [[0], [0]]


def test_training_learns_something() -> None:
    result = fa.fit("fedapa", data((60, 60), one_class=False), "mlp", rounds=5, lr=0.1, batch=8, participation=1.0)
    assert result.curve("after")[-1].pooled >= 90


def test_same_seed_same_bits_other_seed_other_bits() -> None:
    thetas = [fa.fit("fedapa", data(), "mlp", seed=seed, **FIT).state.server["theta"] for seed in (0, 0, 1)]
    assert torch.equal(thetas[0], thetas[1])
    assert not torch.equal(thetas[0], thetas[2])


def test_workers_do_not_change_a_bit() -> None:
    thetas = [fa.fit("fedapa", data(), "mlp", workers=k, **FIT).state.server["theta"] for k in (1, 2)]
    assert torch.equal(*thetas)


def test_a_run_folder_of_fit_can_be_compared(tmp_path: Path) -> None:
    for method in (fa.LocalOnly(), fa.FedAvg(fine_tune=True), "fedapa"):
        fa.fit(method, data(), "mlp", out=tmp_path / str(method), **FIT)  # type: ignore[arg-type]
    rows = {row.method: row for row in comparison.table(result_sets.load(tmp_path))}
    assert rows.keys() == {"local", "fedavg-ft", "fedapa"}  # the names of the command line
    assert sum(rows["fedapa"].gain.clients) == 4
    with run_db.reading(tmp_path / "fedapa" / "run.db") as db:
        assert run_db.meta(db)["source"] == "arrays"


def own_loop(module: nn.Module, data: Any, training: fa.Training, generator: torch.Generator) -> None:
    """Somebody's training loop, in a module that another process can import."""
    with torch.no_grad():
        for weights in module.parameters():
            weights.mul_(0.5)


@pytest.mark.parametrize(
    ("method", "words", "kept"),
    [
        ("fedper", {"shared": ["fc*", "!fc2*"]}, 'shared = [\n    "fc*",'),
        ("local", {"validation": 0.2, "patience": 1}, "validation = 0.2"),
        ("fedper+ema", {}, '"fedper+ema"'),
        (fa.Quantised(fa.FedAPA(eta=0.5), bits=4), {}, "bits = 4"),
        ("fedproto", {"model": ["mlp", "cnn8"], "features": 8}, "features = 8"),
        ("local", {"objective": fa.Classification(label_smoothing=0.1)}, "label_smoothing = 0.1"),
        ("fedapa", {"trainer": own_loop}, "test_api.py:own_loop"),
        ("fedapa@authors", {"lr": 0.033}, "lr = 0.033"),
    ],
)
def test_all_that_fit_was_given_is_in_the_config(
    fedapa: Call, tmp_path: Path, method: Any, words: dict[str, Any], kept: str
) -> None:
    """Or `fedapa resume` and `export` would take the run for another one."""
    digits = fa.load("digits", "iid", clients=2)
    fa.fit(method, digits, out=tmp_path / "run", **{"model": "mlp", "rounds": 1, "epochs": 1, **words})
    assert kept in (tmp_path / "run" / "config.toml").read_text()
    unfinish(tmp_path / "run")
    answer = fedapa("resume", "run")
    assert answer.code == 0, answer.err
    assert fedapa("export", "run", "--client", 0, "--deliver-anyway").code == 0


def test_a_loop_of_a_script_leaves_a_run_without_config(tmp_path: Path) -> None:
    """Nobody else could import it."""
    fa.fit("local", fa.load("digits", "iid", clients=2), "mlp", 1, trainer=lambda *words: None, out=tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def unfinish(run: Path) -> None:
    with closing(sqlite3.connect(run / "run.db")) as db, db:
        db.execute("UPDATE meta SET value='running' WHERE key='status'")


def test_loading_shipped_data() -> None:
    digits = fa.load("digits", "iid", clients=3)
    assert len(digits.clients) == 3
    assert fa.fit("local", digits, "mlp", rounds=1).curve()[0].pooled > 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 0}, "rounds"),
        ({"participation": 0}, "participation"),
        ({"participation": (0.9, 0.2)}, "participation"),
        ({"learning_rate": 0.1}, r"unknown key training\.learning_rate"),
        ({"lr": -1}, r"training\.lr is -1"),
        ({"batch": 0}, r"training\.batch is 0"),
        ({"epochs": 1.5}, r"training\.epochs is 1\.5"),
        ({"model": "lenet"}, "unknown model"),
        ({"model": "lenet5"}, "lenet5 needs square images"),
        ({"model": nn.Bilinear}, "model 'Bilinear' cannot be made: .*missing"),
        ({"model": dict}, "model 'dict' cannot be made"),
        ({"model": lambda: 7}, "model .* made int"),
        ({"model": 3}, "model is 3"),
        ({"model": Net, "settings": {"width": 3}}, "'width' is for models by name"),
        ({"settings": {"width": 3}}, "has no setting 'width'"),
        ({"head": "last"}, "no submodule named 'last'"),
        ({"method": "fedapaa"}, "unknown method"),
        ({"engine": "native"}, "native engine"),
    ],
)
def test_mistakes_are_input_errors(wrong: dict[str, object], message: str) -> None:
    words = {"method": "fedapa", "data": data(), "model": "mlp", "rounds": 2} | wrong
    with pytest.raises(fa.InputError, match=message) as caught:
        fa.fit(**words)  # type: ignore[arg-type]
    assert caught.value.hint


def test_an_out_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(fa.InputError, match="cannot create"):
        fa.fit("local", data(), "mlp", out=tmp_path / "file" / "run", rounds=1)


def test_divergence_is_a_run_error_that_says_what_to_do() -> None:
    with pytest.raises(fa.RunError, match="every upload was refused") as caught:
        fa.fit("fedavg", data(), "mlp", rounds=3, lr=1e30)
    assert "learning rate" in caught.value.hint
