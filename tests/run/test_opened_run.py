"""fa.open: the tables are those of run.db and of the result in memory; the model is the one in use."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedapa as fa
from command import Call
from fedapa.analysis.opened_run import OpenedRun
from fedapa.errors import InputError


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, fa.Result, fa.Federated]:
    out = tmp_path_factory.mktemp("kept") / "run"
    data = fa.load("digits", "dirichlet", clients=3, alpha=0.5, min_train=20, min_test=5)
    return out, fa.fit(fa.FedAPA(eta=0.02), data, "mlp", 3, out=out, lr=0.1), data


def opened(folder: Path) -> OpenedRun:
    found = fa.open(folder)
    assert isinstance(found, OpenedRun)
    return found


def test_curves_are_those_of_the_result(kept) -> None:
    out, result, _ = kept
    run = opened(out)
    for phase in ("before", "after"):
        for score in ("accuracy", "loss"):
            assert [row.pooled for row in run.curve(phase, score=score)] == pytest.approx(
                [summary.pooled for summary in result.curve(phase, score=score)]
            )
    assert [row.round for row in run.curve()] == [1, 2, 3] or [row.round for row in run.curve()] == [0, 1, 2, 3]
    with pytest.raises(InputError, match="no curve"):
        run.curve(data="validation")


def test_clients_weights_and_config(kept) -> None:
    out, result, data = kept
    run = opened(out)
    assert [(row.train, row.test) for row in run.clients] == [(len(c.train.y), len(c.test.y)) for c in data.clients]
    last = result.logs[-1].after
    assert [row.after for row in run.clients] == pytest.approx(100 * last[:, 0, 0] / last[:, 0, 1])
    weights = np.zeros((3, 3))
    for row in run.weights:
        weights[row.client, row.other] = row.weight
    assert weights == pytest.approx(result.logs[-1].watched["A"].numpy())
    assert run.config["method"]["fedapa"] == {"base": "fedapa", "eta": 0.02}


def test_the_model_is_the_one_in_use(kept) -> None:
    out, result, data = kept
    model = opened(out).model("1")
    x = data.clients[1].test.x
    if result.method.evaluated == "after":
        assert torch.equal(model.logits(x), result.predict(1, x))
    right = float((model(x).argmax(1) == data.clients[1].test.y.numpy()).mean())
    row = opened(out).clients[1]
    assert 100 * right == pytest.approx(getattr(row, result.method.evaluated))
    with pytest.raises(InputError, match="there is no client 7"):
        opened(out).model(7)


def test_a_run_made_by_fit_is_whole(kept, fedapa: Call, tmp_path: Path) -> None:
    out = kept[0]
    assert fedapa("resume", out).code == 0
    assert fedapa("report", out, "--out", tmp_path / "page.html").code == 0
    assert fedapa("export", out, "--client", 0, "--out", tmp_path / "exported").code == 0
    assert (tmp_path / "exported" / "site-model" / "model.safetensors").exists()


def test_what_no_config_can_name_is_refused_kindly(fedapa: Call, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 4)).astype("float32"), generator.integers(0, 2, 60)
    data = fa.from_arrays([(x[k : k + 20], y[k : k + 20], x[k + 20 : k + 30], y[k + 20 : k + 30]) for k in (0, 30)])
    fa.fit("fedavg", data, "mlp", 2, out="made", lr=0.1)
    assert not Path("made/config.toml").exists()
    assert fedapa("compare", "made").code == 0
    answer = fedapa("export", "made", "--client", 0)
    assert answer.code == 2
    assert "made by fit() from Python objects" in answer.err
    assert opened(Path("made")).curve()[-1].pooled > 0
    with pytest.raises(InputError, match="Python objects"):
        opened(Path("made")).model(0)


def test_a_summary_is_printed(kept) -> None:
    out, result, _ = kept
    shown = str(result)
    assert shown.startswith("FedAPA (3 clients, 3 rounds")
    assert "accuracy:" in shown
    assert "loss:" in shown
    assert "KiB per client and round" in shown
    assert str(fa.open(out)).startswith("fedapa: ")


def test_several_runs_print_a_comparison(tmp_path: Path) -> None:
    for seed in range(3):
        data = fa.load("digits", "dirichlet", clients=3, alpha=0.5, seed=seed, min_train=20, min_test=5)
        for name in ("local", "fedavg"):
            fa.fit(name, data, "mlp", 2, seed=seed, out=tmp_path / f"{name}-{seed}", lr=0.1)
    runs = fa.open(tmp_path)
    assert len(runs) == 6  # type: ignore[arg-type]
    shown = str(runs)
    assert "over local, p " in shown
    assert "Highest:" in shown
    assert [row.method for row in runs.table] == ["local", "fedavg"]  # type: ignore[union-attr]


def test_rows_become_a_data_frame(kept, monkeypatch) -> None:
    out, _, _ = kept
    rows = opened(out).clients
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda found: found))
    assert rows.to_pandas()[0]["train"] == rows[0].train
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pandas is not installed"):
        rows.to_pandas()


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        fa.open(tmp_path)
