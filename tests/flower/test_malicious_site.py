"""A site that sends updates which stay within the bounds of a single upload and still ruin the model of all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from fleet import Direct, config_text, grid, make_sites, over_grid, terms_of
from flwr.app import Message

from fedapa.core.directions import cosines_to_others
from fedapa.core.tree import Tree
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
