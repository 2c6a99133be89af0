from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedapa.core import hypernetworks

SIZES = (3, 5, 5, 2)


def as_module(psi):
    """The same network out of nn.Linear and nn.ReLU."""
    layers, rest = [], psi
    for fan_in, fan_out in [(3, 5), (5, 5), (5, 2)]:
        linear = nn.Linear(fan_in, fan_out)
        linear.weight.data = rest[: fan_in * fan_out].view(fan_out, fan_in)
        linear.bias.data = rest[fan_in * fan_out :][:fan_out]
        rest = rest[(fan_in + 1) * fan_out :]
        layers += [linear, nn.ReLU()]
    assert not len(rest)
    return nn.Sequential(*layers[:-1])


def make(seed):
    return hypernetworks.init(SIZES, np.random.default_rng(seed))


def test_forward_equals_the_module():
    psi, v = make(0), torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(hypernetworks.forward(psi, SIZES, v), as_module(psi)(v), atol=1e-6)
    assert torch.allclose(hypernetworks.forward(psi, SIZES, v[0]), as_module(psi)(v[0]), atol=1e-6)


def test_many_networks_at_once_equal_one_by_one():
    psi, v = torch.stack([make(1), make(2)]), torch.tensor([[1.0, -2.0, 0.5], [0.1, 3.0, -1.0]])
    together = hypernetworks.forward(psi, SIZES, v)
    for k in range(2):
        assert torch.allclose(together[k], hypernetworks.forward(psi[k], SIZES, v[k]), atol=1e-6)
    assert not torch.allclose(together[0], together[1])


def test_gradient_reaches_every_layer():
    psi = make(3).requires_grad_()
    hypernetworks.forward(psi, SIZES, torch.ones(3)).sum().backward()
    first, last = psi.grad[:15], psi.grad[-2:]
    assert first.abs().max() > 0
    assert last.tolist() == [1.0, 1.0]


def test_init_is_that_of_nn_linear():
    psi = hypernetworks.init((4, 2000), np.random.default_rng(0))
    assert len(psi) == hypernetworks.size((4, 2000)) == 10_000
    assert psi.abs().max() <= 0.5
    assert float(psi.std()) == pytest.approx(0.5 / np.sqrt(3), rel=0.03)
    assert torch.equal(make(5), make(5))
    assert not torch.equal(make(5), make(6))
    assert float(hypernetworks.normal(np.random.default_rng(0), 50, 60).std()) == pytest.approx(1, rel=0.05)
