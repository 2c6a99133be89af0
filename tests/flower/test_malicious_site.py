"""A site that sends updates which stay within the bounds of a single upload and still ruin the model of all."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import damage
import numpy as np
import pytest
import torch
from fleet import NAMES, Direct, config_text, grid, make_sites, over_grid, terms_of
from flwr.app import Message

from fedapa.config.load import check, dump
from fedapa.core.directions import cosines_to_others
from fedapa.core.tree import Tree
from fedapa.errors import RunError
from fedapa.federation import enrolment, run_federation
from fedapa.federation.enrolment import Agreement
from fedapa.federation.registry import Enrolled
from fedapa.federation.run_federation import make_agreement
from fedapa.federation.site_agent import read_config
from fedapa.methods.catalogue import make
from fedapa.methods.wrappers import decoded
from fedapa.rounds.upload_limits import Limits, change_between
from fedapa.simulation import Result
from fedapa.transports.flower.serialization import pack, unpack


class Scaling(Direct):
    """Amber sends its update times a factor."""

    def __init__(self, sites: list[Path], factor: float) -> None:
        super().__init__(sites)
        self.factor = factor

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if message.metadata.dst_node_id == 100 and reply is not None and reply.content["answer"]["trained"]:
            down, up = unpack(message.content["down"]), unpack(reply.content["up"])
            reply.content["up"] = pack({name: self._scaled(name, leaf, down) for name, leaf in up.items()})
        return reply

    def _scaled(self, name: str, leaf: torch.Tensor, down: Tree) -> torch.Tensor:
        return down[name] + self.factor * (leaf - down[name]) if name in down else leaf


def played(folder: Path, method: str, factor: float, ratio: float, cosine: float = -1.0) -> Result:
    terms = terms_of(config_text(method, rounds=8, participation=(1.0, 1.0)))
    limits = Limits(ratio=ratio, cosine=cosine)
    return over_grid(grid(Scaling(make_sites(folder), factor), terms), terms, limits=limits)


def honest_score(result: Result) -> float:
    """Share of the honest sites' test samples that their models get right in the end."""
    counts = result.logs[-1].after
    assert counts is not None
    return float(counts[1:, 0, 0].sum() / counts[1:, 0, 1].sum())


def refused(result: Result) -> set[int | None]:
    return {event.client for log in result.logs for event in log.events if event.kind == "refused"}


def test_the_extreme_is_refused_before_the_honest(tmp_path: Path) -> None:
    honest = played(tmp_path / "honest", "fedavg", 1.0, 10.0)
    assert refused(honest) == set()
    ruined = played(tmp_path / "ruined", "fedavg", -20.0, math.inf)
    assert {1, 2, 3} & refused(ruined) or honest_score(ruined) < honest_score(honest) - 0.2
    held = played(tmp_path / "held", "fedavg", -20.0, 10.0)
    assert refused(held) == {0}
    assert "more than 10 times" in held.logs[0].events[0].text
    assert "is in quarantine" in held.logs[-1].events[0].text  # after three rounds it is not asked any more
    assert abs(honest_score(held) - honest_score(honest)) < 0.05


def test_the_table_of_damage_is_what_is_measured() -> None:
    """FedAvg under a flipped sign, without a bound, with the default and with the strict one."""
    page = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| sign flip |"))
    stated = [cell.split() for cell in row.split("|")[2].split(" → ")]
    found = [damage.honest_percent("fedavg", "sign flip", limits).split() for limits in damage.BOUNDS]
    assert [float(cell[0]) for cell in found] == pytest.approx([float(cell[0]) for cell in stated], abs=2)
    assert [len(cell) > 1 for cell in found] == [len(cell) > 1 for cell in stated]  # was somebody honest refused?


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedapa", "fedapa-exact", "fedamp", "dbe"])
def test_honest_sites_of_different_size_stay_within(method: str, tmp_path: Path) -> None:
    result = played(tmp_path, method, 1.0, 10.0)
    assert refused(result) == set()
    assert result.state.round == 8


@pytest.mark.parametrize(
    ("changes", "extreme"),
    [
        ({0: 1.0, 1: 2.0, 2: 20.1}, {2}),
        ({0: 1.0, 1: 2.0, 2: 19.9}, set()),
        ({0: 1.0, 1: 100.0}, set()),  # which of two is the odd one?
        ({0: 1.0, 1: 1.0, 2: None, 3: 100.0}, {3}),
        ({0: 0.0, 1: 0.0, 2: 5.0}, set()),  # where most have nothing to learn, whoever has is not malicious
        ({0: 1.0, 1: 50.0, 2: 60.0, 3: 1.0, 4: 1.0}, {1, 2}),
    ],
)
def test_extremes_by_hand(changes: dict[int, float | None], extreme: set[int]) -> None:
    assert set(Limits(ratio=10.0).find_extremes(changes)) == extreme
    assert Limits().find_extremes(changes) == {}


def test_the_norm_of_an_update() -> None:
    down = {"theta": torch.tensor([1.0, 1.0]), "flag": torch.tensor([True])}
    up = {"theta": torch.tensor([4.0, 5.0]), "n": torch.tensor([7.0]), "flag": torch.tensor([False])}
    assert change_between(up, down) == 5.0
    assert change_between({"sums": torch.ones(3)}, down) is None


def test_a_flipped_sign_of_normal_size_is_refused_by_its_direction(tmp_path: Path) -> None:
    """Labels are so skewed that an honest site may be refused once; it is the malicious one that is quarantined."""
    honest = played(tmp_path / "honest", "fedavg", 1.0, 10.0, cosine=-0.2)
    assert refused(honest) == set()
    ruined = played(tmp_path / "ruined", "fedavg", -1.0, 10.0)
    assert refused(ruined) == set()  # its norm is that of the others
    assert honest_score(ruined) < honest_score(honest) - 0.2
    held = played(tmp_path / "held", "fedavg", -1.0, 10.0, cosine=-0.2)
    texts = [event.text for log in held.logs for event in log.events if event.client == 0]
    assert "to the median of the others', less than -0.2" in texts[0]
    assert "is in quarantine" in texts[-1]
    assert honest_score(held) > honest_score(ruined) + 0.3  # two rounds passed before it was noticed
    assert honest_score(held) > honest_score(honest) - 0.1


def test_coded_uploads_are_held_to_the_bounds_of_a_round(tmp_path: Path) -> None:
    """Their names are other ones than what was sent: decoded, they can be compared."""

    class Loud(Direct):
        def answer(self, message: Message) -> Message | None:
            reply = super().answer(message)
            if message.metadata.dst_node_id == 100 and reply is not None and reply.content["answer"]["trained"]:
                up = unpack(reply.content["up"])
                wide = {name: leaf * -20 if name.endswith(".range") else leaf for name, leaf in up.items()}
                reply.content["up"] = pack(wide)
            return reply

    terms = terms_of(config_text("fedavg+quantised", rounds=3, participation=(1.0, 1.0)))
    result = over_grid(grid(Loud(make_sites(tmp_path)), terms), terms, limits=Limits(ratio=10.0))
    assert refused(result) == {0}
    assert "more than 10 times" in result.logs[0].events[0].text


class Recoded(Direct):
    """Amber changes what describes its coded tensors, and nothing else."""

    def __init__(self, sites: list[Path], ending: str, value: torch.Tensor) -> None:
        super().__init__(sites)
        self.ending, self.value = ending, value

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if message.metadata.dst_node_id == 100 and reply is not None and reply.content["answer"]["trained"]:
            up = unpack(reply.content["up"])
            assert any(name.endswith(self.ending) for name in up)
            changed = {k: self.value.to(leaf.dtype) if k.endswith(self.ending) else leaf for k, leaf in up.items()}
            reply.content["up"] = pack(changed)
        return reply


@pytest.mark.parametrize(
    ("method", "ending", "value", "said"),
    [
        ("fedproto+quantised", ".shape", [3, 3], "sums.shape is [3, 3], expected [10, 64]"),
        ("fedproto+top", ".shape", [2**40, 64], "sums.shape is [1099511627776, 64], expected [10, 64]"),
        ("fedproto+top", ".shape", [-1, 5], "sums.shape is [-1, 5], expected [10, 64]"),
        ("fedavg+quantised", ".range", [-3e38, 3e38], "has norm"),  # both finite, their difference is not
    ],
)
def test_no_coded_upload_ends_the_run_of_all(
    method: str, ending: str, value: list[float], said: str, tmp_path: Path
) -> None:
    terms = terms_of(config_text(method, rounds=2, participation=(1.0, 1.0)))
    bad = Recoded(make_sites(tmp_path), ending, torch.tensor(value))
    result = over_grid(grid(bad, terms), terms, limits=Limits(ratio=10.0))
    assert refused(result) == {0}
    assert all(said in event.text for log in result.logs for event in log.events)
    assert [sorted(log.trained) for log in result.logs] == [[1, 2, 3]] * 2


def test_counts_of_many_classes_are_held_to_what_was_declared() -> None:
    """Counts are never coded, and coded tensors have the bounds of plain ones: sums those of a site's rows."""
    method, task = make("fedproto+quantised"), SimpleNamespace(sizes=torch.tensor([50.0]))
    down = {"prototypes": torch.zeros(20, 16)}
    counts = torch.zeros(20).index_fill(0, torch.tensor([0]), 50.0)
    up = {"sums": torch.full((20, 16), 30.0), "counts": counts}
    honest = method.encode(task, down, up, SimpleNamespace(random=lambda: np.random.default_rng(0)))
    assert torch.equal(honest["counts"], counts)
    assert "sums.codes" in honest
    limits = Limits(classes=[frozenset({0})])

    def excess(up: Tree) -> str | None:
        return limits.find_excess(task, 0, decoded(method, down, up), down, method.roles)

    assert excess(honest) is None
    assert excess({**honest, "counts": counts * 2}) == "counts is 100, it declared 50 samples"
    other = counts.roll(3)
    assert excess({**honest, "counts": other}) == "it counts samples of class 3, which it did not declare"


def opposed(cosine: float, *rows: list[float]) -> dict[int, str]:
    return Limits(cosine=cosine).find_opposed({i: {"theta": torch.tensor(row)} for i, row in enumerate(rows)})


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]], {2}),
        ([[1.0, 0.0], [1.0, 0.1], [0.5, 0.1]], set()),
        ([[1.0, 0.0], [-1.0, 0.0]], set()),  # which of two is the odd one?
        ([[1.0, 0.0], [1.0, 0.2], [1.0, -0.2], [-9.0, 0.0], [-9.0, 0.1]], {3, 4}),
        ([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], {0}),  # two against two: nobody can tell; at most one goes
        ([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]], set()),  # nothing to learn is no offence
    ],
)
def test_directions_by_hand(rows: list[list[float]], found: set[int]) -> None:
    assert set(opposed(0.0, *rows)) == found
    assert opposed(-1.0, *rows) == {}


def test_the_opposed_does_not_make_the_honest_look_odd() -> None:
    """Beside two of five that attack, the first of the honest points away from the others; without them it does not."""
    rows = [[1.0, 1.0], [1.0, 0.9], [0.9, 1.0], [-5.0, -5.0], [-5.0, 5.0]]
    assert cosines_to_others([{"theta": torch.tensor(row)} for row in rows])[0] < 0
    assert set(opposed(0.9, *rows)) == {3, 4}


def test_updates_with_other_tensors_are_not_compared() -> None:
    updates = {i: {"theta": torch.tensor([1.0, 0.1 * i])} for i in range(3)}
    assert Limits(cosine=0.0).find_opposed({**updates, 3: {"head": torch.tensor([-1.0])}, 4: {}}) == {}


# ------------------------------------------------------------------------------ what a site says before it sends

NUMBERS = {"data": {"source": "diabetes", "clients": 4, "min_train": 30}, "objective": {"name": "regression"}}


class Boasting(Direct):
    """Amber says other things about its data than are true."""

    def __init__(self, sites: list[Path], **said: object) -> None:
        super().__init__(sites)
        self.said = said

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if message.metadata.dst_node_id == 100 and reply is not None:
            for name, value in self.said.items():
                reply.content["description"][name] = value
        return reply


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_federation, "POLL", 0.0)


def agreed_with(folder: Path, text: str, **said: object) -> Agreement:
    sites = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]
    return make_agreement(Boasting(make_sites(folder), **said), sites, read_config(text), text)


def test_a_site_does_not_outweigh_all_others_by_the_rows_it_declares(tmp_path: Path) -> None:
    """FedAvg weighs by rows: with a billion of them, an update of normal size would be the model of all."""
    assert agreed_with(tmp_path, config_text("fedavg")).terms.names == NAMES
    with pytest.raises(RunError, match=r"site amber says that it has 1000000000 of \d+ training rows") as refused:
        agreed_with(tmp_path, config_text("fedavg"), train=10**9)
    assert "federation.max_share" in f"{refused.value.message} {refused.value.hint}"
    text = config_text("fedavg").replace("max_share = 0.8", "max_share = 1.0")
    assert agreed_with(tmp_path, text, train=10**9).terms.sizes[0] == 10**9  # it may be true


def test_a_late_site_does_not_either(tmp_path: Path) -> None:
    agreement = agreed_with(tmp_path, config_text("fedavg"))
    members = enrolment.Enrolment(Direct([]), list, tmp_path, agreement, max_share=0.5)
    late = agreement.descriptions[0]
    small, large = replace(late, site="elm"), replace(late, site="elm", train=sum(agreement.terms.sizes) + 1)
    assert members._fitting(small) == small
    with pytest.raises(RunError, match="site elm says that it has"):
        members._fitting(large)


FALSE_TARGETS = [
    [1e300, 1e300, 1e300],  # its square is no number
    [0.0, 0.0, 0.0],
    [1e9, 0.0, 0.0],  # more rows than it trains on
    [None, 1e90, 1e200],
    [None, 1e4, 1.0],  # no numbers have such a sum and such squares
    [None, 1e6, 1e14],  # on average beyond the agreed range
    [None, 0.0, 1e14],  # and these so on average of their squares
]


def test_one_site_does_not_scale_the_numbers_of_all(tmp_path: Path) -> None:
    raw = {"methods": ["fedavg"], "model": {"name": "mlp"}, "run": {"engine": "torch"}, **NUMBERS}
    text = dump(check({**raw, "layout": {"label": "progression", "target_range": [0.0, 400.0]}}))
    honest = agreed_with(tmp_path, text)
    mean, std = honest.terms.target
    assert 100 < mean < 200
    assert 50 < std < 100
    rows = float(honest.terms.sizes[0])
    for target in FALSE_TARGETS:
        with pytest.raises(RunError, match=r"site amber (sent an inconsistent description|has numbers to predict out)"):
            agreed_with(tmp_path, text, target=[rows if value is None else value for value in target])
