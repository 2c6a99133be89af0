"""The parts of the parity command that need no code but ours; the whole of it where both checkouts are at hand."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path

import lockstep
import parity_table
import pfllib
import pytest
import torch
from lockstep import Ours, OutOfStepError, Replay, checkout, flat, in_epochs, left_over
from verdict import EQUAL, Row, judge, relative

from fedapa.core.tree import Tree
from fedapa.data.federated import Federated, Split
from fedapa.methods.catalogue import make
from fedapa.training.architectures import factory
from fedapa.training.job import Job
from fedapa.training.optimizers import Rule
from fedapa.training.settings import Training
from fedapa.training.task import Batch, Task

ROOT = Path(__file__).parents[2]
CHECKOUTS = [os.environ.get(name, "") for name in ("FEDAPA_PARITY_AUTHORS", "FEDAPA_PARITY_PFLLIB")]
TINY = 1e-15


# ------------------------------------------------------------------------------------------------------ the verdict


@pytest.mark.parametrize(
    ("distances", "same", "reasons", "verdict"),
    [
        ({"A": TINY}, True, {}, "equal"),
        ({"A": TINY, "theta": 1e-11}, True, {}, "DIFFERS: theta"),
        ({"A": TINY}, False, {}, "DIFFERS: accuracies"),
        ({"A": 0.1}, False, {"A": "its kernel"}, "differs as expected: its kernel"),
        ({"A": 0.1, "b": 0.1}, True, {"A": "its kernel"}, "DIFFERS: b"),
        ({"A": 0.1, "b": 0.2}, True, {"A": "its kernel", "b": "its kernel"}, "differs as expected: its kernel"),
        ({"A": TINY}, True, {"A": "its kernel"}, "DIFFERS from what is written down: A is equal, though its kernel"),
        ({"A": float("inf")}, True, {"A": "its kernel"}, "DIFFERS: A cannot be compared"),
    ],
)
def test_verdict(distances: dict[str, float], same: bool, reasons: dict[str, str], verdict: str) -> None:
    assert judge(distances, same, reasons) == verdict


def test_a_difference_that_nobody_expects_makes_the_command_fail(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("equal"), row("differs as expected: its kernel")]
    assert parity_table.summarise(rows) == 0
    assert parity_table.summarise([*rows, row("DIFFERS: theta")]) == 1
    assert capsys.readouterr().out.endswith("3 comparisons: 1 equal, 1 differ as expected, 1 not.\n")


def row(verdict: str) -> Row:
    return Row("their FedAvg", "fedavg", 4, 8, 0.9, {"omega": 2.5e-16}, True, verdict)


def test_row_of_the_table() -> None:
    assert parity_table.line(row("equal")) == "| their FedAvg | fedavg | 4 | 8 | 0.9 | omega 2.5e-16 | equal | equal |"


def test_distance_is_relative_and_never_hides_a_bad_number() -> None:
    assert relative(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)
    assert relative(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative(torch.tensor([float("nan")]), torch.ones(1)) == float("inf")
    assert relative(torch.ones(2), torch.ones(3)) == float("inf")
    assert relative(torch.ones(2), torch.zeros(2)) == float("inf")


# ------------------------------------------------------------------------------------------------------ the batches


def test_batches_are_cut_into_epochs() -> None:
    batches = [torch.tensor([k]) for k in range(6)]
    assert [len(epoch) for epoch in in_epochs(batches, 3)] == [3, 3]
    assert [len(epoch) for epoch in in_epochs(batches[:1], 0)] == [1]  # a client smaller than one batch


def test_replay_hands_out_an_epoch_once_unless_it_is_left_early() -> None:
    epochs = deque([[torch.tensor([0, 1]), torch.tensor([2])], [torch.tensor([2])]])
    loader = Replay(Split(torch.arange(3.0), torch.arange(3)), epochs)
    for _ in loader:
        break  # PFLlib's DBE looks at one batch for its shape
    assert [y.tolist() for _, y in loader] == [[0, 1], [2]]
    assert left_over([epochs, deque()]) == "it left 1 epochs of 1 clients unplayed"
    assert [y.tolist() for _, y in loader] == [[2]]
    assert left_over([epochs]) == ""
    with pytest.raises(OutOfStepError, match="more epochs"):
        list(loader)


@pytest.fixture(scope="module")
def data() -> Federated:
    """Two clients with 40 and 75 samples."""
    with lockstep.float64():
        whole = lockstep.make_data()
    kept = [
        replace(c, train=first(c.train, n), test=first(c.test, 9))
        for c, n in zip(whole.clients[:2], (40, 75), strict=True)
    ]
    return replace(whole, clients=tuple(kept))


def first(split: Split, n: int) -> Split:
    return Split(split.x[:n], split.y[:n])


@pytest.mark.parametrize(("keeps", "equal"), [(True, True), (False, False)])
def test_a_plain_loop_on_the_replayed_batches_is_our_local(data: Federated, keeps: bool, equal: bool) -> None:
    """With one optimizer for the whole run, momentum is kept as ours is; a new one in every round is another method."""
    with lockstep.float64():
        training = Training(lr=0.01, momentum=0.9, batch=lockstep.BATCH, epochs=2, keep_momentum=True)
        ours = lockstep.play(make("local"), data, training, 2)
        net = plain_loop(data, ours, keeps)
    theta, phi = ours.clients[1]["theta"], ours.clients[1]["phi"]
    assert theta.dtype == torch.float64
    assert (relative(flat(net), torch.cat([theta, phi])) < EQUAL) == equal
    assert left_over(ours.epochs[1:]) == ""


def plain_loop(data: Federated, ours: Ours, keeps: bool) -> torch.nn.Module:
    """Client 1 as everybody would write it."""
    net = factory("lenet5")(data.shape, data.classes)
    lockstep.load_weights(net, ours.start)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for _ in range(2):
        if not keeps:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        loader = Replay(data.clients[1].train, ours.epochs[1])
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return net


def test_mixing_weights_see_their_samples_in_order_and_leave_no_batches(data: Federated) -> None:
    """PFLlib does not shuffle there, and its mixing has a loader of its own."""
    seen, epochs = list[list[int]](), lockstep.Epochs()

    def loss(task: Task, params: Tree, batch: Batch, given: Tree) -> torch.Tensor:
        seen.append(batch.y.tolist())
        return params["W"].sum()

    task, W = lockstep.make_task(data, Training(batch=4), 1), {"W": torch.ones(1)}
    own = Split(torch.zeros(6, 1), torch.arange(6))
    shuffled = lambda: iter([torch.tensor([5, 1, 0, 4])])  # noqa: E731
    job = Job(task, loss, W, {"W": torch.zeros(1)}, {}, {}, own, shuffled, {"W": 1.0}, Rule(), None, None)
    lockstep.Recorder(epochs).train(job)
    assert seen == [[0, 1, 2, 3], [4, 5]]
    assert not epochs


# ----------------------------------------------------------------------------------------------------- the checkout


def test_a_checkout_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flmod").mkdir()
    (tmp_path / "flmod" / "inner.py").write_text("import h5py, json\nprint('noise')\nplace = json\n")
    here, path, json = Path.cwd(), list(sys.path), sys.modules.get("json")

    def enter() -> None:
        with checkout(tmp_path, ["h5py"], {"json": "theirs"}):
            assert importlib.import_module("flmod.inner").place == "theirs"
            assert Path.cwd() == tmp_path
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        enter()
    assert (Path.cwd(), sys.path, sys.modules.get("json")) == (here, path, json)
    assert not {"flmod", "flmod.inner", "h5py"} & sys.modules.keys()
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.rglob("__pycache__"))


def test_commit_of_a_folder_without_history(tmp_path: Path) -> None:
    assert lockstep.commit_of(tmp_path) == "of an unknown commit"


# ------------------------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ([], "there is no code to compare with"),
        (["--pfllib", "."], "--pfllib . has no flcore/servers/serverbase.py"),
        (["--authors", "/nowhere"], "--authors /nowhere has no src/FedAPA/server_FedAPA.py"),
    ],
)
def test_what_is_missing_is_said_with_a_hint(
    words: list[str], wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        parity_table.main(words)
    said = capsys.readouterr().err
    assert wrong in said
    assert "\nhint: " in said


def test_both_layouts_of_a_checkout_are_found(tmp_path: Path) -> None:
    place = tmp_path / "system"
    (place / "flcore" / "servers").mkdir(parents=True)
    (place / "flcore" / "servers" / "serverbase.py").touch()
    (place / "main.py").touch()
    assert parity_table.parse(["--pfllib", str(tmp_path)]).pfllib == place
    assert parity_table.parse(["--pfllib", str(place)]).pfllib == place


def test_a_part_is_never_written_as_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flcore" / "servers").mkdir(parents=True)
    (tmp_path / "flcore" / "servers" / "serverbase.py").touch()
    (tmp_path / "main.py").touch()
    with pytest.raises(SystemExit):
        parity_table.parse(["--pfllib", str(tmp_path), "--page", "page.md"])
    assert "--page needs both checkouts" in capsys.readouterr().err


def test_every_part_of_a_case_is_known_and_every_reason_is_of_a_part() -> None:
    for case in pfllib.CASES:
        assert set(case.parts) <= pfllib.PARTS.keys()
        assert case.reasons.keys() | set(case.proximal) <= set(case.parts)


def test_the_page_shows_every_comparison_and_no_failure() -> None:
    text = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
    for case in pfllib.CASES:
        assert text.count(f"| {case.theirs} | {case.ours} | ") == len(pfllib.RATES), "run: make parity"
    assert "| released FedAPA | fedapa-reference | " in text
    assert "DIFFERS" not in text


@pytest.mark.skipif(not all(CHECKOUTS), reason="set FEDAPA_PARITY_AUTHORS and FEDAPA_PARITY_PFLLIB to their checkouts")
def test_both_codes_are_ours_in_lockstep() -> None:
    words = ["--authors", CHECKOUTS[0], "--pfllib", CHECKOUTS[1]]
    done = subprocess.run([sys.executable, parity_table.__file__, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
