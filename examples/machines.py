"""Time series: every client is a machine with a rhythm of its own; which of three states is a stretch of it in?

    python examples/machines.py

A sample is a dictionary of two tensors: the stretch [1, 64] and the machine's load. The model gets both by name.
"""

import numpy as np
import torch
from torch import Tensor, nn

import fedapa as fa

LENGTH = 64


def machine(number: int, samples: int = 120) -> tuple[dict[str, np.ndarray], np.ndarray]:
    random = np.random.default_rng(number)
    state, load = random.integers(0, 3, samples), random.uniform(0.5, 1.5, samples)
    time, rhythm = np.arange(LENGTH), 0.15 + 0.03 * number
    phase = random.uniform(0, 6, (samples, 1))
    wave = np.sin(rhythm * (1 + state[:, None]) * time + phase) * load[:, None]
    stretch = wave + 0.3 * random.normal(size=wave.shape)
    return {"stretch": stretch[:, None].astype(np.float32), "load": load[:, None].astype(np.float32)}, state


def client(number: int) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray], np.ndarray]:
    x, y = machine(number)
    first, last = ({name: values[part] for name, values in x.items()} for part in (slice(90), slice(90, None)))
    return first, y[:90], last, y[90:]


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Sequential(nn.Conv1d(1, 8, 9, stride=2), nn.ReLU(), nn.Conv1d(8, 16, 5, stride=2), nn.ReLU())
        self.head = nn.Linear(17, 3)

    def forward(self, x: fa.Fields) -> Tensor:
        found = self.filters(x["stretch"]).amax(-1)
        answer: Tensor = self.head(torch.cat([found, x["load"]], 1))
        return answer


def main(rounds: int = 10) -> float:
    data = fa.from_arrays([client(k) for k in range(5)], names=[f"machine {k}" for k in range(5)], name="machines")
    # Two epochs in which the loss on held-out stretches does not fall end a visit.
    recipe = {"batch": 16, "lr": 0.01, "optimizer": "adam", "lr_schedule": "cosine", "epochs": 5, "patience": 2}
    result = fa.fit("fedapa", data, Listener, rounds, validation=0.2, **recipe)
    return result.curve("after")[-1].pooled


if __name__ == "__main__":
    print(f"accuracy {main():.1f} %")
