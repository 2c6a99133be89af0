"""Malicious clients: what they do by hand, who they are, and that everything else stays as it was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedapa.core.tree import equal
from fedapa.data.federated import Split, from_arrays
from fedapa.errors import InputError
from fedapa.methods.attack import Attack
from fedapa.methods.catalogue import make
from fedapa.methods.fedapa import FedAPA
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.malicious import Tampered, attacked, attackers, victim
from fedapa.methods.method import Role, Roles
from fedapa.training.local import Local
from fedapa.verify import LAWS
from fedapa.verify.case import Case

CASE = Case(FedAPA())
DOWN = {"omega": torch.tensor([1.0, 2.0, 3.0, 4.0]), "counts": torch.tensor([9.0, 9.0])}
UP = {"omega": torch.tensor([4.0, 2.0, 3.0, 0.0]), "counts": torch.tensor([2.0, 3.0]), "n": torch.tensor([5.0])}


KNOWING = [Tampered(FedAvg(), "near-copy", (1,), 0.1), Tampered(FedAPA(), "colluding", (0, 2), -0.5)]


@dataclass(frozen=True)
class Counting(FedAvg):
    """Uploads as UP."""

    roles: ClassVar[Roles] = {"n": Role.SAMPLES, "counts": Role.CLASS_COUNTS}


def toolbox(client: int, round: int = 0) -> Local:
    return Local(CASE.task, client, round, 3, Split(torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64)))


def sent(method: Tampered, client: int, round: int = 0) -> dict[str, torch.Tensor]:
    return method.encode(CASE.task, DOWN, UP, toolbox(client, round))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    "method", [Tampered(FedAPA(), "noise", (1,), 1.0), Tampered(FedAvg(), "scaled", (0, 2), -0.5), *KNOWING]
)
def test_law(method: Tampered, law: str) -> None:
    LAWS[law](Case(method))


def test_scaled_by_hand() -> None:
    """The update is (3, 0, 0, -4); times -2 it is (-6, 0, 0, 8), on top of what was sent."""
    upload = sent(Tampered(Counting(), "scaled", (1,), -2.0), 1)
    assert upload["omega"].tolist() == [-5.0, 2.0, 3.0, 12.0]
    assert (upload["counts"].tolist(), upload["n"].tolist()) == ([2.0, 3.0], [5.0])  # numbers of samples stay true


def learnt(method: Tampered, ids: list[int], ups: list[list[float]]) -> list[list[float]]:
    """What the method inside learns from, of clients that were all sent zeros."""
    seen: list[list[float]] = []

    @dataclass(frozen=True)
    class Spy(FedAvg):
        def absorb(self, task, server, ids, downs, ups):  # type: ignore[no-untyped-def]
            seen.extend(up["omega"].tolist() for up in ups)
            return server

    zeros = {"omega": torch.zeros(2)}
    given = [{"omega": torch.tensor(up)} for up in ups]
    replace(method, inner=Spy()).absorb(CASE.task, zeros, ids, [zeros] * len(ups), given)
    return seen


def test_a_near_copy_by_hand() -> None:
    """Clients 0 to 3; client 1 copies client 2, and adds a tenth of its own update."""
    method = Tampered(FedAvg(), "near-copy", (1,), 0.1)
    assert sent(method, 1) is UP  # it does not know its victim's model before that is sent
    ups = [[1.0, 0.0], [0.0, 10.0], [5.0, 5.0]]
    assert learnt(method, [0, 1, 2], ups) == [[1.0, 0.0], [5.0, 6.0], [5.0, 5.0]]
    assert learnt(method, [0, 1, 3], ups) == ups  # its victim did not answer
    assert [victim(i, (1, 2), 4) for i in (1, 2)] == [3, 3]
    assert victim(3, (3,), 4) == 0


def test_colluding_clients_send_the_same_by_hand() -> None:
    method = Tampered(Counting(), "colluding", (1, 3), -2.0)
    assert sent(method, 1)["omega"].tolist() == [-5.0, 2.0, 3.0, 12.0]  # as scaled
    ups = [[1.0, 0.0], [0.0, 10.0], [5.0, 5.0], [7.0, 7.0]]
    assert learnt(method, [0, 1, 2, 3], ups) == [*ups[:3], [0.0, 10.0]]
    x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 2])
    with pytest.raises(InputError, match="one client cannot collude"):
        attacked(FedAvg(), from_arrays([(x, y, x, y)] * 3), Attack("colluding", (1,), -5.0))


def test_of_several_models_the_update_is_that_of_the_closest() -> None:
    down = {"omega": torch.tensor([[0.0, 0.0], [10.0, 10.0]])}
    up = {"omega": torch.tensor([9.0, 10.0])}
    upload = Tampered(FedAvg(), "scaled", (1,), -2.0).encode(CASE.task, down, up, toolbox(1))
    assert upload["omega"].tolist() == [12.0, 10.0]


def test_noise_has_the_norm_of_the_update_and_nothing_else_of_it() -> None:
    method = Tampered(Counting(), "noise", (1,), 2.0)
    changes = [sent(method, 1, round=t)["omega"] - DOWN["omega"] for t in range(400)]
    for change in changes:
        assert float(change.norm()) == pytest.approx(10.0, rel=1e-5)  # |(3, 0, 0, -4)| = 5, twice
    assert float(torch.stack(changes).mean(0).abs().max()) < 1.0  # no direction: 10 / sqrt(4) / sqrt(400) = 0.25 apiece
    torch.testing.assert_close(sent(method, 1, round=7)["omega"] - DOWN["omega"], changes[7], rtol=0, atol=0)


def test_the_norm_of_several_models_is_their_joint_one() -> None:
    down = {"theta": torch.zeros(300), "phi": torch.zeros(100)}
    up = {"theta": torch.full((300,), 0.1), "phi": torch.full((100,), 0.1)}
    upload = Tampered(FedAvg(), "noise", (0,), 1.0).encode(CASE.task, down, up, toolbox(0))
    norms = {name: float(leaf.norm()) for name, leaf in upload.items()}
    assert norms["theta"] ** 2 + norms["phi"] ** 2 == pytest.approx(4.0, rel=1e-5)
    assert norms["theta"] > norms["phi"]


@pytest.mark.parametrize("kind", ["noise", "scaled"])
def test_the_honest_send_what_they_have(kind: str) -> None:
    assert sent(Tampered(FedAvg(), kind, (1,)), 0) is UP  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fedavg", "fedapa", "fedamp", "fedpac", "fedapa-exact"])
def test_an_update_times_one_is_the_update_and_without_attack_no_bit_differs(name: str) -> None:
    method = make(name)
    plain = Case(method).run()
    wrapped = Case(Tampered(method, "scaled", (0, 1), 1.0)).run()
    for key in plain.server:
        torch.testing.assert_close(wrapped.server[key], plain.server[key], rtol=1e-5, atol=1e-6)
    nobody = Case(Tampered(method, "scaled", (), -5.0)).run()
    assert equal(nobody.server, plain.server)


def test_malicious_clients_are_the_same_whoever_trains_first() -> None:
    case = Case(Tampered(FedAPA(), "noise", (0, 2), 1.0))
    assert equal(case.run(workers=3).server, case.run(workers=1).server)


@pytest.mark.parametrize("name", ["fedproto", "fedgh", "fedapa+quantised"])
def test_methods_without_a_model_to_tamper_with_are_refused(name: str) -> None:
    case = Case(Tampered(make(name), "scaled", (1,)))
    with pytest.raises(InputError, match="no update to tamper with"):
        case.run(1)


def test_local_has_nothing_to_tamper_with_and_does_not_mind() -> None:
    plain, wrapped = (Case(method).run() for method in (make("local"), Tampered(make("local"), "scaled", (1,))))
    assert all(equal(a.state, b.state) for a, b in zip(plain.records, wrapped.records, strict=True))


def test_flipped_labels_are_the_malicious_clients_train_labels_alone() -> None:
    x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 2])
    data = from_arrays([(x, y, x, y)] * 3)
    method, poisoned = attacked(FedAvg(), data, Attack("label-flip", (1,), 0.0))
    assert method == FedAvg()
    assert [client.train.y.tolist() for client in poisoned.clients] == [[0, 1, 2], [1, 2, 0], [0, 1, 2]]
    assert all(client.test.y.tolist() == [0, 1, 2] for client in poisoned.clients)
    assert poisoned.fingerprint == data.fingerprint  # the allocation is the same: runs with and without can be compared
    assert data.clients[1].train.y.tolist() == [0, 1, 2]


def test_which_clients_are_malicious() -> None:
    assert attackers([5, 0], 20, seed=3) == (0, 5)
    for seed in range(5):
        one, two, four = (set(attackers(n, 20, seed)) for n in (1, 2, 4))
        assert one < two < four
        assert len(four) == 4
    assert len({attackers(4, 20, seed) for seed in range(20)}) > 10
    assert attackers(4, 20, 1) == attackers(4, 20, 1)


@pytest.mark.parametrize("wanted", [0, 4, 9, [], [0, 1, 2, 3], [4], [-1]])
def test_which_clients_cannot_be_malicious(wanted: int | list[int]) -> None:
    with pytest.raises(InputError, match=r"attack\.clients"):
        attackers(wanted, 4, 0)


@pytest.mark.parametrize("factor", [float("nan"), "much"])
def test_a_factor_is_a_number(factor: object) -> None:
    with pytest.raises(InputError, match=r"Tampered\.factor"):
        Tampered(FedAvg(), "scaled", (0,), factor)  # type: ignore[arg-type]
