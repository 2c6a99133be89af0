"""Coded uploads: by hand, by expectation, and every law."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import stats

from fedapa.core.tree import count_bytes, find_fault, grown
from fedapa.data.federated import Split
from fedapa.errors import InputError
from fedapa.methods.apple import APPLE
from fedapa.methods.catalogue import METHODS, make
from fedapa.methods.fedapa import FedAPA
from fedapa.methods.fedapa_exact import FedAPAExact
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.method import Roles
from fedapa.methods.pfedhn import PFedHN
from fedapa.methods.privacy import NOT_COVERED, from_json, told
from fedapa.methods.wrappers import Noised, Quantised, Top, Wrapped, account_of, pack, unpack
from fedapa.streams import stream
from fedapa.training.local import Entropy, Local, Normal
from fedapa.verify import LAWS
from fedapa.verify.case import Case

CASE = Case(FedAPA())


def toolbox(memory: dict[str, torch.Tensor] | None = None, round: int = 0) -> Local:
    data = Split(torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64))
    return Local(CASE.task, 0, round, 3, data, memory or {})


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["fedapa+quantised", "fedavg+top", "fedapa+noised", "local+noised"])
def test_law(name: str, law: str) -> None:
    LAWS[law](Case(make(name)))


def test_a_wrapper_passes_on_the_claims_that_hold_around_it() -> None:
    claims = make("fedala+quantised+ema").claims()
    assert claims.adapts
    assert claims.jumps  # of the wrapper inside
    assert not claims.limits  # a coded FedALA without mixing is not FedAvg
    assert make("fedprox+top").claims().regularisers == ()  # a wrapper has no mu that could be 0
    shared = Quantised(FedAPA(buffer="shared")).claims()
    assert shared.ordered
    assert shared.bare == Quantised(FedAPA(buffer="shared").claims().bare)
    assert make("fedavg+top").claims().surrogate is None


@pytest.mark.parametrize("bits", [1, 3, 8, 11, 16])
def test_packing_is_exact_and_tight(bits: int) -> None:
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, 2**bits, 100).astype(np.int32))
    packed = pack(codes, bits)
    assert len(packed) == math.ceil(100 * bits / 8)
    assert torch.equal(unpack(packed, bits, 100), codes)


def test_quantised_changes_are_right_on_average() -> None:
    method, down = Quantised(FedAvg(), bits=2), {"omega": torch.full((32,), 5.0)}
    up = {"omega": 5.0 + torch.linspace(-1, 2, 32), "n": torch.tensor([7.0])}
    found = [method.decode(down, method.encode(CASE.task, down, up, toolbox(round=t)))["omega"] for t in range(500)]
    levels = {round(float(v), 4) for v in torch.cat(found)}
    assert levels == {4.0, 5.0, 6.0, 7.0}  # four levels from the smallest to the largest change
    torch.testing.assert_close(torch.stack(found).mean(0), up["omega"], atol=0.12, rtol=0)


def test_quantised_uploads_cost_their_bits() -> None:
    up = {"theta": torch.randn(1000), "n": torch.tensor([7.0])}
    for bits in (4, 8):
        coded = Quantised(FedAvg(), bits=bits).encode(CASE.task, {"theta": torch.zeros(1000)}, up, toolbox())
        assert count_bytes(coded) == 1000 * bits // 8 + 8 + 4
    raw = Quantised(FedAvg()).encode(CASE.task, {}, {"means": torch.randn(20, 5)}, toolbox())
    assert Quantised(FedAvg()).decode({}, raw)["means"].shape == (20, 5)


def test_what_was_left_out_is_sent_later() -> None:
    """Changes 1..20, a tenth of them travels: 19 and 20 first, then 17 + 17 and 18 + 18."""
    method, down = Top(FedAvg(), share=0.1), {"omega": torch.zeros(20)}
    up, local = {"omega": torch.arange(1.0, 21.0)}, toolbox()
    first = method.encode(CASE.task, down, up, local)
    assert (first["omega.places"].tolist(), first["omega.values"].tolist()) == ([18, 19], [19.0, 20.0])
    assert local.memory["feedback/omega"].tolist() == [*range(1, 19), 0, 0]
    second = method.encode(CASE.task, down, up, toolbox(local.memory))
    assert (second["omega.places"].tolist(), second["omega.values"].tolist()) == ([16, 17], [34.0, 36.0])
    plain = method.decode(down, first)["omega"]
    assert plain.tolist() == [0.0] * 18 + [19.0, 20.0]


def test_large_negative_changes_travel_too() -> None:
    up = {"omega": torch.tensor([(-1.0) ** k * k for k in range(20)])}
    coded = Top(FedAvg(), share=0.1).encode(CASE.task, {"omega": torch.zeros(20)}, up, toolbox())
    assert coded["omega.values"].tolist() == [18.0, -19.0]


def test_places_outside_change_nothing_outside() -> None:
    method = Top(FedAvg(), share=0.1)
    hostile = {"omega.places": torch.tensor([-5, 999], dtype=torch.int32), "omega.values": torch.ones(2)}
    assert method.decode({"omega": torch.zeros(20)}, hostile)["omega"].shape == (20,)


def test_clipping_and_noise() -> None:
    down, up = {"theta": torch.ones(4)}, {"theta": torch.tensor([4.0, 5.0, 1.0, 1.0]), "n": torch.tensor([9.0])}
    clean = Noised(FedAvg(), norm=1.0, noise=0.0).encode(CASE.task, down, up, toolbox())
    torch.testing.assert_close(clean["theta"], torch.tensor([1.6, 1.8, 1.0, 1.0]))  # (3, 4) has norm 5
    assert clean["n"].item() == 9.0
    small = Noised(FedAvg(), norm=10.0, noise=0.0).encode(CASE.task, down, up, toolbox())
    torch.testing.assert_close(small["theta"], up["theta"])
    both = {"theta": torch.tensor([3.0]), "phi": torch.tensor([4.0])}  # 5 together
    joint = Noised(FedAvg(), norm=1.0, noise=0.0).encode(
        CASE.task, {k: v * 0 for k, v in both.items()}, both, toolbox()
    )
    torch.testing.assert_close(joint, {"theta": torch.tensor([0.6]), "phi": torch.tensor([0.8])})
    zero = {"theta": torch.zeros(20_000)}
    noisy = Noised(FedAvg(), norm=2.0, noise=1.5).encode(CASE.task, zero, zero, toolbox())["theta"]
    assert float(noisy.std()) == pytest.approx(3.0, rel=0.03)
    unknown = Case(make("fedproto+noised"))
    with pytest.raises(InputError, match="FedProto uploads"):
        unknown.run(1)


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (10.0, 20), (5.0, 50), (1.0, 10), (0.3, 5)])
def test_epsilon_is_what_its_definition_says(noise: float, rounds: int) -> None:
    """delta = integral of (p - e^epsilon q)+ over what is seen: the sum of the rounds with and without a change."""
    sigma, epsilon = noise / rounds**0.5, Noised(FedAPA(), noise=noise, delta=1e-5).epsilon(rounds)
    seen = np.linspace(0.5 - 40 * sigma, 0.5 + 40 * sigma, 4_000_001)
    p, q = stats.norm.logpdf(seen, 1.0, sigma), stats.norm.logpdf(seen, 0.0, sigma)
    excess = np.exp(p) - np.exp(np.minimum(epsilon + q, p))
    assert float(np.trapezoid(excess, seen)) == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (10.0, 20), (5.0, 50), (1.0, 10), (0.05, 10), (0.01, 200)])
def test_epsilon_is_a_little_below_the_account_of_opacus(noise: float, rounds: int) -> None:
    """Renyi's account is an upper bound."""
    accountants = pytest.importorskip("opacus.accountants", reason="opacus is not installed")
    accountant = accountants.RDPAccountant()
    accountant.history = [(noise, 1.0, rounds)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its grid of orders ends too early for little noise
        bound = accountant.get_epsilon(1e-5)
    assert bound / 1.15 <= Noised(FedAPA(), noise=noise).epsilon(rounds) <= bound


def test_epsilon_without_noise_or_rounds() -> None:
    assert Noised(FedAPA(), noise=0.0).epsilon(1) == math.inf
    assert Noised(FedAPA()).epsilon(0) == 0.0
    assert Noised(FedAPA(), noise=1e6, delta=0.5).epsilon(1) == 0.0


# --- the noise -----------------------------------------------------------------------------------


def noises(client: int, round: int, entropy: Normal | None = None) -> list[np.ndarray]:
    """What is added to two tensors of the same shape."""
    zero = {"theta": torch.zeros(4000), "phi": torch.zeros(4000)}
    local = replace(toolbox(round=round), client=client, entropy=entropy)
    up = Noised(FedAvg(), norm=1.0, noise=1.0).encode(CASE.task, zero, zero, local)
    return [up[name].numpy() for name in zero]


@pytest.mark.parametrize("entropy", [None, Entropy()], ids=["simulated", "real"])
def test_clients_rounds_and_tensors_have_noise_of_their_own(entropy: Normal | None) -> None:
    found = [noise for client in (0, 1) for round in (0, 1) for noise in noises(client, round, entropy)]
    likeness = np.abs(np.corrcoef(found) - np.eye(8))
    assert likeness.max() < 5 / 4000**0.5
    assert np.std(found) == pytest.approx(1.0, rel=0.02)


def test_simulated_noise_is_seeded_and_real_noise_is_not() -> None:
    assert all(np.array_equal(a, b) for a, b in zip(noises(0, 0), noises(0, 0), strict=True))
    same = stream(3, "visit", 0, 0, 1).standard_normal(8000, dtype=np.float32)
    np.testing.assert_array_equal(np.concatenate(noises(0, 0)), same)
    one, other = noises(0, 0, Entropy()), noises(0, 0, Entropy())
    assert not np.array_equal(one[0], other[0])
    assert abs(np.corrcoef(one[0], other[0])[0, 1]) < 5 / 4000**0.5


def test_private_noise_moves_no_other_stream() -> None:
    """Whatever is drawn after it has the same key in a simulation and at a real site."""
    boxes = [toolbox(), replace(toolbox(), entropy=Entropy())]
    for box in boxes:
        box.private().normal(3)
    assert boxes[0].random().random() == boxes[1].random().random()


def test_entropy_is_normal_and_never_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Entropy().normal(200_000)
    assert drawn.dtype == np.float32
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    for byte in (b"\0", b"\xff"):
        with monkeypatch.context() as patch:
            patch.setattr("fedapa.training.local.secrets.token_bytes", lambda count, byte=byte: byte * count)
            assert 8 < abs(float(Entropy().normal(1)[0])) < 9


# --- what is said about it -----------------------------------------------------------------------


def test_the_words_of_an_account() -> None:
    method = make("fedapa+noised+quantised", noise=1.0)
    simulated, real = (account_of(method, 10, simulated=flag) for flag in (True, False))
    assert simulated is not None
    assert real is not None
    assert account_of(make("fedapa+quantised"), 10, simulated=True) is None
    assert (simulated.short(), real.short()) == ("17.9 (simulated)", "17.9")
    assert simulated.lines()[0].startswith("Simulated noise: it is drawn from the run's seed and protects nobody.")
    assert "epsilon 17.9 at delta 1e-05 over 10 rounds" in simulated.lines()[0]
    assert "protects nobody" not in "".join(real.lines())
    assert all(
        lines[1:] == [f"Not covered by epsilon: {part}." for part in NOT_COVERED]
        for lines in (simulated.lines(), real.lines())
    )
    both = told({"fedapa+noised": simulated, "fedavg+noised": simulated})
    assert both[0].startswith("fedapa+noised, fedavg+noised: simulated noise")
    assert both[1:] == simulated.lines()[1:]
    assert from_json(simulated.to_json()) == simulated._replace(epsilon=float(f"{simulated.epsilon:.8g}"))
    silent = Noised(FedAvg(), noise=0.0).account(10, simulated=False)
    assert silent.lines() == [
        "Uploads are clipped to norm 1 and carry noise of 0 norms: without noise nothing is protected."
    ]
    assert from_json(silent.to_json()) == silent


def test_noise_that_drowns_the_model_is_told_before() -> None:
    """300 weights of 0.1 have norm 1.73, and so has noise of 0.1; 4 rounds of 4 clients: a walk of 1.73 against 4."""
    down = {"theta": torch.full((300,), 0.1), "phi": torch.zeros(5)}
    up = {"theta": down["theta"], "n": torch.ones(1)}
    assert (CASE.task.clients, CASE.task.rounds) == (4, 4)
    found = {noise: Noised(FedAPA(), noise=noise).doubts(CASE.task, down, up) for noise in (0.09, 0.11, 0.24)}
    assert found[0.09] == []
    (loud,) = found[0.11]
    assert "one upload carries noise of norm 1.91, the model itself has norm 1.73: training may diverge" in loud
    assert (
        "in 4 rounds uploads of 4 clients can move their mean by 4 at most, their noise moves it by about 4.16"
        in (found[0.24][1])
    )
    (lost,) = Noised(FedAPA(), norm=0.01, noise=1.0).doubts(CASE.task, down, up)
    assert "little can be learned" in lost


def test_names_and_settings() -> None:
    method = make("fedapa+noised+quantised", eta=0.5, bits=4, norm=2.0)
    assert method == Quantised(Noised(FedAPA(eta=0.5), norm=2.0), bits=4)
    with pytest.raises(InputError, match="unknown wrapper 'zipped'"):
        make("fedapa+zipped")
    with pytest.raises(InputError, match="has no hyper-parameter 'bit'"):
        make("fedapa+quantised", bit=3)
    with pytest.raises(InputError, match="outside its legal range"):
        make("fedapa+quantised", bits=17)


@pytest.mark.parametrize("wrapper", [Quantised(FedAvg()), Quantised(FedAvg(), bits=3), Top(FedAvg()), Noised(FedAvg())])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_model_that_diverged_cannot_hide_behind_codes(wrapper: Wrapped, bad: float) -> None:
    up = {"omega": torch.ones(40)}
    up["omega"][7] = bad
    coded = wrapper.encode(CASE.task, {"omega": torch.zeros(40)}, up, toolbox())
    assert find_fault(coded, coded) is not None


# --- room for one more client --------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_new_client_changes_nobody_elses_messages(name: str) -> None:
    case = Case(make(name))
    done, task = case.run(2), case.task
    larger = replace(task, sizes=torch.cat([task.sizes, torch.tensor([9])]))
    if name.startswith("pfedla"):
        with pytest.raises(InputError, match="cannot take another client"):
            case.method.admit(larger, done.server)
        return
    server = case.method.admit(larger, done.server)
    like, _ = case.method.init(larger, 7)
    assert {k: v.shape for k, v in server.items()} == {k: v.shape for k, v in like.items()}
    new = case.method.send(larger, server, 4)
    assert all(bool(torch.isfinite(leaf.float()).all()) for leaf in new.values())
    if name not in ("apple", "fedamp", "fedamp-heur"):  # there everybody's message is made of everybody's model
        for i in range(4):
            before, after = case.method.send(task, done.server, i), case.method.send(larger, server, i)
            assert all(torch.allclose(before[k], after[k], atol=1e-6) for k in before)


def test_fedapa_starts_a_new_client_from_the_mean() -> None:
    """The rule: theta_new is the mean of all rows, A_new = e_new."""
    method, done = FedAPA(), CASE.run(2)
    larger = replace(CASE.task, sizes=torch.cat([CASE.task.sizes, torch.tensor([9])]))
    server = method.admit(larger, done.server)
    torch.testing.assert_close(method.send(larger, server, 4)["theta"], done.server["theta"].mean(0))
    assert server["A"][4].tolist() == [0, 0, 0, 0, 1]
    assert server["A"][:4, 4].tolist() == [0, 0, 0, 0]
    assert server["velocity"][4].tolist() == server["velocity"][:, 4].tolist() == [0] * 5


@pytest.mark.parametrize("rule", ["cut", "noise", "leave-one-out", "stability"])
def test_fedapa_exact_starts_a_new_client_from_the_mean_and_nobody_mixes_it(rule: str) -> None:
    method = FedAPAExact(rule=rule)  # type: ignore[arg-type]
    case = Case(method)
    done, larger = case.run(2), case.task.with_client("", 9)
    server = method.admit(larger, done.server)
    torch.testing.assert_close(method.send(larger, server, 4)["theta"], done.server["theta"].mean(0))
    old = {k: v for k, v in done.server.items() if k != "theta"}
    for name, leaf in old.items():
        torch.testing.assert_close(server[name][tuple(slice(0, n) for n in leaf.shape)], leaf)
    assert server["heard"][4] == 0
    ups = [{"theta": server["theta"][i] + 0.1} for i in range(4)]
    downs = [method.send(larger, server, i) for i in range(4)]
    after = method.absorb(larger, server, range(4), downs, ups)
    assert after["A"][0, :4, 4].tolist() == [0, 0, 0, 0]


def test_a_hypernetwork_keeps_its_length_of_embeddings() -> None:
    """int(1 + M / 4) would be one longer for eight clients than for seven."""
    method = PFedHN()
    server, _ = method.init(replace(CASE.task, sizes=torch.full((7,), 9)), 0)
    larger = replace(CASE.task, sizes=torch.full((8,), 9))
    grew = method.admit(larger, server)
    assert grew["v"].shape == (8, 2)
    torch.testing.assert_close(grew["v"][7], server["v"].mean(0))
    assert method.admit(larger, {**server, "velocity_v": server["v"]})["velocity_v"][7].tolist() == [0, 0]
    down = method.send(larger, grew, 7)
    after = method.absorb(larger, grew, [7], [down], [{k: v + 0.1 for k, v in down.items()}])
    assert after["v"].shape == (8, 2)
    assert not torch.equal(after["v"][7], grew["v"][7])


def test_apple_gives_a_new_client_no_weight_at_the_others() -> None:
    method, case = APPLE(), Case(APPLE())
    done, larger = case.run(2), case.task.with_client("", 9)
    server = method.admit(larger, done.server)
    before, was = done.records[0].state, method.send(case.task, done.server, 0)
    local, now = replace(case.local(0, 2, done.records[0]), task=larger), method.send(larger, server, 0)
    old = method.receive(case.task, before, was, case.local(0, 2, done.records[0]))
    new = method.receive(larger, before, now, local)
    assert new["p"].tolist() == [*before["p"].tolist(), 0.0]
    assert all(torch.allclose(old[k], new[k], atol=1e-6) for k in ("theta", "phi"))
    trained, _ = method.train(larger, new, now, local)
    assert trained["p"][4] != 0  # it can learn to
    assert len(local.memory["main/p"]) == 5


def test_what_cannot_grow() -> None:
    with pytest.raises(InputError, match="psi cannot take another client"):
        grown({"psi": torch.zeros(3, 6)}, {"psi": torch.zeros(4, 8)})


def test_momentum_is_known_by_its_role_not_by_its_name() -> None:
    square, rows = torch.full((3, 3), 0.5), torch.ones(3, 2)
    larger = {"velocity": torch.zeros(4, 4), "speed": torch.zeros(4, 4), "way": torch.zeros(4, 2)}
    new = grown({"velocity": square, "speed": square, "way": rows}, larger, ["speed", "way"])
    assert [new["velocity"][3, 3], new["speed"][3, 3]] == [1, 0]
    assert new["way"][3].tolist() == [0, 0]


def test_noise_leaves_alone_only_what_is_declared_as_the_number_of_samples() -> None:
    @dataclass(frozen=True)
    class Forgetful(FedAvg):
        roles: ClassVar[Roles] = {}

    down = {"omega": torch.ones(4)}
    up = {"omega": torch.zeros(4), "n": torch.tensor([7.0])}
    sent = Noised(FedAvg()).encode(CASE.task, down, up, toolbox())
    assert sent["n"] == 7
    assert not torch.equal(sent["omega"], up["omega"])
    with pytest.raises(InputError, match="Forgetful uploads n, which is no model that was sent before"):
        Noised(Forgetful()).encode(CASE.task, down, up, toolbox())
