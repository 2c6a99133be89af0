"""Every run says which code, engine, processor and config its numbers come from, and which version of the numbers."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
import torch

import fedapa as fa
from command import Call
from fedapa.analysis import result_sets, run_results
from fedapa.analysis.run_reader import gather
from fedapa.config.experiment import config_hash, execute, lay_out, method_from, single
from fedapa.config.load import load
from fedapa.config.sections import Config
from fedapa.methods.catalogue import METHODS, make
from fedapa.store import provenance, run_db
from fedapa.version import NUMERICS

ROOT = Path(__file__).parents[2]


def meta(run: Path) -> dict[str, str]:
    with run_db.reading(run / "run.db") as db:
        return run_db.meta(db)


def write_meta(run: Path, *statements: str) -> None:
    with closing(sqlite3.connect(run / "run.db")) as db, db:
        for statement in statements:
            db.execute(statement)


# --------------------------------------------------------------------------------------------------- what a run keeps


def test_a_run_keeps_where_its_numbers_come_from(small: Path, tmp_path: Path) -> None:
    config = load(str(small))
    (run,) = lay_out(single(config, "fedapa", 0), tmp_path / "out")
    execute(run)
    found = meta(run)
    assert found["numerics"] == str(NUMERICS)
    assert found["torch"] == torch.__version__
    assert re.fullmatch(r"[0-9a-f]{12}(\+changes)?|v[0-9.]+|unknown", found["commit"])
    assert found["processor"].endswith(torch.backends.cpu.get_cpu_capability())
    assert found["library"] in ("torch", "vmap")
    assert found["config"] == config_hash(single(config, "fedapa", 0))
    read = run_results.read(run)
    assert read is not None
    assert read.provenance == provenance.read(found)
    (again,) = result_sets.from_dicts(json.loads(json.dumps(result_sets.as_dicts([read]), default=str)))
    assert (again.provenance, again.partition) == (read.provenance, found["partition"])


def test_a_run_keeps_what_it_was_told_in_run_db_alone(small: Path, tmp_path: Path) -> None:
    config = single(load(str(small)), "fedapa", 0)
    (run,) = lay_out(config, tmp_path / "out")
    execute(run)
    written = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    (run / "config.toml").unlink()
    ((only,),) = (scenario.runs for scenario in gather(tmp_path / "out").scenarios)
    assert only.config == written
    assert only.settings["mu"] == method_from(config, "fedapa").mu  # type: ignore[attr-defined]


def test_the_native_engine_is_named_with_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedapa.simulation import make_task
    from fedapa.training.engines.native import available

    if not available()[0]:
        pytest.skip("the native engine is not built here")
    images = torch.zeros(20, 1, 16, 16).numpy()
    data = fa.from_arrays([(images, [0, 1] * 10, images, [0, 1] * 10)])
    monkeypatch.setenv("FEDAPA_NATIVE", "portable")
    assert provenance.current(make_task(data, "lenet5"))["library"] == "native-portable"


def test_results_from_before_are_numerics_1_and_unknown(tmp_path: Path) -> None:
    rows = json.loads((ROOT / "experiments" / "results" / "table2.json").read_text())["runs"]
    for row in rows:
        row.pop("provenance", None)
    assert {run.provenance for run in result_sets.from_dicts(rows)} == {provenance.Provenance()}
    assert provenance.Provenance().numerics == 1


def test_sessions_on_other_machines_are_all_named() -> None:
    first = provenance.over_sessions({}, {"commit": "a", "torch": "2"})
    second = provenance.over_sessions(first, {"commit": "b", "torch": "2"})
    third = provenance.over_sessions(second, {"commit": "a", "torch": "2"})
    assert (first["commit"], second["commit"], third) == ("a", "a; b", {"commit": "a; b", "torch": "2"})


def test_fit_keeps_it_too(tmp_path: Path) -> None:
    digits = fa.load("digits", "iid", clients=3)
    for seed, lr in ((0, 0.1), (1, 0.1), (0, 0.2)):
        fa.fit("fedavg", digits, "mlp", rounds=1, out=tmp_path / f"{seed}-{lr}", seed=seed, lr=lr)
    hashes = [meta(tmp_path / name)["config"] for name in ("0-0.1", "1-0.1", "0-0.2")]
    assert hashes[0] == hashes[1] != hashes[2]
    assert [len(scenario.runs) for scenario in gather(tmp_path).scenarios] == [2, 1]


# ----------------------------------------------------------------------------------------------------- config hashes


@pytest.mark.parametrize(
    "change",
    ["run.rounds=7", "run.participation=0.5", "run.evaluate_every=2", "training.lr=0.5", "data.alpha=0.9",
     "data.clients=9", "data.validation=0.1", "model.name=mlp", "method.fedapa.eta=0.5", 'attack.kind="noise"'],
)  # fmt: skip
def test_what_changes_numbers_changes_the_hash(change: str) -> None:
    base = ['methods=["fedapa"]', "seeds=[0]"]
    assert config_hash(load("demo", [*base, change])) != config_hash(load("demo", base))


@pytest.mark.parametrize(
    "change",
    ["seeds=[5]", "run.workers=2", "run.engine=torch", "run.checkpoint_every=3", "data.data_dir=elsewhere",
     "run.mmap_above_mb=1", "federation.retries=7"],
)  # fmt: skip
def test_what_does_not_change_numbers_does_not_change_the_hash(change: str) -> None:
    base = ['methods=["fedapa"]', "seeds=[0]"]
    assert config_hash(load("demo", [*base, change])) == config_hash(load("demo", base))


def test_the_hash_is_of_the_method_with_its_defaults_whatever_it_is_called() -> None:
    plain, named = 'methods=["fedapa"]', ['methods=["mine"]', "method.mine.base=fedapa"]
    whole = load("demo", [*named, f"method.mine.eta={fa.FedAPA().eta}"])
    assert config_hash(whole) == config_hash(load("demo", [plain]))
    assert config_hash(load("demo", [*named, "method.mine.mu=0.25"])) != config_hash(whole)


def test_where_the_files_of_sites_lie_does_not_count() -> None:
    def of(name: str, file: str) -> str:
        return config_hash(
            Config.model_validate({"methods": ["local"], "sites": {"files": {name: file}, "label": "y"}})
        )

    assert of("a", "x/a.csv") == of("a", "z/a.csv") != of("b", "x/a.csv")


# ------------------------------------------------------------------------------------------------------------ commits


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return subprocess.run(
        ["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True, env=clean
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not here")
    package = tmp_path / "repo" / "src" / "fedapa"
    package.mkdir(parents=True)
    (package / "code.py").write_text("1")
    git(tmp_path / "repo", "init", "-q")
    git(tmp_path / "repo", "add", ".")
    git(tmp_path / "repo", "commit", "-q", "-m", "one")
    return package


def test_the_commit_of_a_checkout_and_changes_under_src(checkout: Path) -> None:
    root = checkout.parents[1]
    head = git(root, "rev-parse", "--short=12", "HEAD")
    (root / "notes.txt").write_text("outside src")
    assert provenance.commit_of.__wrapped__(checkout) == head
    (checkout / "code.py").write_text("2")
    assert provenance.commit_of.__wrapped__(checkout) == f"{head}+changes"


def test_a_package_installed_inside_a_repository_of_somebody_else(checkout: Path) -> None:
    installed = checkout.parents[1] / ".venv" / "lib" / "site-packages" / "fedapa"
    installed.mkdir(parents=True)
    assert provenance.commit_of.__wrapped__(installed) == f"v{provenance.package_version('fedapa')}"


def test_without_git_the_commit_is_unknown(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert provenance.commit_of.__wrapped__(checkout) == "unknown"


def test_another_repository_in_the_environment_does_not_mislead(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(checkout, "rev-parse", "--short=12", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))
    assert provenance.commit_of.__wrapped__(checkout) == head


# --------------------------------------------------------------------------------------------------- numerics version


def test_every_raise_of_the_numerics_version_is_explained() -> None:
    (page,) = (ROOT / "docs" / "decisions").glob("*-numerics-version.md")
    rows = re.findall(r"^\| (\d+) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [str(version) for version in range(1, NUMERICS + 1)]


@pytest.mark.parametrize("began", [None, NUMERICS + 1])
def test_a_run_of_another_numerics_version_is_not_resumed(
    began: int | None, small: Path, tmp_path: Path, fedapa: Call
) -> None:
    out = tmp_path / "out"
    assert fedapa("run", small, "--out", out, "--method", "local").code == 0
    (run,) = out.iterdir()
    write_meta(run, "UPDATE meta SET value = 'running' WHERE key = 'status'", "DELETE FROM meta WHERE key = 'numerics'")
    if began is not None:
        write_meta(run, f"INSERT INTO meta VALUES ('numerics', '{began}')")
    before = run_db.numbers(run / "run.db")
    answer = fedapa("resume", out)
    assert answer.code == 2
    assert f"begun under numerics version {began or 1}; this is version {NUMERICS}" in answer.err
    assert "hint: run it again in a new folder, or finish it with fedapa" in answer.err
    assert meta(run)["commit"] in answer.err
    assert run_db.numbers(run / "run.db") == before


def test_every_revision_of_a_method_is_explained() -> None:
    (page,) = (ROOT / "docs" / "decisions").glob("*-numerics-version.md")
    rows = re.findall(r"^\| ([A-Z][^|]*) \| (\d+) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    told = {name: int(number) for names, number in rows for name in names.split(", ")}
    raised = {entry.title: found for name, entry in METHODS.items() if (found := make(name).revision)}
    assert told == raised


def test_a_wrapper_has_the_revision_of_the_method_inside() -> None:
    assert make("fedproto+quantised").revision == make("fedproto").revision > make("fedavg+quantised").revision == 0


def test_a_run_of_another_revision_of_its_method_is_not_resumed(small: Path, tmp_path: Path, fedapa: Call) -> None:
    out = tmp_path / "out"
    assert fedapa("run", small, "--out", out, "--method", "local").code == 0
    (run,) = out.iterdir()
    write_meta(run, "UPDATE meta SET value = 'running' WHERE key = 'status'")
    assert fedapa("resume", out).code == 0
    write_meta(run, "UPDATE meta SET value = 'running' WHERE key = 'status'",
               "UPDATE meta SET value = '7' WHERE key = 'revision'")  # fmt: skip
    answer = fedapa("resume", out)
    assert answer.code == 2
    assert "begun under revision 7 of this method's numbers; this is revision 0" in answer.err
    assert "hint: run it again in a new folder, or finish it with fedapa" in answer.err
    write_meta(run, "DELETE FROM meta WHERE key = 'revision'")  # as before it was kept
    assert fedapa("resume", out).code == 0


def test_revisions_in_one_mean_are_told_and_pairs_do_not_need_the_same(
    small: Path, tmp_path: Path, fedapa: Call
) -> None:
    out = tmp_path / "out"
    assert fedapa("run", small, "--out", out, "--set", "seeds=[0, 1]").code == 0
    for run in ("local-seed0", "local-seed1"):
        write_meta(out / run, "UPDATE meta SET value = '1' WHERE key = 'revision'")
    answer = fedapa("compare", out, "--format", "json")
    assert "revision" not in answer.err
    rows = {row["method"]: row for row in json.loads(answer.out)["methods"]}
    assert rows["fedapa"]["gain"] is not None
    write_meta(out / "local-seed1", "UPDATE meta SET value = '0' WHERE key = 'revision'")
    note = "runs of different revisions of a method's numbers are in one mean (local: 0 and 1)"
    assert note in fedapa("compare", out, "--format", "json").err


def test_runs_of_different_numerics_versions_are_named_and_not_paired(
    small: Path, tmp_path: Path, fedapa: Call
) -> None:
    out = tmp_path / "out"
    assert "numerics" not in fedapa("run", small, "--out", out).err
    paired = json.loads(fedapa("compare", out, "--format", "json").out)["methods"]
    assert next(row["gain"] for row in paired if row["method"] == "fedapa") is not None
    write_meta(out / "local-seed0", "UPDATE meta SET value = '1' WHERE key = 'numerics'")
    answer = fedapa("compare", out, "--format", "json")
    note = f"different numerics versions are not paired with each other (version 1: local; version {NUMERICS}: fed"
    assert note in answer.err
    rows = {row["method"]: row for row in json.loads(answer.out)["methods"]}
    assert (rows["local"]["numerics"], rows["fedapa"]["numerics"]) == ("1", str(NUMERICS))
    assert rows["fedapa"]["gain"] is None
    assert json.loads(answer.out)["runs"][0]["provenance"]["config"] != "unknown"


def test_compare_says_what_made_the_runs(small: Path, tmp_path: Path, fedapa: Call) -> None:
    assert fedapa("run", small, "--out", tmp_path / "out", "--method", "local").code == 0
    answer = fedapa("compare", tmp_path / "out")
    assert f"made with commit {provenance.commit()}; engine torch; processor {provenance.processor()}" in answer.err


# ----------------------------------------------------------------------------------------- two names of one federation


def test_fedavg_and_fedavg_ft_are_one_federation() -> None:
    """They differ in the model that is reported; every number of both is equal."""
    digits = fa.load("digits", "dirichlet", clients=6, alpha=0.3, min_train=20, min_test=5)
    one, other = (fa.fit(name, digits, "cnn8", rounds=4, epochs=1) for name in ("fedavg", "fedavg-ft"))
    for phase in ("before", "after"):
        assert one.curve(phase) == other.curve(phase)
    assert torch.equal(one.state.server["omega"], other.state.server["omega"])
