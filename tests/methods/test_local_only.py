"""Local training: two visits are one training by torch.optim.SGD, from the start that all methods share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from three_clients import make_data, make_task, net, omega

from fedapa.methods.fedavg import FedAvg
from fedapa.methods.local_only import LocalOnly
from fedapa.training.local import Local

torch.set_num_threads(1)


def test_two_visits_are_one_training_with_momentum():
    task, data, method = make_task(lr=0.1, epochs=2), make_data()[0], LocalOnly()
    state, memory = method.init(task, 1)[1], {}
    leaf = omega(state).requires_grad_()
    optimiser = torch.optim.SGD([leaf], lr=0.1, momentum=0.9)
    for t in range(2):
        local = Local(task, 0, t, 0, data, memory)
        state, up = method.train(task, method.receive(task, state, {}, local), {}, local)
        memory = local.memory
        for _ in range(2):
            optimiser.zero_grad()
            F.cross_entropy(net(leaf, data.x), data.y).backward()
            optimiser.step()
        torch.testing.assert_close(omega(state), leaf.detach(), atol=1e-6, rtol=1e-5)
    assert up == {}


def test_it_starts_where_the_others_start():
    task = make_task()
    assert torch.equal(omega(LocalOnly().init(task, 3)[1]), FedAvg().init(task, 3)[0]["omega"])
