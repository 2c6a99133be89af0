"""Robust wrappers: by hand, under every law, and where they mean nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedapa.core.tree import Tree, equal
from fedapa.errors import InputError
from fedapa.methods.catalogue import make
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.malicious import Tampered
from fedapa.methods.robust import Bounded, Krum, Median, Robust, Round, Trimmed, centre, krum_scores
from fedapa.verify import LAWS
from fedapa.verify.case import Case

NAMES = ["fedavg+median", "fedper+trimmed", "fedapa-exact+krum", "ifca+bounded", "fedpac+median"]
TASK = Case(FedAvg()).task
LIAR = 1e3


def defended(method: Robust, uploads: list[list[float]], down: list[float], ids: list[int] | None = None) -> Round:
    """What FedAvg's server would learn from."""
    sent = [{"omega": torch.tensor(down)}] * len(uploads)
    ups: list[Tree] = [{"omega": torch.tensor(one), "n": torch.tensor([7.0])} for one in uploads]
    found = Round(ids or list(range(len(ups))), sent, ups)
    return method.defended(TASK, {"omega": torch.tensor(down)}, found, ["omega"])


def values(found: Round) -> list[list[float]]:
    return [up["omega"].tolist() for up in found.ups]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", NAMES)
def test_law(name: str, law: str) -> None:
    LAWS[law](Case(make(name)))


def test_bounded_by_hand() -> None:
    """Lengths 1, 2 and 10: the median is 2, and only the longest is shortened to it, in its own direction."""
    found = defended(Bounded(FedAvg()), [[2.0, 1.0], [1.0, 3.0], [7.0, 9.0]], [1.0, 1.0])
    assert values(found)[:2] == [[2.0, 1.0], [1.0, 3.0]]
    assert values(found)[2] == pytest.approx([1 + 0.6 * 2, 1 + 0.8 * 2])
    assert found.ups[2]["n"].item() == 7.0
    longer = defended(Bounded(FedAvg(), times=2.0), [[2.0, 1.0], [1.0, 3.0], [7.0, 9.0]], [1.0, 1.0])
    assert values(longer)[2] == pytest.approx([1 + 0.6 * 4, 1 + 0.8 * 4])


def test_bounded_leaves_what_is_within_bit_for_bit() -> None:
    ups = [[0.1, 0.7], [0.3, 0.2], [0.2, 0.5]]
    found = defended(Bounded(FedAvg(), times=100.0), ups, [0.0, 0.0])
    assert [torch.tensor(v).tolist() for v in ups] == values(found)


def test_krum_by_hand() -> None:
    """Five uploads at 0, 1, 2, 3 and 100: f = 1, each is scored by its two nearest, and 100 is left out."""
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]], dtype=torch.float64)
    assert krum_scores(rows, 2).tolist() == [5.0, 2.0, 2.0, 5.0, 97.0**2 + 98.0**2]
    found = defended(Krum(FedAvg()), [[v] for v in rows[:, 0].tolist()], [0.0], ids=[4, 6, 7, 8, 9])
    assert found.ids == [4, 6, 7, 8]
    assert len(found.downs) == len(found.ups) == 4
    assert len(defended(Krum(FedAvg(), left_out=0.0), [[0.0]] * 5, [0.0]).ids) == 5


def test_krum_compares_updates_not_models() -> None:
    """Clients of two groups were sent models far apart; who lies is the one whose update is unlike the others'."""
    downs: list[Tree] = [{"omega": torch.tensor([at])} for at in (0.0, 0.0, 500.0, 500.0, 500.0)]
    moves = (1.0, 1.2, 1.1, 0.9, -30.0)
    ups: list[Tree] = [{"omega": down["omega"] + move} for down, move in zip(downs, moves, strict=True)]
    found = Krum(FedAvg()).defended(TASK, {}, Round([0, 1, 2, 3, 4], downs, ups), ["omega"])
    assert found.ids == [0, 1, 2, 3]


def test_median_and_trimmed_mean_by_hand() -> None:
    leaves = [torch.tensor([v, -v]) for v in (5.0, 1.0, 2.0, 4.0, LIAR)]
    assert centre(leaves, 2).tolist() == [4.0, -4.0]
    assert centre(leaves[:4], 1).tolist() == [3.0, -3.0]
    assert centre(leaves, 1).tolist() == pytest.approx([11 / 3, -11 / 3])
    ups = [[v] for v in (5.0, 1.0, 2.0, 4.0, LIAR)]
    assert values(defended(Median(FedAvg()), ups, [0.0])) == [[4.0]] * 5
    assert values(defended(Trimmed(FedAvg()), ups, [0.0])) == [[pytest.approx(11 / 3)]] * 5
    assert values(defended(Trimmed(FedAvg(), cut=0.0), ups, [0.0]))[0][0] == pytest.approx((12 + LIAR) / 5)


def test_the_mean_that_fedavg_takes_is_the_median() -> None:
    given = ((1.0, 900.0), (2.0, 1.0), (9.0, 1.0))
    ups: list[Tree] = [{"omega": torch.full((3,), v), "n": torch.tensor([n])} for v, n in given]
    server = {"omega": torch.zeros(3)}
    new = Median(FedAvg()).absorb(TASK, server, [0, 1, 2], [server] * 3, ups)
    assert new["omega"].tolist() == [2.0] * 3  # although the first has nearly all samples


@pytest.mark.parametrize("wrapper", ["bounded", "krum", "trimmed", "median"])
def test_two_uploads_have_no_majority(wrapper: str) -> None:
    case = Case(FedAvg())
    server, downs, ups = case.visits()
    methods = FedAvg(), make(f"fedavg+{wrapper}")
    plain, robust = (method.absorb(case.task, server, [0, 1], downs[:2], ups[:2]) for method in methods)
    assert equal(plain, robust)


@pytest.mark.parametrize("wrapper", ["bounded", "krum", "trimmed", "median"])
def test_one_liar_is_kept_from_the_common_model(wrapper: str) -> None:
    settings: dict[str, Any] = {"krum": {"left_out": 0.34}, "trimmed": {"cut": 0.34}}.get(wrapper, {})
    server = {"omega": torch.zeros(4)}
    ups: list[Tree] = [{"omega": torch.full((4,), v), "n": torch.tensor([5.0])} for v in (1.0, 1.1, 0.9, 1.05, -LIAR)]
    new = make(f"fedavg+{wrapper}", **settings).absorb(TASK, server, [0, 1, 2, 3, 4], [server] * 5, ups)
    assert 0.5 < float(new["omega"].mean()) < 1.2
    assert float(FedAvg().absorb(TASK, server, [0, 1, 2, 3, 4], [server] * 5, ups)["omega"].mean()) < -100


@pytest.mark.parametrize("name", ["fedapa", "fedapa-exact", "pfedgraph", "cfl", "fedamp", "fedapa-scored", "fedfomo"])
def test_a_centre_of_models_of_their_own_is_refused(name: str) -> None:
    for wrapper in ("median", "trimmed"):
        with pytest.raises(InputError, match="sends every client a model of its own"):
            Case(make(f"{name}+{wrapper}")).run(1)


def test_only_what_is_common_is_centred() -> None:
    """FedPAC's extractor is everybody's, its heads are not."""
    method = make("fedpac+median")
    assert isinstance(method, Median)
    task = Case(method).task
    found = method.common(task, method.init(task, 0)[0])
    assert "theta" in found
    assert "phi" not in found


@pytest.mark.parametrize("name", ["fedproto+bounded", "fedgh+krum", "fedavg+quantised+median", "fedavg+top+bounded"])
def test_uploads_without_a_model_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="uploads no model that was sent before"):
        Case(make(name)).run(1)


def test_a_median_of_chosen_models_is_refused() -> None:
    with pytest.raises(InputError, match="no common centre"):
        Case(make("ifca+median")).run(1)


def test_one_upload_at_a_time_is_refused() -> None:
    with pytest.raises(InputError, match="one upload at a time"):
        make("fedapa-reference+krum")


def test_codes_are_decoded_before_updates_are_bounded() -> None:
    case = Case(make("fedavg+bounded+quantised"))
    assert case.run(2).server.keys() == Case(FedAvg()).run(1).server.keys()


def test_local_uploads_nothing_and_does_not_mind() -> None:
    plain, wrapped = (Case(make(name)).run() for name in ("local", "local+krum"))
    assert all(equal(a.state, b.state) for a, b in zip(plain.records, wrapped.records, strict=True))


@pytest.mark.parametrize("name", ["fedapa-exact+bounded", "fedavg+median"])
def test_attack_and_defence_go_together(name: str) -> None:
    case = Case(Tampered(make(name), "scaled", (1,), -50.0))
    assert all(torch.isfinite(leaf).all() for leaf in case.run().server.values() if leaf.is_floating_point())


def test_heads_of_their_own_stay() -> None:
    method = make("fedpac+median")
    case = Case(method)
    server, downs, ups = case.visits()
    assert isinstance(method, Median)
    found = method.defended(case.task, server, Round([0, 1, 2], downs, ups), ["theta", "phi"])
    assert torch.equal(found.ups[0]["theta"], found.ups[1]["theta"])
    assert [torch.equal(new["phi"], old["phi"]) for new, old in zip(found.ups, ups, strict=True)] == [True] * 3
