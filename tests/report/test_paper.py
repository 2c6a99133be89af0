"""The paper's numbers stand beside the right runs, and beside no others."""

from __future__ import annotations

from typing import Any

import pytest

from fedapa.core.hyper_parameters import plain
from fedapa.methods.catalogue import METHODS, make
from fedapa.report import paper
from fedapa.store.run_settings import flat

CIFAR10 = {"source": "cifar10", "partition": "dirichlet", "alpha": 0.1, "clients": 20}


def printed(method: str, data: dict[str, Any] = CIFAR10, **settings: Any) -> paper.Printed:
    own = {"variant": {"base": method, **settings}} if settings else {}
    config = {"methods": ["variant" if settings else method], "data": data, "method": own}
    return paper.printed(config, flat(plain(make(method, **settings))))


def test_numbers_of_table_1_and_2() -> None:
    assert printed("fedapa") == (85.85, 478, 18)
    assert printed("fedavg") == (56.68, 484, 17)
    assert printed("apple").kib == 5087
    assert printed("fedapa", {**CIFAR10, "clients": 50}) == (84.14, None, None)
    rare = {"source": "cifar100", "partition": "pathological", "classes_per_client": 10, "clients": 50}
    assert printed("pfedla", rare).accuracy == 31.22


def test_every_column_has_the_twelve_methods() -> None:
    table = paper.tables()["table1"]
    assert len(table) == 12
    assert all(len(row["accuracy"]) == 12 and set(row["accuracy"]) <= set(METHODS) for row in table)
    assert len({tuple(row.get(key) for key in paper.WHERE) for row in table}) == 12
    assert set(paper.tables()["table2"]) == set(table[0]["accuracy"])


@pytest.mark.parametrize(
    ("settings", "accuracy"),
    [
        ({"mu": 0.3}, 84.76),
        ({"mu": 1.0}, 82.95),
        ({"clip": False}, 83.27),
        ({"shared": "model"}, 84.93),
        ({"clip": False, "self_weight": "off", "normalise": False}, 59.71),
        ({"mu": 0.4}, None),
        ({"mu": 0.3, "clip": False}, None),
    ],
)
def test_ablations_of_tables_3_and_4(settings: dict[str, Any], accuracy: float | None) -> None:
    assert printed("fedapa", **settings).accuracy == accuracy
    assert printed("fedapa", {**CIFAR10, "clients": 50}, **settings).accuracy is None  # the paper has 20 clients only


@pytest.mark.parametrize("change", [{"alpha": 0.2}, {"source": "digits"}, {"clients": 21}, {"partition": "iid"}])
def test_another_scenario_has_no_number(change: dict[str, Any]) -> None:
    assert printed("fedapa", {**CIFAR10, **change}) == paper.Printed()


def test_methods_that_the_paper_lacks_have_none_and_the_released_code_has_fedapas() -> None:
    assert printed("local").accuracy is None
    assert printed("pfedhn").accuracy is None  # the bytes of Table 2 are those of pfedhn-pc
    assert printed("fedapa-reference").accuracy == 85.85
    assert paper.printed({}, {}) == paper.Printed()


def test_a_method_with_training_of_its_own_is_not_the_papers() -> None:
    config = {"methods": ["fedapa"], "data": CIFAR10, "method": {"fedapa": {"training": {"lr": 0.05}}}}
    assert paper.printed(config, flat(plain(make("fedapa")))) == paper.Printed()


def test_deviations_from_the_papers_setting() -> None:
    config = {"training": {"lr": 0.1, "batch": 64}, "run": {"rounds": 10}, "model": {"name": "lenet5"}}
    assert paper.deviations(config) == ["rounds 10, not 50", "lr 0.1, not 0.01"]
