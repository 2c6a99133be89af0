"""How well planted groups were found: from weights, from clusters, and through a whole run."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedapa.analysis import found_groups, result_sets, run_results
from fedapa.config.experiment import execute, lay_out
from fedapa.config.load import check
from fedapa.core import exact_weights


def test_weights_of_any_scale_show_the_same_groups() -> None:
    blocks = torch.kron(torch.eye(2), torch.ones(3, 3))
    for own in (0.0, 0.3, 0.9):
        A = (1 - own) * blocks / 3 + own * torch.eye(6)
        assert exact_weights.found_groups(A).tolist() == [0, 0, 0, 3, 3, 3]
    assert exact_weights.found_groups(torch.full((6, 6), 1 / 6)).tolist() == [0] * 6
    assert exact_weights.found_groups(torch.eye(6)).tolist() == [0, 1, 2, 3, 4, 5]


def test_two_are_joined_only_if_both_give_enough() -> None:
    A = torch.tensor([[0.0, 0.8, 0.2], [0.1, 0.0, 0.9], [0.5, 0.5, 0.0]])
    assert exact_weights.found_groups(A).tolist() == [0, 1, 1]  # 0.1 and 0.2 are below a quarter


def test_a_group_of_nineteen_and_one_alone() -> None:
    A = torch.full((20, 20), 0.8 / 18).fill_diagonal_(0.2)
    A[:19, 19] = 0
    A[19] = 0
    A[19, 19] = 1
    planted = [0] * 19 + [1]
    assert found_groups.adjusted_rand(planted, found_groups.by_weights(A.double().numpy())) == 1.0
    assert found_groups.adjusted_rand(planted, np.zeros(20)) == 0.0


def run_of(method: str, partition: str, out: Path) -> run_results.RunResult:
    data = {"source": "digits", "partition": partition, "clients": 10, "min_train": 5, "min_test": 2}
    raw = {
        "methods": [method],
        "data": data,
        "model": {"name": "mlp"},
        "training": {"batch": 16},
        "run": {"rounds": 3, "workers": 1},
    }
    (folder,) = lay_out(check(raw, "", "test"), out)
    execute(folder)
    found = run_results.read(folder)
    assert found is not None
    return found


@pytest.mark.parametrize("method", ["fedapa-exact", "ifca", "cfl", "fedfomo"])
def test_a_run_tells_how_well_it_found_the_groups(method: str, tmp_path: Path) -> None:
    run = run_of(method, "pathological", tmp_path)
    assert len(run.groups_found) == 3
    assert all(-1 <= value <= 1 for value in run.groups_found)
    (again,) = result_sets.from_dicts(result_sets.as_dicts([run]))
    assert again.groups_found == run.groups_found


def test_without_groups_or_without_weights_there_is_no_index(tmp_path: Path) -> None:
    assert run_of("fedapa-exact", "dirichlet", tmp_path / "a").groups_found == ()
    assert run_of("fedper", "pathological", tmp_path / "b").groups_found == ()
