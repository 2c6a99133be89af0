"""Recipes: every method has both, their settings are legal, and they reach the training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedapa.config.load import check, training_of
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, entry, is_known, make
from fedapa.methods.recipes import AUTHORS, COMMON, recipe

COMMONLY = (0.01, 0.9, 64, 2, 0.0, 0.0)
# How its authors train each method: rate, momentum, batch, epochs, weight decay, largest norm of a gradient.
BY_AUTHORS = {
    "local": COMMONLY,
    "fedavg": (0.1, 0.0, 50, 5, 0.0, 0.0),
    "fedavg-ft": (0.1, 0.0, 50, 5, 0.0, 0.0),
    "fedprox": (0.01, 0.0, 10, 20, 0.0, 0.0),
    "fedper": (0.01, 0.0, 128, 4, 0.0, 0.0),
    "fedrep": (0.01, 0.5, 10, 2, 0.0, 0.0),
    "ditto": (0.01, 0.0, 64, 2, 0.0, 0.0),
    "fedphp": (0.03, 0.9, 64, 2, 1e-5, 100.0),
    "fedamp": COMMONLY,
    "fedamp-heur": COMMONLY,
    "apple": (0.01, 0.9, 256, 5, 0.0, 0.0),
    "fedala": (0.005, 0.0, 10, 1, 0.0, 0.0),
    "pfedhn": (0.005, 0.9, 64, 2, 5e-5, 50.0),
    "pfedhn-pc": (0.005, 0.9, 64, 2, 5e-5, 50.0),
    "pfedla": (0.01, 0.0, 32, 10, 0.0, 0.0),
    "pfedla-heur": (0.01, 0.0, 32, 10, 0.0, 0.0),
    "fedpac": (0.02, 0.5, 50, 5, 5e-4, 0.0),
    "dbe": (0.005, 0.0, 10, 1, 0.0, 0.0),
    "fedproto": (0.01, 0.5, 32, 1, 0.0, 0.0),
    "fedgh": (0.01, 0.9, 64, 10, 1e-3, 50.0),
    "pfedme": (0.005, 0.0, 20, 2, 0.0, 0.0),
    "perfedavg": (0.005, 0.0, 20, 2, 0.0, 0.0),
    "apfl": COMMONLY,
    "scaffold": (0.01, 0.0, 64, 2, 0.0, 0.0),
    "fedrod": (0.01, 0.9, 64, 2, 1e-3, 0.0),
    "lg-fedavg": (0.1, 0.5, 50, 1, 0.0, 0.0),
    "knnper": COMMONLY,
    "fedbabu": (0.1, 0.9, 50, 4, 0.0, 0.0),
    "fedbn": (0.01, 0.0, 32, 1, 0.0, 0.0),
    "moon": (0.01, 0.9, 64, 10, 1e-5, 0.0),
    "fedapa": COMMONLY,
    "fedapa-reference": COMMONLY,
    "fedapa-exact": COMMONLY,
    "fedapa-scored": COMMONLY,
    "pfedgraph": (0.01, 0.9, 64, 2, 1e-5, 0.0),
    "cfl": (0.1, 0.9, 128, 1, 0.0, 0.0),
    "ifca": (0.25, 0.0, 50, 5, 0.0, 0.0),
    "fedfomo": (0.1, 0.0, 50, 5, 0.0, 0.0),
    "fedem": (0.03, 0.9, 128, 1, 5e-4, 0.0),
}
SET_BY_AUTHORS: dict[str, dict[str, object]] = {
    "fedprox": {"mu": 1.0},
    "fedrep": {"head_epochs": 10, "extractor_epochs": 1},
    "apple": {"start": "own", "mu": 0.2},
    "pfedhn": {"local_steps": 50},
    "pfedhn-pc": {"local_steps": 50},
    "fedproto": {"lam": 0.1, "average": "clients", "prototypes": "during", "inference": "own_classes"},
    "pfedgraph": {"local_steps": 200},
    "cfl": {"rule": "absolute", "linkage": "complete"},
    "ifca": {"average": "clients"},
    "fedfomo": {"norm": "l1"},
    "pfedme": {"local_steps": 20},
    "perfedavg": {"alpha": 0.005},
    "apfl": {"mix": "logits", "alpha_lr": 0.0},
    "knnper": {"capacity": 5000},
}
KEEPS_MOMENTUM = {"apple": False, "fedproto": False, "pfedgraph": False, "cfl": True, "fedem": True}


@pytest.mark.parametrize("name", METHODS)
def test_how_the_authors_train(name: str) -> None:
    authors = f"{name}@{AUTHORS}"
    training = training_of(check({"methods": [authors]}), authors)
    names = ("lr", "momentum", "batch", "epochs", "weight_decay", "clip_norm")
    assert tuple(getattr(training, key) for key in names) == BY_AUTHORS[name]
    assert training.keep_momentum == KEEPS_MOMENTUM.get(name, "auto")
    assert make(authors) == replace(make(name), **SET_BY_AUTHORS.get(name, {}))


@pytest.mark.parametrize("name", METHODS)
def test_both_recipes_are_legal(name: str) -> None:
    assert make(f"{name}@{COMMON}") == make(name)
    for named in (COMMON, AUTHORS):
        config = check({"methods": [f"{name}@{named}"]})
        assert training_of(config, f"{name}@{named}")
        check({"training": dict(recipe(name, named).training)})
        assert recipe(name, named).source
    assert is_known(f"{name}@{AUTHORS}+ema")


def test_the_authors_recipe_overrides_the_training_of_the_config_and_nothing_else() -> None:
    config = check({"methods": ["fedpac@authors", "fedpac"], "training": {"lr": 0.3, "drop_last": False}})
    authors, common = (training_of(config, name) for name in config.methods)
    assert (common.lr, common.epochs, common.drop_last) == (0.3, 2, False)
    assert (authors.lr, authors.momentum, authors.batch, authors.epochs) == (0.02, 0.5, 50, 5)
    assert (authors.weight_decay, authors.drop_last) == (5e-4, False)


def test_what_a_config_says_for_one_method_counts_more_than_the_recipe() -> None:
    config = check({"methods": ["fedpac@authors"], "method": {"fedpac@authors": {"training": {"lr": 0.7}}}})
    found = training_of(config, "fedpac@authors")
    assert (found.lr, found.batch) == (0.7, 50)


def test_a_variant_may_have_a_recipe_as_its_base() -> None:
    config = check({"methods": ["mine"], "method": {"mine": {"base": "fedproto@authors", "lam": 0.5}}})
    assert training_of(config, "mine").batch == 32
    method = make("fedproto@authors", lam=0.5)
    assert (method.lam, method.average, method.inference) == (0.5, "clients", "own_classes")


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(InputError, match="unknown recipe 'author'") as error:
        entry("fedavg@author")
    assert "common, authors" in error.value.hint
    assert not is_known("fedavg@author")
