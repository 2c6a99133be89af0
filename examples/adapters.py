"""FedAPA on adapters of a frozen backbone: only they and the heads are trained, only they travel.

    python examples/adapters.py

The backbone here is trained on half of the digits first; with a published one, use its module instead. Any module
with frozen parameters will do, whoever put the adapters in: tests/task/test_libraries.py takes peft's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fedapa as fa


class LoRA(nn.Module):
    """A frozen linear layer plus a product of two thin matrices, the second of which starts at 0."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.lora_A = nn.Linear(inner.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.lora_B(self.lora_A(x))


def with_adapters(backbone: nn.Module, rank: int = 4) -> nn.Module:
    """The backbone frozen, with an adapter on every linear layer but the head."""
    backbone.requires_grad_(False)
    linear = [name for name, layer in backbone.named_modules() if isinstance(layer, nn.Linear)]
    for name in linear[:-1]:
        backbone.set_submodule(name, LoRA(backbone.get_submodule(name), rank))
    backbone.get_submodule(linear[-1]).requires_grad_(True)
    return backbone


def pretrained() -> nn.Module:
    """A backbone that has seen the digits of other people: here one central client."""
    central = fa.fit("local", fa.load("digits", "iid", clients=2, seed=9), "mlp", rounds=10, lr=0.05, batch=16)
    model, state = central.task.model, central.records[0].state
    return model.module(state["theta"], state["phi"])


if __name__ == "__main__":
    torch.manual_seed(0)
    model = with_adapters(pretrained())
    data = fa.load("digits", "dirichlet", clients=8, alpha=0.3, min_train=40, min_test=5)
    for shared in ("*lora*", "re:lora_A"):  # all of the adapters, or one of their two matrices
        result = fa.fit("fedapa", data, model, rounds=10, shared=[shared], lr=0.05, batch=16)
        score, sent = result.curve("after")[-1].pooled, result.logs[-1].up_bytes
        print(f"shared {shared}: {score:.1f} % with {max(sent.values()):,} bytes per upload")
    whole = sum(p.numel() for p in model.parameters())
    print(f"the whole model is {4 * whole:,} bytes")
