"""Which engine runs: what was asked for, or what is faster, once and for all of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedapa as fa
from fedapa.data.federated import Federated
from fedapa.simulation import make_task
from fedapa.store import run_db
from fedapa.store.run_folder import kept_engine
from fedapa.training.engines import choice
from fedapa.training.engines.choice import Measured, vmap_is_faster
from fedapa.training.engines.native import available
from fedapa.training.settings import Engine, Training


def data(clients: int = 9, shape: tuple[int, ...] = (4,)) -> Federated:
    random = np.random.default_rng(1)
    sizes = [12 + 5 * i for i in range(clients)]
    splits = [(random.normal(size=(2 * n, *shape)).astype(np.float32), random.integers(3, size=2 * n)) for n in sizes]
    return fa.from_arrays([(x[:n], y[:n], x[n:], y[n:]) for n, (x, y) in zip(sizes, splits, strict=True)], 3)


def net(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


REFUSED = {
    "BatchNorm": net(nn.BatchNorm1d(6)),
    "dropout": net(nn.Dropout()),
    "PyTorch cannot vectorise it": net(Branching()),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_model_that_cannot_be_vectorised_is_refused_with_the_reason(why: str) -> None:
    model = REFUSED[why]
    with pytest.raises(fa.InputError, match=f"vmap engine cannot run this model: .*{why}") as caught:
        make_task(data(), model, head=str(len(model) - 1), engine="vmap")
    assert "torch" in caught.value.hint
    assert make_task(data(), model, head=str(len(model) - 1), engine="auto").engine == "torch"


@pytest.mark.parametrize(("clients", "faster", "engine"), [(9, 2.0, "vmap"), (9, 0.5, "torch"), (7, 2.0, "torch")])
def test_auto_takes_what_is_faster(clients: int, faster: float, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1e-3, 1e-3, *(faster, 1.0) * 3])
    monkeypatch.setattr(choice, "seconds", lambda work: next(times))
    vmap_is_faster.cache_clear()
    assert make_task(data(clients), "mlp").engine == engine
    assert make_task(data(clients), "mlp").engine == engine  # measured once: there are no more times
    vmap_is_faster.cache_clear()


def test_long_steps_are_not_measured_any_further(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.1, 0.1])
    monkeypatch.setattr(choice, "seconds", lambda work: next(times))
    vmap_is_faster.cache_clear()
    assert make_task(data(), "mlp").engine == "torch"
    vmap_is_faster.cache_clear()


@pytest.mark.skipif(not available()[0], reason="the kernel is not built")
def test_auto_takes_native_where_the_kernel_knows_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "vmap_is_faster", lambda measured: True)
    images = data(shape=(1, 16, 16))
    found = [make_task(images, "lenet5", engine=engine).engine for engine in ("auto", "torch", "vmap", "native")]
    assert found == ["native", "torch", "vmap", "native"]


def test_measuring_leaves_no_trace() -> None:
    task = make_task(data(), "mlp", Training(batch=8), engine="torch")
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), torch.get_num_threads()  # type: ignore[index]
    assert vmap_is_faster.__wrapped__(Measured(task, data())) in (True, False)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), torch.get_num_threads()  # type: ignore[index]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.parametrize("first", ["vmap", "torch"])
def test_a_resumed_run_keeps_its_engine(first: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"method": "fedapa", "data": data(), "model": "mlp", "lr": 0.1, "batch": 8}
    whole = fa.fit(**words, rounds=4, engine=first)  # type: ignore[arg-type]
    stop = StopAfter(2)
    monkeypatch.setattr(choice, "vmap_is_faster", lambda measured: first == "vmap")
    with pytest.raises(KeyboardInterrupt):
        fa.fit(**words, rounds=4, out=tmp_path, progress=stop)  # type: ignore[arg-type]
    monkeypatch.setattr(choice, "vmap_is_faster", lambda measured: first != "vmap")
    resumed = fa.fit(**words, rounds=4, out=tmp_path)  # type: ignore[arg-type]
    assert resumed.task.engine == first
    with run_db.reading(tmp_path / "run.db") as db:
        assert run_db.meta(db)["engine"] == first
    assert all(torch.equal(resumed.state.server[k], whole.state.server[k]) for k in whole.state.server)
    assert kept_engine("native", tmp_path) == "native"
    with pytest.raises(fa.InputError, match=f"its engine is {first}, not"):
        fa.fit(**words, rounds=4, out=tmp_path, engine="vmap" if first == "torch" else "torch")  # type: ignore[arg-type]


class StopAfter:
    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def __call__(self, log: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
