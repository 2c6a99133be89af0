"""Named recipes: how a method is trained in a comparison, and how its own authors train it.

``common`` is every method's default: the local training of the FedAPA paper (SGD, rate 0.01, momentum 0.9, batch 64,
two epochs), which a config's [training] may change for all methods alike. ``authors``, written METHOD@authors, takes
what the method's own paper or released code says instead, whatever the config says. Rounds and participation stay
those of the run: most of these recipes were made for many more rounds than the FedAPA paper's 50.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

COMMON, AUTHORS = "common", "authors"


class Recipe(NamedTuple):
    source: str
    training: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}


PLAIN: Mapping[str, Any] = {"lr": 0.005, "momentum": 0.0, "batch": 10, "epochs": 1}  # FedALA and DBE, authors' code
RECIPES: dict[str, Recipe] = {
    "local": Recipe("none of its own: the common recipe"),
    "fedavg": Recipe(
        "paper, CIFAR-10: E = 5, B = 50, no momentum; the rate was tuned, here 0.1",
        {"lr": 0.1, "momentum": 0.0, "batch": 50, "epochs": 5},
    ),
    "fedprox": Recipe(
        "paper: E = 20, B = 10, no momentum; rate and mu were tuned by data set, here 0.01 and 1",
        {"lr": 0.01, "momentum": 0.0, "batch": 10, "epochs": 20},
        {"mu": 1.0},
    ),
    "fedper": Recipe(
        "paper, CIFAR-10: E = 4, B = 128, rate 0.01", {"lr": 0.01, "momentum": 0.0, "batch": 128, "epochs": 4}
    ),
    "fedrep": Recipe(
        "authors' code, CIFAR-10: 10 head epochs, 1 extractor epoch, B = 10",
        {"lr": 0.01, "momentum": 0.5, "batch": 10},
        {"head_epochs": 10, "extractor_epochs": 1},
    ),
    "ditto": Recipe("paper: no momentum, lambda 1; its rate was tuned, here the common one", {"momentum": 0.0}),
    "fedphp": Recipe(
        "authors' code: rate 0.03, weight decay 1e-5, gradients clipped at 100, lambda 0.05",
        {"lr": 0.03, "momentum": 0.9, "batch": 64, "epochs": 2, "weight_decay": 1e-5, "clip_norm": 100.0},
    ),
    "fedamp": Recipe("no code by the authors; the common recipe"),
    "apple": Recipe(
        "authors' code: E = 5, B = 256, a new optimiser every round, cores that start apart, mu without the half",
        {"lr": 0.01, "momentum": 0.9, "batch": 256, "epochs": 5, "keep_momentum": False},
        {"start": "own", "mu": 0.2},
    ),
    "fedala": Recipe("authors' code (for 2,000 rounds)", PLAIN),
    "pfedhn": Recipe(
        "authors' code: 50 steps, rate 0.005, weight decay 5e-5, gradients clipped at 50",
        {"lr": 0.005, "momentum": 0.9, "batch": 64, "weight_decay": 5e-5, "clip_norm": 50.0},
        {"local_steps": 50},
    ),
    "pfedla": Recipe(
        "third-party code: E = 10, B = 32, no momentum", {"lr": 0.01, "momentum": 0.0, "batch": 32, "epochs": 10}
    ),
    "fedpac": Recipe(
        "authors' code, CIFAR-10: E = 5, B = 50, rate 0.02, momentum 0.5, weight decay 5e-4",
        {"lr": 0.02, "momentum": 0.5, "batch": 50, "epochs": 5, "weight_decay": 5e-4},
    ),
    "dbe": Recipe("authors' run script (for 2,000 rounds)", PLAIN),
    "fedproto": Recipe(
        "authors' code, CIFAR-10: E = 1, B = 32, momentum 0.5, a new optimiser at every visit, lambda 0.1",
        {"lr": 0.01, "momentum": 0.5, "batch": 32, "epochs": 1, "keep_momentum": False},
        {"lam": 0.1, "average": "clients", "prototypes": "during", "inference": "own_classes"},
    ),
    "fedgh": Recipe(
        "authors' code: E = 10, weight decay 1e-3, gradients clipped at 50",
        {"lr": 0.01, "momentum": 0.9, "batch": 64, "epochs": 10, "weight_decay": 1e-3, "clip_norm": 50.0},
    ),
    "pfedme": Recipe(
        "authors' code, CIFAR-10: 20 mini-batches of 20, rate 0.005, no momentum",
        {"lr": 0.005, "momentum": 0.0, "batch": 20},
        {"local_steps": 20},
    ),
    "perfedavg": Recipe(
        "no code by the authors; PFLlib (for 2,000 rounds): two passes over batches of 2 x 10, alpha = beta = 0.005",
        {"lr": 0.005, "momentum": 0.0, "batch": 20, "epochs": 2},
        {"alpha": 0.005},
    ),
    "apfl": Recipe(
        "authors' code (FedTorch): logits are mixed, alpha fixed at 0.5; its other settings are the common ones",
        settings={"mix": "logits", "alpha_lr": 0.0},
    ),
    "scaffold": Recipe("paper: no momentum; its rate was tuned, here the common one", {"momentum": 0.0}),
    "fedrod": Recipe("no code by the authors; paper: rate 0.01, weight decay 1e-3", {"weight_decay": 1e-3}),
    "lg-fedavg": Recipe(
        "authors' code, CIFAR-10: E = 1, B = 50, rate 0.1, momentum 0.5 (after 1,200 rounds of FedAvg)",
        {"lr": 0.1, "momentum": 0.5, "batch": 50, "epochs": 1},
    ),
    "knnper": Recipe("authors' code stores all train samples; its rate is not known", settings={"capacity": 5000}),
    "fedbabu": Recipe(
        "authors' code: B = 50, rate 0.1; E = 1, 4 or 10, here 4",
        {"lr": 0.1, "momentum": 0.9, "batch": 50, "epochs": 4},
    ),
    "fedbn": Recipe(
        "authors' code, digits: E = 1, B = 32, no momentum", {"lr": 0.01, "momentum": 0.0, "batch": 32, "epochs": 1}
    ),
    "moon": Recipe(
        "authors' code, CIFAR-10: E = 10, B = 64, weight decay 1e-5, mu 5",
        {"lr": 0.01, "momentum": 0.9, "batch": 64, "epochs": 10, "weight_decay": 1e-5},
    ),
    "fedapa": Recipe("paper and released code: the common recipe"),
    "pfedgraph": Recipe(
        "authors' run scripts: 200 batches of 64, weight decay 1e-5, a new optimiser every round",
        {"lr": 0.01, "momentum": 0.9, "batch": 64, "weight_decay": 1e-5, "keep_momentum": False},
        {"local_steps": 200},
    ),
    "cfl": Recipe(
        "authors' notebook: E = 1, B = 128, rate 0.1 (it decays by 0.99 a visit, here it does not), the optimiser kept",
        {"lr": 0.1, "momentum": 0.9, "batch": 128, "epochs": 1, "keep_momentum": True},
        {"rule": "absolute", "linkage": "complete"},
    ),
    "ifca": Recipe(
        "authors' code, CIFAR-10: E = 5, B = 50, rate 0.25 (it decays by 0.99 a round, here it does not), no momentum",
        {"lr": 0.25, "momentum": 0.0, "batch": 50, "epochs": 5},
        {"average": "clients"},
    ),
    "fedfomo": Recipe(
        "authors' code: E = 5, B = 50, rate 0.1 (it decays by 0.99, here it does not), no momentum",
        {"lr": 0.1, "momentum": 0.0, "batch": 50, "epochs": 5},
        {"norm": "l1"},
    ),
    "fedem": Recipe(
        "authors' code, CIFAR-10: E = 1, B = 128, rate 0.03 (it decays twice, here it does not), the optimiser kept",
        {"lr": 0.03, "momentum": 0.9, "batch": 128, "epochs": 1, "weight_decay": 5e-4, "keep_momentum": True},
    ),
}
# Variants and our own methods train as the method that they come from.
ALIKE = {
    "fedavg-ft": "fedavg",
    "fedamp-heur": "fedamp",
    "pfedhn-pc": "pfedhn",
    "pfedla-heur": "pfedla",
    "fedapa-reference": "fedapa",
    "fedapa-exact": "fedapa",
    "fedapa-scored": "fedapa",
}


def recipe(method: str, name: str) -> Recipe:
    """The recipe of this name for a method of the catalogue."""
    return RECIPES[ALIKE.get(method, method)] if name == AUTHORS else Recipe("the FedAPA paper")
