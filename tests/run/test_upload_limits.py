"""Upload limits know tensors by the roles that the method declares, whatever their names."""

from __future__ import annotations

import pytest
import torch
from toy import toy_data

from fedapa.core.tree import Tree
from fedapa.methods.method import Role
from fedapa.rounds.upload_limits import Limits
from fedapa.simulation import make_task

TASK = make_task(toy_data(), "mlp")  # two samples per client
DOWN = {"w": torch.zeros(1)}  # so that a norm may be 100
ROLES = {"size": Role.SAMPLES, "per_class": Role.CLASS_COUNTS, "totals": Role.SUMS}


def honest(**changes: list[float]) -> Tree:
    up = {"size": [2.0], "per_class": [1.0, 1.0, 0.0, 0.0, 0.0], "totals": [150.0], "w": [99.0]} | changes
    return {name: torch.tensor(values) for name, values in up.items()}


def fault(up: Tree, roles: dict[str, Role] = ROLES) -> str | None:
    return Limits(classes=[frozenset({0, 1})] * 4).find_excess(TASK, 0, up, DOWN, roles)


def test_an_honest_upload_passes() -> None:
    assert fault(honest()) is None


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"size": [3.0]}, "size is 3, it declared 2 samples"),
        ({"size": [1.0]}, "size is 1, it declared 2 samples"),
        ({"size": [-2.0]}, "size is not a number of samples"),
        ({"per_class": [2.0, 1.0, 0.0, 0.0, 0.0]}, "per_class is 3, it declared 2 samples"),
        ({"per_class": [0.5, 0.5, 0.0, 0.0, 0.0]}, "per_class is not a number of samples"),
        ({"per_class": [1.0, 0.0, 1.0, 0.0, 0.0]}, "it counts samples of class 2, which it did not declare"),
        ({"totals": [201.0]}, "totals has norm 201, more than 200"),
        ({"w": [101.0]}, "w has norm 101, more than 100"),
    ],
)
def test_a_wrong_value_is_found_by_the_role_of_its_tensor(wrong: dict[str, list[float]], why: str) -> None:
    assert fault(honest(**wrong)) == why


def test_a_name_alone_is_no_role() -> None:
    up = {"n": torch.tensor([3.0]), "counts": torch.tensor([0.5]), "sums": torch.tensor([150.0])}
    assert fault(up, {}) == "sums has norm 150, more than 100"
    assert fault({**up, "sums": torch.tensor([1.0])}, {}) is None
