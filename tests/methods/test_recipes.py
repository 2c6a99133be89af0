"""Recipes: every method has both, their settings are legal, and they reach the training."""

from __future__ import annotations

import pytest

from fedapa.config.load import check, training_of
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, entry, is_known, make
from fedapa.methods.recipes import AUTHORS, COMMON, recipe
from fedapa.training.task import Training


@pytest.mark.parametrize("name", METHODS)
def test_both_recipes_are_legal(name: str) -> None:
    assert make(f"{name}@{COMMON}") == make(name)
    for named in (COMMON, AUTHORS):
        config = check({"methods": [f"{name}@{named}"]})
        assert Training(**training_of(config, f"{name}@{named}").model_dump())
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
