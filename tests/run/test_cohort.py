"""The vmap engine: the same numbers as the plain loop, whatever the method, the loss, the batches and the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedapa.core.tree import Tree, distance, equal
from fedapa.data.federated import Split
from fedapa.errors import RunError
from fedapa.methods.catalogue import METHODS, make
from fedapa.methods.fedavg import FedAvg
from fedapa.rounds.transport import InProcess, Reply, Request
from fedapa.training.engines import vmap_engine
from fedapa.training.engines.vmap_engine import Work, cohorts, pass_together, play_together, schedule, train_together
from fedapa.training.job import Job, Loss, Trained
from fedapa.training.local import Engine, Local, Pass, Plain, outputs, train
from fedapa.training.model import build_model
from fedapa.training.settings import Training
from fedapa.training.task import Batch, Task, proximal, task_loss
from fedapa.verify.case import Case, Outcome
from fedapa.verify.laws import _gap, _same

CLOSE = 5e-6  # between two orders of the same sums in float32, after the few rounds of the small federation


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients every vectorised piece of work had; a refusal by vmap is an error here."""
    seen: list[int] = []
    plain = vmap_engine.vectorise

    def watched(group: Sequence[Work]) -> object:
        seen.append(len(group))
        try:
            return plain(group)
        except Exception as refusal:
            raise SystemExit(f"not vectorised: {refusal!r}") from refusal

    monkeypatch.setattr(vmap_engine, "vectorise", watched)
    return seen


# ---------------------------------------------------------------------------------------- every method, some laws


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_numbers_of_the_plain_loop(name: str, together: list[int]) -> None:
    case = Case(make(name), engine="vmap")
    found = case.run()
    assert max(together) > 1
    assert _gap(Case(make(name)).run(), found) < CLOSE


@pytest.mark.parametrize("name", METHODS)
def test_three_workers_are_one_worker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmap_engine, "LARGEST", 2)  # so that there is more than one cohort to share out
    case = Case(make(name), engine="vmap")
    _same(case.run(), case.run(workers=3), "one worker and three workers")


# ----------------------------------------------------------------------------------------------- training together


def centred(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    """A loss that is no mean over samples, with a carry and a constant."""
    z = task.features(params, batch.x)
    value = task_loss(task, params, batch, {}) + given["lam"] * (z - z.mean(0)).square().mean().sqrt()
    return value, {"seen": given["seen"] + len(batch.y), "mean": 0.5 * given["mean"] + z.mean(0)}


def boxed(params: Tree) -> Tree:
    return {k: v.clamp(-0.5, 0.5) for k, v in params.items()}


class Asking:
    """Keeps the jobs that it is asked for."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def train(self, job: Job) -> Trained:
        self.jobs.append(job)
        return Trained(job.params, job.velocity)

    def outputs(self, wanted: Pass) -> Tensor:
        return outputs(wanted)

    def once(self, compute: Callable[[], object]) -> object:
        return compute()

    def clock(self) -> float:
        return 0.0


SIZES = (7, 40, 16, 23, 3, 31, 16)


def ask(training: Training, loss: Loss, sizes: Sequence[int] = SIZES, **options: object) -> list[Job]:
    """One job for each of some clients of several sizes, all with parameters, constants and memory of their own."""
    random = torch.Generator().manual_seed(3)
    task = Task(build_model("mlp", (4,), 3), 3, torch.tensor(sizes), training)
    engine = Asking()
    for i, n in enumerate(sizes):
        data = Split(torch.randn(n, 4, generator=random), torch.randint(3, (n,), generator=random))
        params = dict(zip(("theta", "phi"), task.init(i), strict=True))
        memory = {f"main/{k}": 0.1 * torch.randn(v.shape, generator=random) for k, v in params.items()}
        given = {"lam": torch.tensor(0.1 * i), "rho": torch.tensor(0.1 * i), "anchor_theta": task.init(9)[0]}
        local = Local(task, i, 0, 0, data, memory, engine=engine)  # type: ignore[arg-type]
        local.sgd(loss, params, given=given, **options)  # type: ignore[arg-type]
    return engine.jobs


def assert_alike(jobs: list[Job]) -> None:
    found = train_together(jobs)
    for job, mine in zip(jobs, found, strict=True):
        other = train(job)  # changes the job's velocity, so it comes last
        assert mine.params.keys() == other.params.keys()
        assert distance(mine.params, other.params) < CLOSE
        assert distance(mine.velocity, other.velocity) < CLOSE
        assert distance(job.params, mine.params) > 1e-3  # something was trained
        assert all(v.is_contiguous() and v.untyped_storage().nbytes() == 4 * v.numel() for v in mine.params.values())


@pytest.mark.parametrize("loss", [task_loss, proximal])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("how", [{}, {"steps": 5}, {"epochs": 3, "clip_norm": 0.05}, {"project": boxed}])
def test_batches_of_any_size(loss: Loss, drop_last: bool, how: dict[str, object]) -> None:
    training = Training(lr=0.05, batch=8, epochs=2, weight_decay=0.01, drop_last=drop_last)
    assert_alike(ask(training, loss, **how))


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_loss_of_any_kind_with_carry(drop_last: bool) -> None:
    carry = {"seen": torch.zeros(1), "mean": torch.zeros(64)}
    jobs = ask(Training(lr=0.05, batch=8, epochs=2, drop_last=drop_last), centred, carry=carry)
    done = [trained.params["seen"].item() for trained in train_together(jobs)]
    assert done == [2 * (n - n % 8 if drop_last and n >= 8 else n) for n in SIZES]
    assert_alike(jobs)


def test_rates_per_part_and_frozen_parts() -> None:
    assert_alike(ask(Training(batch=8), task_loss, lr={"theta": 0.1, "phi": 0.01}))
    jobs = ask(Training(batch=8, momentum=0.0), task_loss, lr={"theta": 0.0, "phi": 0.1})
    assert all(
        torch.equal(job.params["theta"], new.params["theta"])
        for job, new in zip(jobs, train_together(jobs), strict=True)
    )


@pytest.mark.parametrize("loss", [task_loss, centred])
@pytest.mark.parametrize("drop_last", [True, False])
def test_everybody_gets_its_own_batches_in_order(loss: Loss, drop_last: bool) -> None:
    carry = {"seen": torch.zeros(1), "mean": torch.zeros(64)} if loss is centred else None
    jobs = ask(Training(batch=8, epochs=2, drop_last=drop_last), loss, carry=carry)
    starts = np.cumsum([0, *SIZES])
    played: list[list[list[int]]] = [[] for _ in jobs]
    steps = 0
    for rows, index, weight in schedule(jobs):
        steps += 1
        for k, own, share in zip(
            range(len(jobs))[rows] if isinstance(rows, slice) else rows.tolist(), index, weight, strict=True
        ):
            played[k].append((own[share > 0] - starts[k]).tolist())
            assert share.sum().item() == pytest.approx(1)
    assert played == [[index.tolist() for index in job.batches()] for job in jobs]
    if loss is task_loss:
        assert steps == max(map(len, played))  # nobody waits


def test_arguments_are_left_alone() -> None:
    jobs = ask(Training(batch=8), proximal)
    before = [[{k: v.clone() for k, v in tree.items()} for tree in (j.params, j.velocity, j.given)] for j in jobs]
    train_together(jobs)
    assert all(equal(a, b) for job, trees in zip(jobs, before, strict=True)
               for a, b in zip((job.params, job.velocity, job.given), trees, strict=True))  # fmt: skip


def test_passes_over_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = ask(Training(), task_loss, (5, 0, 12, 1))
    passes = [Pass(Task.predict, job.task, job.params, job.data.x) for job in jobs]
    for limit in (10**6, 4 * 4 * 3):  # all at once, and three samples of each at a time
        monkeypatch.setattr(vmap_engine, "PASS_LIMIT", limit)
        for wanted, found in zip(passes, pass_together(passes), strict=True):
            assert found.shape == (len(wanted.x), 3)
            assert torch.allclose(found, outputs(wanted), atol=1e-6)


# ------------------------------------------------------------------------------------- what cannot be vectorised


def fickle(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    """Looks at a number: vmap refuses."""
    value = task_loss(task, params, batch, {})
    return value * 2 if value.item() > 1 else value


def growing(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    return task_loss(task, params, batch, {}), {"seen": torch.cat([given["seen"], batch.y[:1].float()])}


def retyped(task: Task, params: Tree, batch: Batch, given: Tree) -> tuple[Tensor, Tree]:
    return task_loss(task, params, batch, {}), {"seen": given["seen"].double() + 0.5}


@dataclass(frozen=True)
class Odd(FedAvg):
    """FedAvg with another training."""

    body: Callable[[Tree, Local], Tree] = lambda client, local: local.sgd(task_loss, client)

    def __post_init__(self) -> None:
        pass

    def train(self, task: Task, client: Tree, down: Tree, local: Local) -> tuple[Tree, Tree]:
        client = {k: v for k, v in self.body(client, local).items() if k in client}
        return client, {"omega": task.join(client["theta"], client["phi"]), "n": torch.tensor([float(local.n)])}


def both(body: Callable[[Tree, Local], Tree]) -> tuple[Outcome, Outcome]:
    plain, vectorised = (Case(Odd(body=body), engine=engine).run() for engine in ("torch", "vmap"))
    return plain, vectorised


@pytest.mark.parametrize("loss", [fickle, growing, retyped])
def test_a_loss_that_vmap_refuses_runs_plainly(loss: Loss) -> None:
    carry = None if loss is fickle else {"seen": torch.zeros(1)}
    jobs = ask(Training(batch=8), loss, carry=carry)
    with pytest.raises((RuntimeError, TypeError)):
        train_together(jobs)
    plain, vectorised = both(lambda client, local: local.sgd(loss, client, carry=carry))
    assert equal(plain.tree(), vectorised.tree())


def test_losses_of_their_own_run_plainly() -> None:
    plain, vectorised = both(lambda client, local: local.sgd(lambda *words: task_loss(*words), client))
    assert equal(plain.tree(), vectorised.tree())


def change_and_go_on(client: Tree, local: Local) -> Tree:
    for _ in range(3):
        client = local.sgd(task_loss, client)
        client["theta"].mul_(0.9)
        z = local.features(client)
        client["phi"].add_(z.sub_(1).mean() * 1e-3)
    return client


def guarded(client: Tree, local: Local) -> Tree:
    try:
        return local.sgd(task_loss, client)
    except Exception:
        return client


def often(client: Tree, local: Local) -> Tree:
    for _ in range(vmap_engine.MOST_PAUSES + 5):
        client = local.sgd(task_loss, client, steps=1)
    return client


def doubled(task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    return 2 * task_loss(task, params, batch, given)


def as_each_likes(client: Tree, local: Local) -> Tree:
    client = local.sgd(doubled if local.client % 2 else task_loss, client)
    return local.sgd(task_loss, client, lr=0.1 if local.client < 2 else 0.01)


@pytest.mark.parametrize("body", [change_and_go_on, guarded, often, as_each_likes])
def test_methods_may_do_as_they_like(body: Callable[[Tree, Local], Tree], together: list[int]) -> None:
    plain, vectorised = both(body)
    assert _gap(plain, vectorised) < CLOSE
    assert max(together) > 1


# -------------------------------------------------------------------------------------------------------- failures


class Stop(Exception):
    pass


def failing(error: BaseException, task: Task, params: Tree, batch: Batch, given: Tree) -> Tensor:
    if bool(given["bad"]):
        raise error
    return task_loss(task, params, batch, {})


def exchange(error: BaseException, bad: int, workers: int = 1) -> list[Reply]:
    """One round in which the loss of one client raises."""
    loss = partial(failing, error)
    body = lambda client, local: local.sgd(loss, client, given={"bad": torch.tensor(local.client == bad)})  # noqa: E731
    case = Case(Odd(body=body), engine="vmap")
    transport = case.transport(workers)
    down = case.method.send(case.task, case.method.init(case.task, 7)[0], 0)
    requests = [Request(0, i, lambda: down, True, True) for i in range(4)]
    return sorted(transport.exchange(requests), key=lambda reply: reply.client)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("error", [Stop("client 2 stops"), KeyboardInterrupt()])
def test_an_exception_of_one_client_comes_up(
    error: BaseException, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vmap_engine, "LARGEST", 2)
    with pytest.raises(type(error)):
        exchange(error, 2, workers)


def test_a_failed_training_is_that_clients_alone() -> None:
    replies, sound = exchange(RunError("no luck", "none"), 2), exchange(RunError("no luck", "none"), -1)
    assert [reply.fault for reply in replies] == [None, None, "its training failed, no luck", None]
    for i in (0, 1, 3):
        one, other = replies[i].up, sound[i].up
        assert one is not None
        assert other is not None
        assert distance(one, other) < CLOSE


def test_times_are_shares_of_the_time_that_passed() -> None:
    case = Case(make("fedavg"), engine="vmap")
    logs = case.run(2).logs
    for log in logs:
        spent = sum(log.client_seconds.values())
        assert 0 < log.seconds["training"] < spent
        assert 0.5 * log.seconds["clients"] < spent < log.seconds["clients"]


def test_played_visits_see_each_answer_once() -> None:
    computed: list[int] = []

    def visit(k: int, engine: Engine) -> list[float]:
        first = engine.once(lambda: computed.append(k) or float(k))
        begin = engine.clock()
        job = ask(Training(batch=8, epochs=1), task_loss)[k]
        found = engine.train(job)
        return [first, float(engine.clock() > begin), found.params["theta"].sum().item()]

    ends = play_together([partial(visit, k) for k in range(3)])
    alone = [visit(k, Plain()) for k in range(3)]
    assert computed == [0, 1, 2, 0, 1, 2]
    assert np.allclose(ends, alone, atol=1e-4)


def test_cohorts() -> None:
    many = list(range(130))
    assert [len(part) for part in cohorts(many, True)] == [43, 43, 44]
    assert [i for part in cohorts(many, True) for i in part] == many
    assert [list(part) for part in cohorts([1, 2], False)] == [[1], [2]]
    assert cohorts([], True) == cohorts([], False) == []


def test_a_model_with_statistics_is_never_stacked() -> None:
    jobs = ask(Training(batch=8), task_loss)
    norm = build_model(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), (4,), 3, head="2")
    task = replace(jobs[0].task, model=norm)
    start = dict(zip(("theta", "phi"), task.init(0), strict=True))
    work = [Local(task, i, 0, 0, job.data) for i, job in enumerate(jobs)]
    ends = play_together([partial(_train_on, local, start) for local in work])
    for local, end in zip(work, ends, strict=True):
        assert equal(end, replace(local, calls=0).sgd(task_loss, start))


def _train_on(local: Local, start: Tree, engine: Engine) -> Tree:
    return replace(local, engine=engine).sgd(task_loss, start)


def test_the_transport_vectorises_only_where_the_task_says_so(together: list[int]) -> None:
    case = Case(make("fedavg"))
    assert isinstance(case.transport(), InProcess)
    case.run(1)
    assert together == []
