"""FedFomo: its weights by hand and on held-out samples, who is offered to whom, and what happens if nobody helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import count_bytes
from fedapa.data.federated import Split
from fedapa.methods.catalogue import make
from fedapa.methods.fedfomo import FedFomo, helped, mixture
from fedapa.methods.sharing import held_out
from fedapa.training.local import Local
from fedapa.training.model import build_model
from fedapa.training.task import Task
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def test_weights_by_hand():
    """L = (x - 1)^2 in one dimension, from 0: offers 0.5 and 2, own 0.8 give 1.5, 0 and 1.2, and so 0.6333."""
    models = torch.tensor([[0.5], [2.0], [0.8]])
    losses = (torch.cat([models, torch.zeros(1, 1)])[:, 0] - 1) ** 2
    gains = helped(losses, models[:, 0])
    assert gains.tolist() == pytest.approx([1.5, 0.0, 1.2])
    assert mixture(gains, models, torch.zeros(1)).tolist() == pytest.approx([0.633333])
    assert mixture(7 * gains, models, torch.zeros(1)).tolist() == pytest.approx([0.633333])  # the scale does not matter
    worse = helped(torch.tensor([3.0, 0.25, 1.0]), torch.tensor([0.1, 1.0]))
    assert worse.tolist() == pytest.approx([-20.0, 0.75])
    assert mixture(worse, models[:2], torch.zeros(1)).tolist() == [2.0]  # who raises the loss has no weight
    assert mixture(-gains, models, torch.tensor([9.0])).tolist() == [9.0]
    assert helped(torch.tensor([1.0, 1.0]), torch.zeros(1)).tolist() == [0.0]  # the same model: no way, no gain


def separable():
    """The three clients, with samples from which their classes can be learnt."""
    return [Split(0.5 * split.x + 2 * F.one_hot(split.y, 4), split.y) for split in make_data()]


def trained_apart(method, task, data):
    """A server whose clients have trained twice from one start, and their states."""
    server, client = method.init(task, 0)
    states = [client] * 3
    for t in range(2):
        visits = [visit(method, task, states[i], server, i, data, t) for i in range(3)]
        server = method.absorb(task, server, range(3), [v[2] for v in visits], [v[3] for v in visits])
        states = [v[1] for v in visits]
    return server, states


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("shared", ["model", "extractor"])
def test_the_mixture_against_losses_on_held_out_samples(norm, shared):
    task, data = make_task(lr=0.02, epochs=3), separable()
    method = FedFomo(norm=norm, shared=shared, holdout=0.3)
    server, states = trained_apart(method, task, data)
    size = task.P if shared == "extractor" else task.P + task.Q
    local = Local(task, 0, 2, 0, data[0])
    down, client = method.send(task, server, 0), states[0]
    shown = method.receive(task, client, down, local)
    score = held_out(local, 0.3)[1]
    assert len(score) == 3

    def loss(vector):
        whole = torch.cat([vector, client["phi"]]) if shared == "extractor" else vector
        return F.cross_entropy(net(whole, data[0].x[score]), data[0].y[score])

    tried = [*down["omega"], omega(client)[:size]]
    gains = [
        float((loss(client["prev"]) - loss(w)) / (w - client["prev"]).norm(p=1 if norm == "l1" else 2)) for w in tried
    ]
    assert max(gains) > 0
    share = [max(g, 0.0) / sum(max(g, 0.0) for g in gains) for g in gains]
    expected = sum(a * w for a, w in zip(share, tried, strict=True))
    torch.testing.assert_close(omega(shown)[:size], expected, atol=1e-5, rtol=1e-4)
    assert shown["gains"].tolist() == pytest.approx(gains[:-1], rel=1e-3, abs=1e-5)
    assert torch.equal(omega(shown)[size:], omega(client)[size:])
    trained, up = method.train(task, shown, down, local)
    assert torch.equal(trained["prev"], omega(shown)[:size])  # the next visit's reference
    assert torch.equal(up["omega"], omega(trained)[:size])
    assert torch.equal(up["gains"], shown["gains"])


def test_held_out_samples_never_train_and_alone_decide():
    task, data, method = make_task(lr=0.02, epochs=3), separable(), FedFomo(holdout=0.3)
    server, states = trained_apart(method, task, data)
    learn, score = held_out(Local(task, 0, 2, 0, data[0]), 0.3)
    plain = visit(method, task, states[0], server, 0, data, 2)
    for index, moves in ((learn, False), (score, True)):
        x = data[0].x.clone()
        x[index] += 3.0
        shown = visit(method, task, states[0], server, 0, [Split(x, data[0].y)], 2)[0]
        assert torch.equal(omega(shown), omega(plain[0])) != moves
    x = data[0].x.clone()
    x[score] += 3.0
    local = Local(task, 0, 2, 0, Split(x, data[0].y))
    assert torch.equal(omega(method.train(task, plain[0], plain[2], local)[0]), omega(plain[1]))


def test_nothing_is_held_out_where_the_share_is_zero():
    local = Local(make_task(), 0, 0, 0, make_data()[0])
    learn, score = FedFomo(holdout=0.0)._parts(local)
    assert learn.tolist() == score.tolist() == list(range(12))


@pytest.mark.parametrize("fallback", ["back", "keep"])
def test_if_nobody_helps(fallback):
    """A training that raised the held-out loss is undone, or kept."""
    task, data, method = make_task(), make_data(), FedFomo(fallback=fallback, offers=1)
    server, client = method.init(task, 0)
    good, bad = omega(client), omega(client) * 50
    client = {**client, **task.parts(bad), "prev": good}
    server = {**server, "omega": server["omega"] * 60}
    shown = visit(method, task, client, server, 0, data)[0]
    assert torch.equal(omega(shown), good if fallback == "back" else bad)
    assert (shown["gains"] < 0).all()


def test_equal_models_leave_everything_as_it_is():
    task, data, method = make_task(), make_data(), FedFomo()
    server, client = method.init(task, 0)
    shown = visit(method, task, client, server, 0, data)[0]
    assert torch.equal(omega(shown), omega(client))
    assert shown["gains"].tolist() == [0.0, 0.0]


# --- offers --------------------------------------------------------------------------------------


def server_of(M, t=0, P=None, heard=None, seed=0):
    return {
        "P": torch.zeros(M, M) if P is None else P,
        "heard": torch.ones(M) if heard is None else heard,
        "rounds": torch.tensor([t]),
        "seed": torch.tensor([seed]),
    }


def test_who_helped_most_is_offered_and_never_the_client_itself():
    P = torch.arange(64.0).view(8, 8) % 7
    P.fill_diagonal_(99)
    method = FedFomo(offers=3, explore=0.0)
    for i in range(8):
        found = method.offered(server_of(8, P=P), i).tolist()
        others = [j for j in range(8) if j != i]
        assert sorted(P[i, found].tolist()) == sorted(sorted(P[i, others].tolist())[-3:])
        assert i not in found


def test_ties_are_drawn_and_not_broken_by_number():
    method = FedFomo(offers=3, explore=0.0)
    seen = [tuple(method.offered(server_of(20, t), i).tolist()) for t in range(10) for i in range(20)]
    assert len(set(seen)) > 150
    counts = torch.bincount(torch.tensor(seen).flatten(), minlength=20)
    assert counts.min() > 10
    assert all(len(set(found)) == 3 for found in seen)


def test_exploration_fades():
    P = torch.zeros(20, 20)
    P[:, :3] = 1.0
    method = FedFomo(offers=3, explore=0.6, explore_decay=0.1)
    strange = [
        sum(j > 2 for i in range(3, 20) for j in method.offered(server_of(20, t, P, seed=k), i).tolist()) / 17 / 3
        for t in range(8)
        for k in [t]
    ]
    assert strange[0] == pytest.approx(0.6 * 17 / 19, abs=0.2)
    assert strange[3] < strange[0]
    assert strange[6:] == [0.0, 0.0]


def test_who_was_never_heard_from_is_offered_last():
    heard = torch.ones(8)
    heard[[2, 5, 6]] = 0.0
    for explore in (0.0, 1.0):
        for i in range(8):
            found = FedFomo(offers=4, explore=explore).offered(server_of(8, heard=heard), i).tolist()
            assert not {2, 5, 6} & set(found)
    assert len(FedFomo(offers=9).offered(server_of(8, heard=heard), 0)) == 7


def test_what_the_server_learns_of_whom():
    task, method = make_task(), FedFomo(offers=1, explore=0.0)
    server, _ = method.init(task, 0)
    P = torch.tensor([[0.0, 1.0, 2.0], [5.0, 0.0, 3.0], [1.0, 4.0, 0.0]])
    server = {**server, "P": P, "heard": torch.ones(3)}
    ups = [{"omega": server["omega"][0] + k, "gains": torch.tensor([0.5 + k])} for k in range(2)]
    new = method.absorb(task, server, [2, 0], [], ups)
    assert (new["P"] - P).tolist() == [[0.0, 0.0, 1.5], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0]]
    assert torch.equal(new["omega"][0], ups[1]["omega"])
    assert torch.equal(new["omega"][1], server["omega"][1])
    assert int(new["rounds"]) == 1
    assert torch.equal(method.send(task, server, 0)["omega"], server["omega"][[2]])


def test_the_groups_shown_are_of_those_who_helped_each_other():
    P = torch.tensor([[9.0, 4.0, 1.0, -3.0], [5.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 6.0], [0.0, 0.0, 2.0, 0.0]])
    shown = FedFomo().watch(server_of(4, P=P))
    assert shown["groups"].tolist() == [0, 0, 2, 2]
    assert FedFomo().watch(server_of(4))["groups"].tolist() == [0, 1, 2, 3]


def test_a_newcomer_changes_no_offers_and_gets_some():
    method, case = FedFomo(offers=2), Case(FedFomo(offers=2))
    done, larger = case.run(3), case.task.with_client("", 9)
    server = method.admit(larger, done.server)
    for i in range(4):
        assert torch.equal(method.offered(server, i), method.offered(done.server, i))
    assert method.send(larger, server, 4)["omega"].shape == (2, case.task.P + case.task.Q)
    assert 4 not in method.offered(server, 4).tolist()


@pytest.mark.parametrize(("settings", "floats"), [({}, 372_041), ({"offers": 2}, 3 * 62_006 + 2)])
def test_bytes_of_lenet5_on_cifar10(settings, floats):
    task, method = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50)), FedFomo(**settings)
    data = [Split(torch.zeros(1, 3, 32, 32), torch.tensor([3]))]
    server, client = method.init(task, 0)
    _, _, down, up = visit(method, task, client, server, 0, data)
    assert count_bytes(down) + count_bytes(up) == 4 * floats


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("settings", [{"shared": "extractor", "offers": 2}, {"norm": "l1", "fallback": "keep"}])
def test_laws_of_the_variants(law, settings):
    LAWS[law](Case(make("fedfomo", **settings)))


def test_the_limit_needs_all_of_its_parts():
    """Local training is met by no offers, nothing held out and keeping: each alone does not do."""
    local = Case(make("local")).run()
    (alone,) = make("fedfomo").claims().limits.values()
    for change in ({"offers": 2}, {"holdout": 0.2}):
        other = Case(replace(alone, **change)).run()
        gaps = [
            float((a.state["theta"] - b.state["theta"]).abs().max())
            for a, b in zip(local.records, other.records, strict=True)
        ]
        assert max(gaps) > 1e-4
