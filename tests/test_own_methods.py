"""A method in a user's file, through every command: run, sweep, plan, tune, verify, compare, report, resume."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import fedapa as fa
from command import SMALL, Call
from fedapa import plugins
from fedapa.config.experiment import config_hash, read_config
from fedapa.config.load import check, load
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make, method_class
from fedapa.store import checkpoint
from fedapa.store.run_folder import status

EXAMPLE = Path(__file__).parents[1] / "examples" / "my_method.py"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The user's file, beside the config."""
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE.read_text())
    return path


def test_run_resume_compare_and_report(fedapa: Call, small: Path, own: Path, tmp_path: Path) -> None:
    words = ("--method", "local,mine.py:HalfWay,mine.py:HalfWay+ema", "--set", "method.halfway.step=1.0")
    answer = fedapa("run", small, *words, "--out", "out")
    assert answer.code == 0, answer.err
    assert {path.name for path in Path("out").iterdir()} == {"local-seed0", "halfway-seed0", "halfway+ema-seed0"}
    kept = read_config(Path("out/halfway-seed0"))
    assert kept.method["halfway"]["base"] == f"{own}:HalfWay"
    assert fedapa("resume", "out").code == 0
    assert "halfway+ema" in fedapa("compare", "out").out
    assert fedapa("report", "out").code == 0
    assert "halfway" in Path("out/report.html").read_text()
    shown = str(fa.open("out"))
    assert "halfway:" in shown
    assert "over local" in shown


def test_a_file_finds_the_files_beside_it(fedapa: Call, small: Path, own: Path, tmp_path: Path) -> None:
    """As a script does that Python runs; also in the processes of a sweep."""
    (tmp_path / "apart" / "deep").mkdir(parents=True)
    (tmp_path / "apart" / "deep" / "shares_of_mine.py").write_text("STEP = 0.25\n")
    code = "from shares_of_mine import STEP\n" + own.read_text().replace("fa.hyper(0.5,", "fa.hyper(STEP,")
    code = code.replace("from __future__ import annotations\n", "")
    (tmp_path / "apart" / "deep" / "method.py").write_text(code)
    words = ("--method", "apart/deep/method.py:HalfWay", "--jobs", 1, "--out", "out")
    answer = fedapa("sweep", small, *words)
    assert answer.code == 0, answer.err
    assert status(Path("out/halfway-seed0")) == "finished"


def test_with_full_steps_and_no_pull_it_is_fedavg_bit_for_bit(fedapa: Call, small: Path, own: Path) -> None:
    """Its settings arrive, and nothing around an own method changes a number."""
    words = ("--set", "method.halfway.step=1.0", "--set", "method.halfway.rho=0.0", "--set", "run.engine=torch")
    assert fedapa("run", small, "--method", "fedavg,mine.py:HalfWay", *words, "--out", "out").code == 0
    one, other = (checkpoint.newest(Path("out", f"{name}-seed0", "checkpoints")) for name in ("fedavg", "halfway"))
    assert one is not None
    assert other is not None
    assert (one.state.server["omega"] - other.state.server["omega"]).abs().max() < 1e-5


def test_a_changed_file_is_refused_by_its_name(fedapa: Call, small: Path, own: Path) -> None:
    words = ("run", small, "--method", "mine.py:HalfWay", "--out", "out")
    assert fedapa(*words).code == 0
    before = config_hash(read_config(Path("out/halfway-seed0")))
    checkpoints = sorted(Path("out/halfway-seed0/checkpoints").iterdir())
    own.write_text(own.read_text() + "\n# another thought\n")
    for again in (("resume", "out"), words):
        _unfinish(Path("out/halfway-seed0"))
        answer = fedapa(*again)
        assert answer.code == 2
        assert f"{own} was changed" in answer.err
    assert sorted(Path("out/halfway-seed0/checkpoints").iterdir()) == checkpoints
    assert fedapa("run", small, "--method", "mine.py:HalfWay", "--out", "new").code == 0
    assert config_hash(read_config(Path("new/halfway-seed0"))) != before  # other code is another experiment


def _unfinish(run: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(run / "run.db")) as db, db:
        db.execute("UPDATE meta SET value='running' WHERE key='status'")
    assert status(run) == "running"


def test_sweep_plan_tune_and_their_dry_runs(fedapa: Call, small: Path, own: Path) -> None:
    assert fedapa("sweep", small, "--method", "mine.py:HalfWay", "--jobs", 1, "--out", "swept").code == 0
    assert status(Path("swept/halfway-seed0")) == "finished"
    planned = json.loads(fedapa("plan", small, "--method", "mine.py:HalfWay", "--format", "json").out)
    assert planned["methods"][0]["KiB/client/round"] > 0
    answer = fedapa("tune", small, "--method", "mine.py:HalfWay", "--set-space", "halfway.rho=0..1", "--dry-run")
    assert "rho" in answer.out
    bad = fedapa("tune", small, "--method", "mine.py:HalfWay", "--set-space", "halfway.rho=-1..1", "--dry-run")
    assert bad.code == 2
    assert "legal range" in bad.err


def test_verify_takes_one_class_of_a_file_with_a_wrapper(fedapa: Call, own: Path) -> None:
    answer = fedapa("verify", f"{own}:HalfWay+quantised", "--format", "json")
    assert answer.code == 0, answer.err
    assert {row["verdict"] for row in json.loads(answer.out)} == {"holds"}


def test_by_base_in_a_config(tmp_path: Path, own: Path) -> None:
    path = tmp_path / "a" / "config.toml"
    path.parent.mkdir()
    text = SMALL.replace('["fedapa", "fedavg", "local"]', '["half", "quarter"]')
    base = 'base = "../mine.py:HalfWay"'
    path.write_text(f"{text}\n[method.half]\n{base}\n[method.quarter]\n{base}\nstep = 0.25\n")
    config = load(str(path))
    assert config.method["quarter"] == {"base": f"{path.parent}/../mine.py:HalfWay", "step": 0.25}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--method", "nowhere.py:HalfWay"), "nowhere.py:HalfWay' cannot be imported"),
        (("--method", "mine.py:Halfway"), "has no 'Halfway'"),
        (("--method", "mine.py:proxy"), "is not a subclass of Method"),
        (("--method", "mine.py:HalfWay+emma"), "unknown wrapper 'emma'"),
        (("--method", "mine.py:HalfWay@authors"), "has no recipe 'authors'"),
        (("--method", "mine.py:HalfWay", "--set", "method.halfway.stepp=1"), "no hyper-parameter 'stepp'"),
        (("--method", "mine.py:HalfWay", "--set", "method.halfway.step=7"), "outside its legal range"),
        (("--method", "mine.py:HalfWay,sub/mine.py:HalfWay"), "would be called 'halfway', which is another method"),
        (("--method", "broken.py:M"), "ZeroDivisionError"),
        (("--method", "reserved.py:M"), "has a hyper-parameter 'code'"),
        (("--method", "abstract.py:M"), "lacks absorb, init, predict"),
    ],
)
def test_mistakes_are_explained(fedapa: Call, small: Path, own: Path, tmp_path: Path, words: tuple, said: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.py").write_text(own.read_text())
    (tmp_path / "broken.py").write_text("1 / 0\n")
    head = "from dataclasses import dataclass\nimport fedapa as fa\n"
    (tmp_path / "abstract.py").write_text(f"{head}class M(fa.Method):\n    pass\n")
    field = "@dataclass(frozen=True)\nclass M(HalfWay):\n    code: int = 3\n"
    (tmp_path / "reserved.py").write_text(f"{own.read_text()}\n{field}")
    answer = fedapa("run", small, *words, "--out", "out")
    assert answer.code == 2
    assert said in answer.err
    assert not Path("out").exists()


def test_a_config_from_elsewhere_imports_nothing(tmp_path: Path) -> None:
    """As a site checks what a coordinator sent; the user's own command does import it."""
    (tmp_path / "trap.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\nM = 1\n")
    raw = {"methods": ["x"], "method": {"x": {"base": f"{tmp_path}/trap.py:M", "any": 3}}}
    check(raw)
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(InputError, match="not a subclass"):
        check(raw, with_own_code=True)
    assert (tmp_path / "sprung").exists()


PACKAGE = """
import fedapa as fa
from fedapa.methods.fedavg import FedAvg as Base
from torch import nn

class Shipped(Base):
    pass

def net(shape, classes):
    found = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
    found.add_module("head", nn.Linear(8, classes))
    return found
"""


def test_a_package_registers_its_code(fedapa: Call, small: Path, tmp_path: Path, monkeypatch) -> None:
    """A real distribution on the path, found by its entry points."""
    (tmp_path / "clinic.py").write_text(PACKAGE)
    info = tmp_path / "clinic-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clinic\nVersion: 1.0\n")
    points = (
        "[fedapa.methods]\nclinic-avg = clinic:Shipped\nfedavg = clinic:net\n[fedapa.models]\nclinic-net = clinic:net\n"
    )
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.installed.cache_clear()
    try:
        words = ("--method", "clinic-avg,fedavg", "--set", "model.name=clinic-net", "--out", "out")
        answer = fedapa("run", small, *words)
        assert answer.code == 0, answer.err
        config = read_config(Path("out/clinic-avg-seed0"))
        assert config.method["clinic-avg"]["base"] == "clinic:Shipped"
        assert config.model.name == "clinic:net"
        assert method_class("fedavg") is fa.FedAvg  # a package does not replace what is shipped
        listed = {row["name"] for row in json.loads(fedapa("ls", "methods", "--format", "json").out)}
        assert "clinic-avg" in listed
    finally:
        plugins.installed.cache_clear()
        sys.modules.pop("clinic", None)


def test_everything_is_exported() -> None:
    classes = {method_class(name) for name in METHODS}
    assert all(getattr(fa, cls.__name__) is cls for cls in classes)
    assert {cls.__name__ for cls in classes} | {"Tree", "open", "Sink", "fit"} <= set(dir(fa))
    assert fa.Tree == fa.core.tree.Tree  # type: ignore[attr-defined]


def test_a_file_is_read_again_where_it_changed(own: Path) -> None:
    first = type(make(f"{own}:HalfWay"))
    assert type(make(f"{own}:HalfWay")) is first
    own.write_text(own.read_text().replace("hyper(0.5", "hyper(0.25"))
    assert make(f"{own}:HalfWay").step == 0.25  # type: ignore[attr-defined]
