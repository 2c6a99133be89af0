"""pFedHN: the generated weights and the server's steps against a torch module under torch.optim.SGD."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from few_classes import SIZES, lenet_task, make_data, make_task, visit
from torch import nn

from fedapa.core.tree import clone, count_bytes, distance, equal
from fedapa.data.federated import Split
from fedapa.errors import InputError
from fedapa.methods.catalogue import make
from fedapa.methods.pfedhn import PFedHN
from fedapa.training.local import Local
from fedapa.training.model import build_model
from fedapa.training.task import Task

torch.set_num_threads(1)


class Hypernetwork(nn.Module):
    """The same hypernetwork, as a module with an embedding table."""

    def __init__(self, server, hidden=100):
        super().__init__()
        e = server["v"].shape[1]
        self.v = nn.Embedding.from_pretrained(server["v"].clone(), freeze=False)
        widths = [e, hidden, hidden, hidden, hidden]
        linears = [nn.Linear(a, b) for a, b in pairwise(widths)]
        rest = server["psi"].clone()
        for linear in linears:
            weights = linear.weight.numel()
            linear.weight.data = rest[:weights].view_as(linear.weight)
            linear.bias.data = rest[weights:][:hidden]
            rest = rest[weights + hidden :]
        R = nn.ReLU
        self.trunk = nn.Sequential(linears[0], R(), linears[1], R(), linears[2], R(), linears[3])
        self.out = nn.Linear(hidden, len(server["O"]))
        self.out.weight.data, self.out.bias.data = server["O"][:, :-1].clone(), server["O"][:, -1].clone()

    def forward(self, i):
        return self.out(self.trunk(self.v(torch.tensor(i))))

    def as_server(self):
        linears = [m for m in self.trunk if isinstance(m, nn.Linear)]
        return {
            "v": self.v.weight.data,
            "psi": torch.cat([torch.cat([m.weight.data.flatten(), m.bias.data]) for m in linears]),
            "O": torch.cat([self.out.weight.data, self.out.bias.data[:, None]], 1),
        }


def replies(method, task, server, ids, size=0.1, seed=0):
    """What was sent, and made-up returns."""
    random = torch.Generator().manual_seed(seed)
    downs = [method.send(task, server, i) for i in ids]
    ups = [{k: w + size * torch.randn(w.shape, generator=random) for k, w in d.items()} for d in downs]
    return downs, ups


def oracle_round(network, optimiser, ids, downs, ups, groups, clip=50.0):
    for group in groups:
        optimiser.zero_grad()
        for k in group:
            (sent,), (got,) = downs[k].values(), ups[k].values()
            (network(ids[k]) @ (sent - got) / len(group)).backward()
        nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimiser.step()


@pytest.mark.parametrize("private_head", [False, True])
def test_generated_weights_equal_the_module(private_head):
    task, method = make_task(), PFedHN(private_head=private_head)
    server, _ = method.init(task, 0)
    network = Hypernetwork(server)
    for i in range(3):
        (sent,) = method.send(task, server, i).values()
        assert torch.allclose(sent, network(i), atol=1e-6)
        assert len(sent) == (task.P if private_head else task.P + task.Q)


@pytest.mark.parametrize("update", ["mean", "one_by_one"])
@pytest.mark.parametrize("size", [0.1, 100.0])  # the larger one is clipped
def test_server_steps_equal_torch_sgd(update, size):
    task, method = make_task(), PFedHN(update=update, hn_weight_decay=0.2)
    server, _ = method.init(task, 0)
    network = Hypernetwork(server)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=0.2)
    for t, ids in enumerate([[0, 2], [0, 1, 2], [1]]):
        downs, ups = replies(method, task, server, ids, size, t)
        groups = [range(len(ids))] if update == "mean" else [[k] for k in range(len(ids))]
        oracle_round(network, optimiser, ids, downs, ups, groups)
        server = method.absorb(task, server, ids, downs, ups)
    want = network.as_server()
    assert distance(want, {k: server[k] for k in want}) < 2e-5
    start = method.init(task, 0)[0]
    assert all(not torch.allclose(server[k], start[k], atol=1e-4) for k in want)  # every trainable moved


def test_a_small_step_brings_the_generated_weights_closer():
    task = make_task()
    method = PFedHN(hn_lr=1e-3, hn_momentum=0.0, hn_weight_decay=0.0)
    server, _ = method.init(task, 0)
    downs, ups = replies(method, task, server, [1])
    new = method.send(task, method.absorb(task, server, [1], downs, ups), 1)
    before, after = (float((d["omega"] - ups[0]["omega"]).norm()) for d in (downs[0], new))
    assert after < before


@pytest.mark.parametrize("update", ["mean", "one_by_one"])
def test_arrival_order_and_donation_change_nothing(update):
    task, method = make_task(), PFedHN(update=update)
    server, _ = method.init(task, 0)
    downs, ups = replies(method, task, server, [0, 1, 2])
    one = method.absorb(task, server, [0, 1, 2], downs, ups)
    other = method.absorb(task, server, [2, 0, 1], [downs[k] for k in (2, 0, 1)], [ups[k] for k in (2, 0, 1)])
    assert equal(one, other)
    given_away = method.absorb(replace(task, donate=True), clone(server), [0, 1, 2], downs, ups)
    assert equal(one, given_away)


def test_idle_embeddings_decay_as_in_the_authors_code():
    task, method = make_task(), PFedHN(hn_momentum=0.0)
    server, _ = method.init(task, 0)
    new = method.absorb(task, server, [0], *replies(method, task, server, [0]))
    assert torch.allclose(new["v"][1:], server["v"][1:] * (1 - 0.01 * 1e-3))
    assert not torch.allclose(new["v"][0], server["v"][0] * (1 - 0.01 * 1e-3))


def test_private_head_stays_and_the_rate_differs():
    task, method = make_task(), make("pfedhn-pc")
    server, client = method.init(task, 0)
    client, down, up = visit(method, task, server, client, 0)
    assert set(down) == set(up) == {"theta"}
    assert not torch.equal(client["phi"], task.init(0)[1])
    local = Local(task, 0, 1, 0, make_data()[0])
    assert torch.equal(method.receive(task, client, down, local)["phi"], client["phi"])
    slow = make("pfedhn-pc", hn_lr=0.01, hn_weight_decay=0.0).absorb(task, server, [0], [down], [up])
    fast = make("pfedhn-pc", hn_weight_decay=0.0).absorb(task, server, [0], [down], [up])
    assert torch.allclose(fast["O"] - server["O"], 5 * (slow["O"] - server["O"]), atol=1e-6)


def test_local_steps_and_embedding_size():
    task = make_task()
    server, client = PFedHN().init(task, 0)
    assert server["v"].shape == (3, 1)
    assert lenet_hypernetwork()[1]["v"].shape == (20, 6)
    short, _, _ = visit(PFedHN(local_steps=1), task, server, client, 0)
    long, _, _ = visit(PFedHN(local_steps=50), task, server, client, 0)
    start = task.parts(PFedHN().send(task, server, 0)["omega"])
    assert 0 < distance(short, start) < distance(long, start)


def test_no_momentum_survives_from_weights_that_were_replaced():
    task, method = make_task(keep_momentum=True), PFedHN()
    server, client = method.init(task, 0)
    local, down = Local(task, 0, 0, 0, make_data()[0]), method.send(task, server, 0)
    method.train(task, method.receive(task, client, down, local), down, local)
    assert not local.memory


def test_batch_statistics_are_refused():
    net = nn.Sequential()
    for name, layer in (("fc", nn.Linear(4, 6)), ("norm", nn.BatchNorm1d(6)), ("head", nn.Linear(6, 3))):
        net.add_module(name, layer)
    shared = Task(build_model(net, (4,), 3), 3, torch.tensor(SIZES))
    private = Task(build_model(net, (4,), 3, buffers="private"), 3, torch.tensor(SIZES))
    for task, method in ((shared, PFedHN()), (shared, make("pfedhn-pc")), (private, PFedHN())):
        with pytest.raises(InputError, match="BatchNorm"):
            method.init(task, 0)
    make("pfedhn-pc").init(private, 0)


def lenet_hypernetwork(**settings):
    task, method = lenet_task(), PFedHN(**settings)
    return task, method.init(task, 0)[0], method


@pytest.mark.parametrize(("private_head", "floats"), [(False, 62_006), (True, 61_156)])
def test_bytes(private_head, floats):
    task, server, method = lenet_hypernetwork(private_head=private_head)
    client = method.init(task, 0)[1]
    data = Split(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    _, down, up = visit(method, task, server, client, 0, data=data)
    assert count_bytes(down) == count_bytes(up) == 4 * floats
