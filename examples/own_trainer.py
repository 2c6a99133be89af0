"""Your own training loop under any method that minimises the plain loss, simulated or between real sites.

fedapa run demo --method fedapa --set training.trainer=examples/own_trainer.py:train --out runs/own
python examples/own_trainer.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fedapa as fa


def train(module: nn.Module, data: Dataset, training: fa.Training, generator: torch.Generator) -> None:
    """AdamW with a cosine schedule and label smoothing: none of it is the library's."""
    batches = DataLoader(data, training.batch, shuffle=True, drop_last=training.drop_last, generator=generator)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimiser = torch.optim.AdamW((p for p in module.parameters() if p.requires_grad), lr=training.lr)
    steps = max(1, training.epochs * len(batches))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    module.train()
    for _ in range(training.epochs):
        for x, y in batches:
            optimiser.zero_grad()
            loss(module(x), y).backward()
            optimiser.step()
            schedule.step()


if __name__ == "__main__":
    digits = fa.load("digits", "dirichlet", clients=8, alpha=0.3, min_train=40, min_test=5)
    for method in ("local", "fedapa"):
        result = fa.fit(method, digits, "cnn8", rounds=10, trainer=train, batch=16, lr=0.005)
        print(f"{method}: {result.curve('after')[-1].pooled:.1f} %")
