"""pFedLA: mixing layer by layer, the hypernetworks' step against plain autograd, private layers, bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from few_classes import lenet_task, make_task, play, visit

from fedapa.core.tree import count_bytes, equal
from fedapa.data.federated import Split
from fedapa.methods.catalogue import make
from fedapa.methods.pfedla import PFedLA, layers, pieces

torch.set_num_threads(1)


def apart(task, method):
    """A server whose clients have different models."""
    server, client = method.init(task, 0)
    return {**server, "omega": torch.stack([task.join(*task.init(7 + j)) for j in range(3)])}, client


def alpha_by_hand(psi, L, M=3):
    """alpha [L, M] out of the flat hypernetwork, layer by layer."""
    v, rest = psi[:100], psi[100:]
    for _ in range(3):
        v = F.relu(rest[:10_000].view(100, 100) @ v + rest[10_000:10_100])
        rest = rest[10_100:]
    raw = F.relu(rest[: 100 * L * M].view(L * M, 100) @ v + rest[100 * L * M :]).view(L, M)
    return raw / raw.sum(1, keepdim=True)


def mixture_by_hand(alpha, omega):
    """The tiny MLP has three layers of 4*64+64, 64*64+64 and 64*3+3 parameters."""
    cuts = omega.split([320, 4160, 195], dim=1)
    return torch.cat([alpha[l] @ part for l, part in enumerate(cuts)])


def test_layers_are_modules_and_cover_the_model():
    task = lenet_task()
    assert layers(task) == 5
    spans = sorted((p.start, p.stop) for p, _ in pieces(task))
    assert spans[0][0] == 0
    assert spans[-1][1] == 62_006
    assert all(one[1] == other[0] for one, other in pairwise(spans))


def test_what_is_sent_is_the_layerwise_mixture():
    task, method = make_task(), PFedLA()
    server, _ = apart(task, method)
    for i in range(3):
        alpha = alpha_by_hand(server["psi"][i], 3)
        assert torch.allclose(alpha.sum(1), torch.ones(3))
        assert alpha.std() > 1e-3
        sent = method.send(task, server, i)["omega"]
        assert torch.allclose(sent, mixture_by_hand(alpha, server["omega"]), atol=1e-6)


@pytest.mark.parametrize(("sign", "direction"), [("descend", 1), ("printed", -1)])
def test_the_step_is_that_of_plain_autograd(sign, direction):
    task, method = make_task(), PFedLA(sign=sign, hn_lr=0.05)
    server, _ = apart(task, method)
    down = method.send(task, server, 1)
    up = {"omega": down["omega"] + 0.3 * server["omega"][2]}
    new = method.absorb(task, server, [1], [down], [up])
    psi = server["psi"][1].clone().requires_grad_()
    loss = 0.5 * (up["omega"] - mixture_by_hand(alpha_by_hand(psi, 3), server["omega"])).square().sum()
    (slope,) = torch.autograd.grad(loss, psi)
    step = (new["psi"][1] - server["psi"][1]) / 0.05
    assert torch.allclose(step, -direction * slope, atol=5e-3 * float(slope.abs().max()))
    assert torch.equal(new["omega"][1], up["omega"])
    sent = method.send(task, {**new, "omega": server["omega"]}, 1)["omega"]
    after = 0.5 * (up["omega"] - sent).square().sum()
    assert direction * (loss.item() - after.item()) > 0


def test_idle_clients_keep_model_and_hypernetwork():
    task, method = make_task(), PFedLA()
    server, client = apart(task, method)
    new = play(method, task, server, client, [0, 2])
    for name in ("omega", "psi"):
        assert torch.equal(new[name][1], server[name][1])
        assert not torch.equal(new[name][0], server[name][0])


def test_the_first_round_sends_the_start_and_moves_no_hypernetwork():
    task, method = make_task(), PFedLA()
    server, client = method.init(task, 0)
    assert torch.allclose(method.send(task, server, 0)["omega"], server["omega"][0], atol=1e-6)
    assert torch.allclose(play(method, task, server, client, [0, 1, 2])["psi"], server["psi"], atol=1e-5)


def test_every_client_starts_with_a_hypernetwork_of_its_own():
    psi = PFedLA().init(make_task(), 0)[0]["psi"]
    assert all((psi[i] - psi[j]).abs().max() > 0.1 for i, j in ((0, 1), (0, 2), (1, 2)))


def test_private_layers_come_back_as_they_were():
    task, method = make_task(), make("pfedla-heur")
    server, _ = apart(task, method)
    for i in range(3):
        private = int(alpha_by_hand(server["psi"][i], 3)[:, i].argmax())
        sent, own = method.send(task, server, i)["omega"], server["omega"][i]
        for piece, layer in pieces(task):
            assert torch.equal(sent[piece], own[piece]) == (layer == private)
    alone = make("pfedla", private_layers=99)
    assert torch.equal(alone.send(task, server, 2)["omega"], server["omega"][2])


def test_private_layers_give_no_gradient():
    task, server = make_task(), apart(make_task(), PFedLA())[0]
    method = make("pfedla", private_layers=99)
    down = method.send(task, server, 0)
    new = method.absorb(task, server, [0], [down], [{"omega": down["omega"] + 1}])
    assert torch.equal(new["psi"], server["psi"])


def test_a_dead_layer_falls_back_to_the_clients_own():
    task, method = make_task(), PFedLA()
    server, _ = apart(task, method)
    psi = server["psi"].clone()
    psi[0, -9:] = -1e6  # biases of all outputs of client 0
    server = {**server, "psi": psi}
    down = method.send(task, server, 0)
    assert torch.equal(down["omega"], server["omega"][0])
    new = method.absorb(task, server, [0], [down], [{"omega": down["omega"] + 1}])
    assert torch.isfinite(new["psi"]).all()


def test_arrival_order_changes_nothing():
    task, method = make_task(), PFedLA()
    server, _ = apart(task, method)
    downs = [method.send(task, server, i) for i in range(3)]
    ups = [{"omega": d["omega"] * 1.1} for d in downs]
    one = method.absorb(task, server, [0, 1, 2], downs, ups)
    other = method.absorb(task, server, [2, 1, 0], downs[::-1], ups[::-1])
    assert torch.allclose(one["psi"], other["psi"], atol=1e-6)
    assert equal({"w": one["omega"]}, {"w": other["omega"]})


def test_bytes():
    task, method = lenet_task(), PFedLA()
    server, client = method.init(task, 0)
    data = Split(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    _, down, up = visit(method, task, server, client, 0, data=data)
    assert count_bytes(down) == count_bytes(up) == 4 * 62_006
