"""Every round of a run reaches its sinks: an own one, TensorBoard's real event files, fakes of the others."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedapa as fa
from command import Call
from fedapa.errors import InputError
from fedapa.sinks import make_sink

OWN = """
import json, pathlib
HERE = pathlib.Path(__file__).parent / "heard.jsonl"

class Heard:
    def _say(self, **words):
        with HERE.open("a") as file:
            file.write(json.dumps(words) + "\\n")

    def start(self, run):
        self._say(start=run.name, lr=run.settings["training.lr"])

    def round(self, done, values):
        self._say(round=done, **values)

    def end(self, status):
        self._say(end=status)
"""


def heard(tmp_path: Path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "heard.jsonl").read_text().splitlines()]


def test_an_own_sink_hears_what_the_run_records(fedapa: Call, small: Path, tmp_path: Path) -> None:
    (tmp_path / "my_log.py").write_text(OWN)
    answer = fedapa("run", small, "--method", "fedapa", "--log", "my_log.py:Heard", "--out", "out")
    assert answer.code == 0, answer.err
    first, *rounds, last = heard(tmp_path)
    assert first == {"start": "fedapa-seed0", "lr": 0.1}
    assert last == {"end": "finished"}
    assert [row["round"] for row in rounds] == [1, 2, 3]
    run = fa.open("out/fedapa-seed0")
    for score in ("accuracy", "loss"):
        kept = [row.pooled for row in run.curve("after", score=score)]
        assert [row[f"test/{score}/after"] for row in rounds] == pytest.approx(kept)
    assert rounds[0]["bytes/up"] > 0


def test_a_run_that_fails_says_so(tmp_path: Path) -> None:
    (tmp_path / "my_log.py").write_text(OWN)
    data = fa.load("digits", "iid", clients=2)

    def stop(log: object) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        fa.fit("local", data, "mlp", 2, progress=stop, log=f"{tmp_path}/my_log.py:Heard", lr=0.1)
    assert heard(tmp_path)[-1] == {"end": "failed"}


def test_logs_do_not_change_the_experiment(small: Path) -> None:
    from fedapa.config.experiment import config_hash, single
    from fedapa.config.load import load

    one, other = (single(load(str(small), changes), "fedapa", 0) for changes in ([], ['run.log=["mlflow"]']))
    assert config_hash(one) == config_hash(other)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tensorbord", "tensorboard"),
        ("my_log.py:Nobody", "has no 'Nobody'"),
        ("my_log.py:HERE", "is no class"),
        ("my_log.py:Mute", "has no function start"),
    ],
)
def test_mistakes(fedapa: Call, small: Path, tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "my_log.py").write_text(f"{OWN}\n\nclass Mute:\n    pass\n")
    answer = fedapa("sweep", small, "--log", name, "--dry-run")
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard"])
def test_a_missing_library_is_named_with_its_extra(name: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    data = fa.load("digits", "iid", clients=2)
    with pytest.raises(InputError, match=f"{name} is not installed") as caught:
        fa.fit("local", data, "mlp", 1, log=name, out=tmp_path / "out")
    assert caught.value.hint == f"pip install 'fedapa[{name}]'"


def test_mlflow_and_wandb_are_called_as_they_want(monkeypatch) -> None:
    calls: list[tuple] = []

    def note(word: str):
        return lambda *a, **k: calls.append((word, a, k))

    words = ("start_run", "log_params", "log_metrics", "end_run")
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**{word: note(word) for word in words}))
    started = SimpleNamespace(log=note("log"), finish=note("finish"))
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(init=lambda **k: calls.append(("init", (), k)) or started)
    )
    data = fa.load("digits", "iid", clients=2)
    fa.fit("local", data, "mlp", 2, log=["mlflow", "wandb"], lr=0.1)
    named = [word for word, _, _ in calls]
    assert named == ["start_run", "log_params", "init", *["log_metrics", "log"] * 2, "end_run", "finish"]
    assert [k["step"] for word, _, k in calls if word in ("log_metrics", "log")] == [1, 1, 2, 2]
    assert "test/loss/after" in next(a for word, a, _ in calls if word == "log")[0]


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="pip install 'fedapa[tensorboard]'")
@pytest.mark.filterwarnings("ignore")  # of TensorBoard's own imports
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    data = fa.load("digits", "iid", clients=2)
    result = fa.fit("fedavg", data, "mlp", 3, log="tensorboard", out=tmp_path / "out", lr=0.1)
    found = EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload().Scalars("test/accuracy/after")
    assert [event.step for event in found] == [1, 2, 3]
    assert [event.value for event in found] == pytest.approx([row.pooled for row in result.curve("after")])


def test_tensorboard_needs_a_folder() -> None:
    with pytest.raises(InputError, match="needs a folder"):
        make_sink("tensorboard").start(SimpleNamespace(folder=None))  # type: ignore[arg-type]
