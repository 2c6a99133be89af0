"""FedAvg against plain gradient steps: what clients start from, and how much each of them counts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega, visit

from fedapa.methods.fedavg import FedAvg, sample_mean

torch.set_num_threads(1)


def test_one_round_by_hand_with_an_absent_client():
    """Clients 0 and 2 hold 12 and 5 samples; their last models differ from what arrives and do not matter."""
    task, data, method = make_task(lr=0.1, epochs=1), make_data(), FedAvg()
    server, client = method.init(task, 1)
    theta, phi = task.init(9)
    replies = [visit(method, task, {"theta": theta, "phi": phi}, server, i, data) for i in (0, 2)]
    found = []
    for i, (shown, trained, _, up) in zip((0, 2), replies, strict=True):
        leaf = omega(client).requires_grad_()
        slope = torch.autograd.grad(F.cross_entropy(net(leaf, data[i].x), data[i].y), leaf)[0]
        found.append(omega(client) - 0.1 * slope)
        assert torch.equal(omega(shown), omega(client))
        torch.testing.assert_close(omega(trained), found[-1], atol=1e-6, rtol=1e-5)
        assert torch.equal(up["omega"], omega(trained))
        assert up["n"].tolist() == [len(data[i].y)]
    new = method.absorb(task, server, [0, 2], [r[2] for r in replies], [r[3] for r in replies])
    torch.testing.assert_close(new["omega"], (12 * found[0] + 5 * found[1]) / 17, atol=1e-6, rtol=1e-5)


def test_the_mean_by_hand():
    ups = [
        {"w": torch.tensor([0.0, 4.0]), "n": torch.tensor([3.0])},
        {"w": torch.tensor([8.0, 0.0]), "n": torch.ones(1)},
    ]
    assert sample_mean(ups, "w").tolist() == [2.0, 3.0]
