"""A model and a method of your own, together: python examples/own_model_and_method.py

The model is any nn.Module; `head` names its last layer, which stays at the client with methods such as FedAPA. The
method is examples/my_method.py, a class of six functions; `fedapa verify examples/my_method.py` holds it to the laws.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import fedapa as fa

sys.path.insert(0, str(Path(__file__).parent))
from my_method import HalfWay


class Net(nn.Module):
    """Two small convolutions; the last layer is called `classify`."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(shape[0], 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.think = nn.Linear(8 * (shape[1] // 2) * (shape[2] // 2), 32)
        self.classify = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(torch.relu(self.think(self.see(x))))


def main(rounds: int = 15, clients: int = 10) -> list[str]:
    data = fa.load("digits", "dirichlet", clients, alpha=0.5, min_train=20, min_test=5)
    lines = []
    for method in (fa.LocalOnly(), HalfWay(step=0.8), fa.FedAPA()):
        result = fa.fit(method, data, model=Net, head="classify", rounds=rounds, lr=0.05, batch=16)
        lines.append(f"{type(method).__name__:9} {result.curve('after')[-1].pooled:.1f} % after local training")
    return lines


if __name__ == "__main__":
    print("\n".join(main()))
