"""The train loss: by hand, the same on every engine, and the same wherever it is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import fedapa as fa
from command import Call
from fedapa.core.tree import Tree
from fedapa.methods.catalogue import make
from fedapa.store import run_db
from fedapa.training.engines.native import available
from fedapa.training.job import LossSum
from fedapa.training.local import gradients
from fedapa.training.settings import Training
from fedapa.training.task import Batch, proximal, task_loss
from fedapa.verify.case import Case

STILL = Training(lr=0.0, batch=8, epochs=2, drop_last=False)


def by_client(name: str, training: Training = STILL, **options: object) -> dict[int, LossSum]:
    """Of the first round, in which everybody starts from the same model."""
    return Case(make(name), training=training, **options).run(1).logs[0].train_loss  # type: ignore[arg-type]


def start_loss(case: Case, i: int) -> float:
    """Summed over the client's train samples, by torch alone."""
    theta, phi = case.task.init(7)
    data = case.data.clients[i].train
    with torch.no_grad():
        return float(cross_entropy(case.task.predict({"theta": theta, "phi": phi}, data.x), data.y, reduction="sum"))


def test_without_steps_it_is_the_loss_of_all_samples_once_per_epoch() -> None:
    case = Case(make("fedavg"), training=STILL)
    found = by_client("fedavg")
    assert found
    for i, loss in found.items():
        n = len(case.data.clients[i].train.y)
        assert loss.samples == 2 * n  # the last batch is a short one
        assert loss.total == pytest.approx(2 * start_loss(case, i), rel=1e-5)


def test_a_batch_is_judged_before_its_step() -> None:
    """Two batches by hand: the second sees the weights that the first left."""
    case = Case(make("local"), training=Training(lr=0.5, batch=8, epochs=1, momentum=0.0, drop_last=False))
    local = case.local(0, 0, case.transport().records()[0])
    local.data = type(local.data)(local.data.x[:12], local.data.y[:12])
    params: Tree = dict(zip(("theta", "phi"), case.task.init(7), strict=True))
    first, second = local._indices(1, None, None)
    expected = 0.0
    weights = {k: v.clone() for k, v in params.items()}
    for index in (first, second):
        leaves = {k: v.detach().requires_grad_() for k, v in weights.items()}
        value = task_loss(case.task, leaves, Batch(local.data.x[index], local.data.y[index]), {})
        slopes = torch.autograd.grad(value, list(leaves.values()))
        weights = {k: v.detach() - 0.5 * g for (k, v), g in zip(leaves.items(), slopes, strict=True)}
        expected += value.item() * len(index)
    local.sgd(task_loss, params)
    assert local.loss.samples == 12
    assert local.loss.total == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("engine", ["vmap", "native"])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedrep", "ditto"])
def test_engines_tell_the_same_loss(engine: str, name: str) -> None:
    if engine == "native" and not available()[0]:
        pytest.skip(available()[1])
    training = Training(lr=0.1, batch=8, epochs=2, drop_last=False)
    plain, other = (by_client(name, training, images=True, engine=which) for which in ("torch", engine))
    assert plain.keys() == other.keys()
    for i, loss in plain.items():
        assert other[i].samples == loss.samples
        assert other[i].total == pytest.approx(loss.total, rel=1e-4)


def test_a_pull_towards_an_anchor_is_no_part_of_it() -> None:
    """An anchor at zero with a pull that dwarfs the loss: the gradient has it, the loss that is told not."""
    case = Case(make("fedprox"))
    theta, phi = case.task.init(7)
    params, batch = {"theta": theta, "phi": phi}, Batch(*case.data.clients[0].train)
    given = {"rho": torch.tensor(1e4), "anchor_theta": torch.zeros_like(theta)}
    plain, _, loss = gradients(case.task, task_loss, params, batch, {}, {})
    pulled, _, told = gradients(case.task, proximal, params, batch, given, {})
    assert told == loss
    torch.testing.assert_close(pulled, {"theta": plain["theta"] + 1e4 * theta, "phi": plain["phi"]})


def test_a_run_keeps_it_and_every_reader_tells_the_same(tmp_path: Path, fedapa: Call) -> None:
    out = tmp_path / "runs"
    told = ["--set", "run.rounds=2", "--set", "run.evaluate_every=2", "--log", "told.py:Told"]
    (tmp_path / "told.py").write_text(
        "import json\n"
        "class Told:\n"
        "    def start(self, run): self.file = open('told.json', 'a')\n"
        "    def round(self, done, values): self.file.write(json.dumps(values) + '\\n'); self.file.flush()\n"
        "    def end(self, status): self.file.close()\n"
    )
    done = fedapa("run", "demo", "--method", "fedavg", "--seeds", "1", "--out", "runs", *told)
    assert done.code == 0, done.err
    sunk = [json.loads(line)["train/loss"] for line in (tmp_path / "told.json").read_text().splitlines()]
    run = fa.open(out)
    run = run if isinstance(run, fa.OpenedRun) else run[0]
    curve = run.curve(data="train")
    assert [row.round for row in curve] == [1, 2]  # also of a round that is not evaluated
    assert [row.pooled for row in curve] == pytest.approx(sunk)
    assert curve[1].pooled < curve[0].pooled
    (row,) = json.loads(fedapa("compare", "runs", "--format", "json").out)["methods"]
    assert row["train_loss"] == pytest.approx(curve[-1].pooled)
    assert row["test_loss"] == pytest.approx(run.curve(score="loss")[-1].pooled)
    with run_db.reading(run.folder / "run.db") as db:
        (log, _) = run_db.logs(db)
        assert sum(loss.total for loss in log.train_loss.values()) / sum(
            loss.samples for loss in log.train_loss.values()
        ) == pytest.approx(sunk[0])
        assert run_db.last_round(db) == 2
