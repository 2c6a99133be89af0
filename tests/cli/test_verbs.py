"""Every verb, as a newcomer would type it."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command import COMMAND, Call
from fedapa.cli import VERBS
from fedapa.config import presets
from fedapa.config.load import load
from fedapa.methods.catalogue import METHODS
from made_runs import make_run

GLANCE = Path(__file__).parents[2] / "docs" / "commands.md"
SPLIT = ("data", "split", "digits", "--clients", "4", "--min-train", "20", "--min-test", "2")


# ---------------------------------------------------------------------------------------------------- help and start


@pytest.mark.parametrize("words", [(), *((verb,) for verb in VERBS), ("data", "fetch"), ("data", "split")])
def test_help_of_every_verb(fedapa: Call, words: tuple[str, ...]) -> None:
    for option in ("--help", "-h"):
        answer = fedapa(*words, option)
        assert answer.code == 0
        assert answer.out.startswith("Usage: fedapa")
        assert len(answer.out.splitlines()) > 4
        assert answer.err == ""


def test_the_main_help_tells_verbs_and_exit_codes(fedapa: Call) -> None:
    answer = fedapa("--help")
    assert all(re.search(rf"^  {verb} +\S", answer.out, re.M) for verb in VERBS)
    assert "Exit codes" in answer.out
    assert "fedapa demo" in answer.out


def test_version(fedapa: Call) -> None:
    assert re.search(r"\d+\.\d+", fedapa("--version").out)


def test_no_words_show_the_help(fedapa: Call) -> None:
    answer = fedapa()
    assert answer.code in (0, 2)
    assert "Usage: fedapa" in answer.out + answer.err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_on_the_page_of_commands(verb: str) -> None:
    assert re.search(rf"\bfedapa {verb}\b", GLANCE.read_text(encoding="utf-8")), (
        f"docs/commands.md does not show fedapa {verb}"
    )


@pytest.mark.parametrize(
    "words", ["--help", "run --help", "resume --help", "ls", "ls methods", "ls --format json", "cite fedapa", "rnu"]
)
def test_listing_and_help_start_without_torch(words: str) -> None:
    assert loaded(words.split(), "torch sklearn scipy pandas matplotlib pydantic") == ""


def test_runs_are_compared_without_torch(tmp_path: Path) -> None:
    for seed, (label, extra) in itertools.product(range(3), (("local", 0), ("fedapa", 1))):
        right = [[n + extra + seed * n // 3 for n in row] for row in ([1, 2, 3], [2, 4, 6])]
        make_run(tmp_path / f"{label}-seed{seed}", label, right, seed, weights=label == "fedapa")
    assert loaded(["compare", str(tmp_path)], "torch sklearn scipy.stats pandas matplotlib") == ""


def loaded(words: list[str], slow: str) -> str:
    """Which of these modules a command has loaded, if it succeeds."""
    code = (
        "import sys, fedapa.cli\n"
        f"sys.argv = ['fedapa', *{words!r}]\n"
        "try: fedapa.cli.main()\n"
        "except SystemExit: pass\n"
        f"print(*sorted(set({slow.split()!r}) & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1]


# ---------------------------------------------------------------------------------------------------------- listings


@pytest.mark.parametrize("kind", ["methods", "presets", "datasets", "models"])
def test_listings_as_table_and_json(fedapa: Call, kind: str) -> None:
    rows = json.loads(fedapa("ls", kind, "--format", "json").out)
    table = fedapa("ls", kind)
    assert table.code == 0
    assert all(row["name"] in table.out for row in rows)
    known = {
        "methods": set(METHODS),
        "presets": set(presets.names()),
        "datasets": {"digits", "cifar10"},
        "models": set(),
    }
    assert {row["name"] for row in rows} >= known[kind]


def test_all_listings_at_once(fedapa: Call) -> None:
    kinds = {"methods", "recipes", "wrappers", "presets", "datasets", "models"}
    assert json.loads(fedapa("ls", "--format", "json").out).keys() == kinds
    assert "fedapa" in fedapa("ls").out


def test_the_listed_models_can_be_built(fedapa: Call) -> None:
    from fedapa.training.architectures import MODELS

    names = [row["name"] for row in json.loads(fedapa("ls", "models", "--format", "json").out)]
    assert names[:-2] == list(MODELS)  # behind them: those of other libraries, and your own


def test_doctor(fedapa: Call) -> None:
    rows = {row["what"]: row for row in json.loads(fedapa("doctor", "--format", "json").out)}
    assert rows.keys() >= {"python", "torch", "cores", "engine torch", "engine native", "data digits", "data folder"}
    assert rows["data digits"]["state"] == "present"
    assert "torch" in fedapa("doctor").out


def test_doctor_says_that_a_package_is_there_and_cannot_be_imported(
    fedapa: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    rows = {row["what"]: row for row in json.loads(fedapa("doctor", "--format", "json").out)}
    assert rows["extra models"]["state"] == "broken"
    assert "nms does not exist" in rows["extra models"]["note"]


def test_doctor_says_how_to_get_missing_data(fedapa: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDAPA_DATA", str(tmp_path))
    rows = {row["what"]: row for row in json.loads(fedapa("doctor", "--format", "json").out)}
    assert rows["data cifar10"]["note"] == "fedapa data fetch cifar10"
    assert rows["data folder"]["state"] == str(tmp_path)


def test_cite(fedapa: Call) -> None:
    assert "@inproceedings" in fedapa("cite", "fedapa").out
    assert json.loads(fedapa("cite", "fedavg", "--format", "json").out)["year"] == 2017
    assert fedapa("cite", "local").code == 2


def test_verify_a_shipped_method(fedapa: Call) -> None:
    answer = fedapa("verify", "local", "--format", "json")
    assert answer.code == 0
    assert {row["verdict"] for row in json.loads(answer.out)} == {"holds"}


def test_verify_with_a_model_of_ones_own(fedapa: Call, tmp_path: Path) -> None:
    lines = "from torch import nn\n\n\ndef net(shape, classes):\n"
    lines += "    return nn.Sequential(nn.Conv2d(1, 2, shape[2] - 3), nn.Flatten(), nn.Linear(32, classes))\n"
    (tmp_path / "mine.py").write_text(lines)
    answer = fedapa("verify", "local", "--model", "mine.py:net", "--head", "2", "--format", "json")
    assert answer.code == 0, answer.err
    assert {row["verdict"] for row in json.loads(answer.out)} == {"holds"}
    refused = fedapa("verify", "local", "--model", "lenet5")  # no room for its layers in 8 x 8
    assert refused.code == 2
    assert "takes none of the samples" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "mine.py:words", "--head", "2"),
        ("--model", "transformer", "--set", "model.settings.vocabulary=10", "--set", "model.settings.width=4"),
    ],
)
def test_verify_with_a_model_of_token_ids(fedapa: Call, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Numbers have the shape of token ids, and only a pass tells that the model does not take them."""
    lines = "from torch import nn\n\n\ndef words(shape, classes):\n"
    lines += "    return nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(2 * shape[0], classes))\n"
    (tmp_path / "mine.py").write_text(lines)
    answer = fedapa("verify", "local", *words, "--format", "json")
    assert answer.code == 0, answer.err
    assert {row["verdict"] for row in json.loads(answer.out)} == {"holds"}


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("fedap",), "unknown method 'fedap'", "fedapa"),
        (("local", "--model", "mlpp"), "unknown model 'mlpp'", "mlp"),
        (("local", "--model", "mlp", "--head", "last"), "no submodule named 'last'", "it has: flatten"),
        (("local", "--model", "transformer"), "needs its number of tokens", "model.settings"),
        (("local", "--set", "model.settings.width=3"), "no model", "--model"),
        (("local", "--set", "run.rounds=3"), "does not know this key", "model.settings.NAME"),
    ],
)
def test_mistakes_at_verify_are_explained(fedapa: Call, words: tuple[str, ...], said: str, hint: str) -> None:
    answer = fedapa("verify", *words)
    assert answer.code == 2
    assert said in answer.err
    assert hint in answer.err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("training.trainer=loop.py:train", "needs its own loss"),
        ('model.name=["cnn8", "mlp"]', "needs one architecture"),
    ],
)
@pytest.mark.parametrize("verb", [("run",), ("sweep", "--dry-run")])
def test_a_method_that_cannot_run_is_refused_before_others_have_run(
    verb: tuple[str, ...], change: str, said: str, fedapa: Call, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text("def train(module, data, training, generator):\n    raise SystemExit(9)\n")
    answer = fedapa(verb[0], "demo", "--method", "local,fedprox", "--set", change, "--out", "x", *verb[1:])
    assert answer.code == 2
    assert said in answer.err
    assert not (tmp_path / "x").exists()


# ------------------------------------------------------------------------------------------------------ data and plan


def test_data_split_shows_saves_and_plots(fedapa: Call, tmp_path: Path) -> None:
    answer = fedapa(*SPLIT, "--save", "p.npz", "--plot", "p.svg", "--format", "json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert len(found["clients"]) == 4
    assert "--set data.partition=p.npz" in answer.err
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    again = fedapa("data", "split", "digits", "--rule", "p.npz")
    assert found["fingerprint"] in again.out
    assert found["fingerprint"] in fedapa(*SPLIT).out


def test_a_saved_partition_can_be_run(fedapa: Call, small: Path) -> None:
    fingerprint = json.loads(fedapa(*SPLIT, "--alpha", "0.5", "--save", "p.npz", "--format", "json").out)["fingerprint"]
    words = ("run", small, "--method", "local", "--set", "run.rounds=1", "--format", "json")
    saved = json.loads(fedapa(*words, "--set", "data.partition=p.npz", "--out", "a").out)
    drawn = json.loads(fedapa(*words, "--out", "b").out)
    assert saved["runs"][0]["partition"] == drawn["runs"][0]["partition"] == fingerprint
    assert saved["runs"][0]["counts"] == drawn["runs"][0]["counts"]


def test_plan_writes_nothing_and_tells_the_cost(fedapa: Call, small: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    answer = fedapa("plan", small, "--format", "json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert len(found["clients"]) == 4
    costs = {row["method"]: row for row in found["methods"]}
    assert costs["local"]["KiB/client/round"] == 0
    # mlp on 8x8: theta 64*64+64 + 64*64+64 = 8320, phi 64*10+10 = 650 float32; FedAvg also sends n up
    assert costs["fedapa"]["KiB/client/round"] == round(2 * 8320 * 4 / 1024, 1)
    assert costs["fedavg"]["KiB/client/round"] == round((2 * 8970 + 1) * 4 / 1024, 1)
    assert costs["fedapa"]["s/round"] > 0
    assert sorted(tmp_path.rglob("*")) == before
    quick = fedapa("plan", small, "--no-timing")
    assert quick.code == 0
    assert "s/round" not in quick.out
    assert "about" in fedapa("plan", small).err


# ------------------------------------------------------------------------------------------- cp, run, compare, resume


@pytest.mark.parametrize("preset", presets.names())
def test_cp_writes_the_whole_preset(fedapa: Call, tmp_path: Path, preset: str) -> None:
    answer = fedapa("cp", preset, "mine.toml")
    assert answer.code == 0
    assert "fedapa run mine.toml" in answer.out
    assert load("mine.toml") == load(preset)


def test_cp_does_not_overwrite_unasked(fedapa: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("precious")
    answer = fedapa("cp", "demo", "mine.toml")
    assert answer.code == 2
    assert "--force" in answer.err
    assert (tmp_path / "mine.toml").read_text() == "precious"
    assert fedapa("cp", "demo", "mine.toml", "--force").code == 0


def test_run_compare_resume_in_the_default_folder(fedapa: Call, small: Path, tmp_path: Path) -> None:
    answer = fedapa("run", small, "--method", "local,fedapa", "--seeds", "2", "--set", "run.rounds=2")
    assert answer.code == 0, answer.err
    (out,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"small-\d{8}-\d{6}", out.name)
    assert answer.err == f"runs are in runs/{out.name}\n"
    runs = {f"{method}-seed{seed}" for method in ("local", "fedapa") for seed in (0, 1)}
    assert {path.name for path in out.iterdir()} == runs
    for run in runs:
        found = {path.name for path in (out / run).iterdir()}
        assert found == {"config.toml", "env.json", "run.db", "checkpoints", "log.txt", ".lock"}
        config = load(str(out / run / "config.toml"))
        assert (config.methods, config.run.rounds) == ([run.partition("-")[0]], 2)
    (tmp_path / "runs" / "zzz-empty").mkdir()  # newer, and not a run
    for words in (("compare",), ("resume",), ("compare", out), ("compare", out / "local-seed0")):
        again = fedapa(*words)
        assert again.code == 0, again.err
        assert "local" in again.out
    table = fedapa("compare").out
    assert "gain/equal/lose" in table
    assert "±" in table
    found = json.loads(fedapa("compare", "--format", "json").out)
    assert [row["method"] for row in found["methods"]] == ["local", "fedapa"]
    assert len(found["runs"]) == 4
    alone, together = found["methods"]
    assert sum(together["gain"]) == 2 * 4  # all clients of both seeds
    assert together["after_sd"] > 0
    assert (together["after_low"], together["gain_p_adjusted"]) == (None, None)  # three allocations are needed
    assert alone["kib"] == 0


def test_running_again_goes_on_and_another_config_is_refused(fedapa: Call, small: Path, tmp_path: Path) -> None:
    words = ("run", small, "--method", "local", "--out", "out")
    first = fedapa(*words)
    assert first.code == 0
    content = (tmp_path / "out" / "local-seed0" / "run.db").read_bytes()
    assert fedapa(*words).out == first.out
    other = fedapa(*words, "--set", "training.lr=0.2")
    assert other.code == 2
    assert "out/local-seed0 holds a run with another config" in other.err
    assert (tmp_path / "out" / "local-seed0" / "run.db").read_bytes() == content
    assert fedapa("run", small, "--method", "fedavg", "--out", "out").code == 0  # one more method beside it
    assert len(json.loads(fedapa("compare", "out", "--format", "json").out)["runs"]) == 2


def test_validation_data_selects_a_round(fedapa: Call, small: Path) -> None:
    words = ("run", small, "--method", "fedapa", "--set", "data.validation=0.2", "--out", "out")
    assert "selected" in fedapa(*words).out
    (row,) = json.loads(fedapa("compare", "out", "--format", "json").out)["methods"]
    assert 0 <= row["after_selected"] <= row["after_best"]


def test_malicious_clients_are_planned_run_resumed_and_compared(fedapa: Call, small: Path) -> None:
    attack = ("--set", "attack.kind=scaled", "--set", "attack.clients=[2]", "--set", "attack.factor=-1")
    planned = json.loads(fedapa("plan", small, *attack, "--no-timing", "--format", "json").out)
    assert [row["attack"] for row in planned["clients"]] == ["", "", "scaled", ""]
    assert planned["attack"] == {"kind": "scaled", "clients": [2], "factor": -1.0}
    assert fedapa("run", small, "--out", "both/none").code == 0
    answer = fedapa("run", small, *attack, "--out", "both/attacked")
    assert "malicious clients: scaled (-1) by 2" in answer.err
    rows = {
        (r["scenario"], r["method"]): r
        for r in json.loads(fedapa("compare", "both", "--format", "json").out)["methods"]
    }
    assert rows["attacked", "local"]["attack_points"] == 0.0  # no upload reaches a client that trains alone
    assert rows["attacked", "fedavg"]["attack_points"] != 0.0
    assert 0 < rows["attacked", "fedapa"]["attacker_weight"] < 1
    assert rows["none", "fedapa"]["attacker_weight"] is None
    assert sum(rows["attacked", "fedavg"]["gain"]) == 3  # the honest ones
    assert "weight on malicious %" in fedapa("compare", "both").out
    refused = fedapa("run", small, *attack, "--set", "attack.factor=-2", "--out", "both/attacked")
    assert (refused.code, "another config" in refused.err) == (2, True)


def test_a_variant_runs_under_its_own_name(fedapa: Call, small: Path) -> None:
    small.write_text(small.read_text() + '\n[method.mild]\nbase = "fedapa"\neta = 0.0\n')
    answer = fedapa("run", small, "--method", "mild,local", "--out", "out", "--format", "json")
    rows = {row["method"]: row for row in json.loads(answer.out)["methods"]}
    assert rows["mild"]["after_last"] == rows["local"]["after_last"]  # eta = 0 is local training
    assert rows["mild"]["gain"] == [0, 4, 0]


def test_divergence_is_exit_code_1_and_tells_each_reason_once(fedapa: Call, small: Path) -> None:
    answer = fedapa("run", small, "--set", "training.lr=1e30", "--out", "out")
    assert answer.code == 1
    assert answer.err.startswith("error: 3 of 3 runs failed: fedapa-seed0")
    assert answer.err.splitlines()[-1] == "hint: training diverged: lower the learning rate"
    assert len(answer.err.splitlines()) == 2
    again = fedapa("resume", "out")
    assert again.code == 1
    assert fedapa("run", small, "--out", "out2", "--method", "local").code == 0


# ------------------------------------------------------------------------------------------------- pipes and terminals


def test_the_demo_ends_with_a_table(fedapa: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    short = re.sub(r"rounds = \d+", "rounds = 1", presets.text("demo"))
    monkeypatch.setattr(presets, "text", lambda name: short)
    answer = fedapa("demo", "--out", "out")
    assert answer.code == 0, answer.err
    for word in ("local", "fedavg", "fedapa", "before", "after", "worst client", "gain/equal/lose", "KiB/client/round"):
        assert word in answer.out
    first, *_, last = answer.err.splitlines()  # a slow machine tells of its progress in between
    assert first.startswith("twenty clients")
    assert last.startswith("runs are in out")
    assert len(list((tmp_path / "out").iterdir())) == 3
    assert json.loads(fedapa("demo", "--out", "out", "--format", "json").out)


def test_output_in_a_pipe_is_plain(process: Call, small: Path) -> None:
    answer = process("run", small, "--method", "local", "--out", "out", FORCE_COLOR="", COLUMNS="40")
    assert answer.code == 0, answer.err
    assert answer.err == "runs are in out\n"
    assert not set("\x1b\r") & set(answer.out)
    assert len(answer.out.splitlines()) == 5  # no line was broken, however narrow the terminal


def test_a_reader_that_leaves_early_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{COMMAND} ls | head -1; {COMMAND} ls --format json | head -1",
        shell=True, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2


def test_a_terminal_gets_a_bar(small: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = [COMMAND, "run", small, "--method", "local", "--out", "out"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 4096):
                seen += piece
        except OSError:  # the other end is gone
            pass
        out = process.communicate()[0]
    os.close(ours)
    assert process.returncode == 0
    assert b"all runs" in seen
    assert b"3/3" in seen
    assert b"\x1b" not in out
