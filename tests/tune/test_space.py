"""What is searched: the notation, the declarations beside the hyper-parameters, and the draws."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedapa.config.load import check
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make, method_class
from fedapa.tune.search import Scored, check_search, propose
from fedapa.tune.space import (
    TRAINING,
    Choices,
    Range,
    asked_for,
    declared,
    defaults,
    drawn,
    parse,
    read_space,
    spaces,
    table,
)


def config_of(*methods: str, **tables: Any) -> Any:
    return check({"methods": list(methods), "method": tables})


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("log:0.01..10", Range(0.01, 10, True)),
        ("0..0.9", Range(0.0, 0.9)),
        (" log: 1e-3 .. 1e-1 ", Range(0.001, 0.1, True)),
        ("-1.5..6", Range(-1.5, 6)),
        ("1,2,5", Choices((1, 2, 5))),
        ("1, 2, 2", Choices((1, 2))),
        ("mmd,kd", Choices(("mmd", "kd"))),
        ("true,false", Choices((True, False))),
        ([0.1, 0.2], Choices((0.1, 0.2))),
        ("off", None),
    ],
)
def test_the_notation_comes_back_as_it_was_written(text: Any, dimension: Any) -> None:
    assert parse(text, "here") == dimension
    assert dimension is None or parse(str(dimension), "here") == dimension


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ditto.lam=5..1", "the lower end comes first"),
        ("ditto.lam=log:0..1", "a logarithmic range starts above 0"),
        ("ditto.lam=", "nothing to choose from"),
        ("ditto.lam=-1..1", "Ditto.lam is -1.0, outside its legal range"),
        ("ditto.lamm=1,2", "no hyper-parameter 'lamm'"),
        ("dito.lam=1,2", "dito.lam, which is of no method"),
        ("training.epochs=1..5", "training.epochs is 1.0: input should be a valid integer"),
        ("training.epoch=1,2", "unknown key training.epoch"),
        ("ditto.training.lr=0,1", "training.lr is 0"),
        ("lam", "is not NAME=RANGE"),
    ],
)
def test_mistakes_are_found_before_anything_runs(words: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        spaces(config_of("ditto"), asked_for(None, [words]))
    assert said in caught.value.message
    assert caught.value.hint


def test_a_method_whose_space_is_all_off_cannot_be_tuned() -> None:
    with pytest.raises(InputError, match="nothing to search for local"):
        spaces(config_of("local"), {"training.lr": "off", "training.epochs": "off"})


# ----------------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize("name", METHODS)
def test_declared_ranges_are_legal_and_hold_the_default(name: str) -> None:
    config = config_of(name)
    (space,) = spaces(config, {}).values()  # legal: otherwise it raises
    values = defaults(config, name, space)
    for key in declared(config, name):
        dimension, default = space[key], values[key]
        inside = (
            default in dimension.values if isinstance(dimension, Choices) else dimension[0] <= default <= dimension[1]
        )
        assert inside or default == 0, f"{name}.{key}"  # 0 stands for a rule of its own (pFedHN's rate)


@pytest.mark.parametrize("name", [name for name in METHODS if fields(method_class(name))])
def test_every_method_with_numbers_to_tune_declares_some(name: str) -> None:
    numbers = [
        f.name
        for f in fields(method_class(name))
        if isinstance(f.default, float) and f.name not in METHODS[name].preset
    ]
    assert not numbers or declared(config_of(name), name)


def test_rate_and_epochs_are_searched_for_all_local_included() -> None:
    found = spaces(config_of("local", "ditto"), {})
    assert found["local"] == read_space(TRAINING)
    assert set(found["ditto"]) == {"lam", *TRAINING}


def test_what_makes_a_name_a_variant_is_not_searched() -> None:
    assert "mu" in declared(config_of("fedapa"), "fedapa")
    assert "mu" not in declared(config_of("fedapa-reference"), "fedapa-reference")
    assert "sharpness" not in declared(config_of("fedamp"), "fedamp")  # it has no effect there
    assert "sharpness" in declared(config_of("fedamp-heur"), "fedamp-heur")
    assert "eta" in declared(config_of("fedapa+quantised"), "fedapa+quantised")


def test_the_command_line_lies_on_top_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(
        "[training]\nlr = '0.1..1'\n[ditto]\nlam = [1, 2]\ntraining.epochs = 'off'\n[fedper]\ntraining.lr = '1,2'\n"
    )
    found = spaces(config_of("ditto", "local"), asked_for(file, ["ditto.lam=3,4", "training.momentum=0,0.9"]))
    assert found["ditto"] == {
        "lam": Choices((3, 4)),
        "training.lr": Range(0.1, 1.0),
        "training.momentum": Choices((0, 0.9)),
    }
    assert set(found["local"]) == {"training.lr", "training.epochs", "training.momentum"}
    file.write_text("[training")
    with pytest.raises(InputError, match="cannot read the search space"):
        asked_for(file, [])


def test_settings_lie_on_top_of_a_methods_own() -> None:
    config = config_of("mine", mine={"base": "ditto", "lam": 3.0, "training": {"lr": 0.5, "batch": 8}})
    assert table(config, "mine", {}) == {"base": "ditto", "lam": 3.0, "training": {"lr": 0.5, "batch": 8}}
    assert table(config, "mine", {"lam": 1.0, "training.lr": 0.1}) == {
        "base": "ditto",
        "lam": 1.0,
        "training": {"lr": 0.1, "batch": 8},
    }
    assert table(config_of("local"), "local", {}) == {"base": "local"}
    space = spaces(config, {})["mine"]
    assert defaults(config, "mine", space) == {"lam": 3.0, "training.epochs": 2, "training.lr": 0.5}


# ------------------------------------------------------------------------------------------------------------ drawing

SPACE = {
    "lam": Range(0.01, 10, True),
    "share": Range(0.0, 0.9),
    "training.lr": Range(0.001, 0.1, True),
    "k": Choices((1, 2, 5)),
}


def test_draws_stay_inside_and_spread_over_decades() -> None:
    found = [drawn(SPACE, "ditto", 0, trial) for trial in range(400)]
    assert all(0.01 <= one["lam"] <= 10 and 0 <= one["share"] <= 0.9 and one["k"] in (1, 2, 5) for one in found)
    decades = [math.floor(math.log10(one["lam"])) for one in found]
    assert all(90 < decades.count(decade) < 180 for decade in (-2, -1, 0))  # 133 each, were it exact
    assert all(one["lam"] == float(f"{one['lam']:.3g}") for one in found)


def test_a_draw_depends_on_its_number_and_on_nothing_else() -> None:
    assert drawn(SPACE, "ditto", 0, 7) == drawn(SPACE, "ditto", 0, 7)
    fewer = {key: SPACE[key] for key in ("lam", "training.lr")}
    assert drawn(fewer, "ditto", 0, 7) == {key: drawn(SPACE, "ditto", 0, 7)[key] for key in fewer}
    assert (
        drawn(SPACE, "ditto", 1, 7)["lam"] != drawn(SPACE, "ditto", 0, 7)["lam"] != drawn(SPACE, "ditto", 0, 8)["lam"]
    )
    other = drawn(SPACE, "fedavg", 0, 7)
    assert other["lam"] != drawn(SPACE, "ditto", 0, 7)["lam"]
    assert other["training.lr"] == drawn(SPACE, "ditto", 0, 7)["training.lr"]  # no method has luckier rates


def test_more_trials_begin_with_the_same_ones() -> None:
    default = [Scored({"k": 1}, None)]
    few = propose("random", "ditto", SPACE, 3, default, 6)
    assert propose("random", "ditto", SPACE, 3, default, 12)[:5] == few
    rest = propose("random", "ditto", SPACE, 3, [*default, *(Scored(one, 50.0) for one in few)], 12)
    assert few + rest == propose("random", "ditto", SPACE, 3, default, 12)


def test_no_settings_are_tried_twice_and_too_many_trials_are_refused() -> None:
    small = {"k": Choices((1, 2, 5)), "b": Choices((True, False))}
    found = propose("random", "ditto", small, 0, [Scored({"k": 1, "b": True}, None)], 6)
    assert len({(one["k"], one["b"]) for one in found} | {(1, True)}) == 6
    check_search("random", {"ditto": small}, {"ditto": {"k": 1, "b": True}}, 6)
    with pytest.raises(InputError, match="ditto has 6 settings to try, its default among them, not 7"):
        check_search("random", {"ditto": small}, {"ditto": {"k": 1, "b": True}}, 7)
    check_search("random", {"ditto": small}, {"ditto": {"k": 9, "b": True}}, 7)  # its default is a seventh


# -------------------------------------------------------------------------------------------------------------- optuna


def test_a_missing_optuna_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapa.tune.search.find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        check_search("optuna", {}, {}, 5)
    assert "\n" not in caught.value.message
    assert "pip install 'fedapa[tune]'" in caught.value.hint


def test_optuna_learns_from_scores_and_repeats_itself() -> None:
    pytest.importorskip("optuna")
    tried = [Scored({"lam": 99.0, "share": 0.5, "training.lr": 0.01, "k": 1}, 10.0)]  # outside of the space
    for _ in range(12):
        new = propose("optuna", "ditto", SPACE, 0, tried, 61)
        assert len(new) == 5
        assert new == propose("optuna", "ditto", SPACE, 0, tried, 61)
        tried += [Scored(one, -abs(math.log10(one["lam"]))) for one in new]  # best at lam = 1
    early, late = ([abs(math.log10(one.settings["lam"])) for one in part] for part in (tried[1:11], tried[-20:]))
    assert sum(late) / len(late) < 0.6 * sum(early) / len(early)
    assert all(make("ditto", lam=one.settings["lam"]) for one in tried)


def test_optuna_asks_for_no_more_than_the_budget() -> None:
    pytest.importorskip("optuna")
    tried = [Scored(drawn(SPACE, "ditto", 0, k), None) for k in range(5)]
    assert len(propose("optuna", "ditto", SPACE, 0, tried, 7)) == 2
    assert propose("optuna", "ditto", SPACE, 0, tried, 5) == []
