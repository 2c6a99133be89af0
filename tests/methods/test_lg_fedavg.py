"""LG-FedAvg: what is shared and what is not, against plain autograd, and as the mirror image of FedPer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.core.tree import count_bytes, equal
from fedapa.methods.fedper import FedPer
from fedapa.methods.lg_fedavg import LGFedAvg

torch.set_num_threads(1)


def test_two_clients_against_plain_autograd_and_the_mean_of_their_heads() -> None:
    task, data, method = make_task(lr=0.1, epochs=3), make_data(), LGFedAvg()
    server, state = method.init(task, 1)
    server = {"phi": server["phi"] + 0.3}
    found = []
    for i in (0, 2):
        w = torch.cat([state["theta"], server["phi"]])
        v = torch.zeros_like(w)
        for _ in range(3):
            leaf = w.clone().requires_grad_()
            v = 0.9 * v + torch.autograd.grad(F.cross_entropy(net(leaf, data[i].x), data[i].y), leaf)[0]
            w = w - 0.1 * v
        found.append(w)
    seen = [visit(method, task, state, server, i, data) for i in (0, 2)]
    for (_, trained, _, up), w in zip(seen, found, strict=True):
        torch.testing.assert_close(omega(trained), w, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(up["phi"], w[task.P :], atol=1e-6, rtol=1e-5)
    new = method.absorb(task, server, [0, 2], [s[2] for s in seen], [s[3] for s in seen])
    torch.testing.assert_close(new["phi"], (12 * found[0] + 5 * found[1])[task.P :] / 17, atol=1e-6, rtol=1e-5)


def test_it_is_the_mirror_image_of_fedper() -> None:
    """From the same state both train the same model; what one sends the other keeps, and together they send all."""
    task, data = make_task(batch=4), make_data()
    ours, theirs = LGFedAvg(), FedPer()
    (server, state), (shared, _) = ours.init(task, 0), theirs.init(task, 0)
    one, other = visit(ours, task, state, server, 0, data), visit(theirs, task, state, shared, 0, data)
    assert equal(one[1], other[1])
    assert (set(one[3]), set(other[3])) == ({"phi", "n"}, {"theta", "n"})
    later = {"theta": state["theta"] + 1, "phi": state["phi"] + 1}
    kept = [method.receive(task, one[1], later, None) for method in (ours, theirs)]
    assert torch.equal(kept[1]["theta"], later["theta"])
    assert torch.equal(kept[1]["phi"], one[1]["phi"])
    assert torch.equal(kept[0]["theta"], one[1]["theta"])
    assert torch.equal(kept[0]["phi"], later["phi"])


def test_only_the_head_travels() -> None:
    task, data = make_task(), make_data()
    server, state = LGFedAvg().init(task, 0)
    _, _, down, up = visit(LGFedAvg(), task, state, server, 0, data)
    assert count_bytes(down) == 4 * task.Q == count_bytes(up) - 4
    assert LGFedAvg().evaluated == "before"
