"""Configs: every mistake is found, located and explained; what is dumped is what is loaded."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import pytest

import fedapa as fa
from command import SMALL
from fedapa.config import presets
from fedapa.config.experiment import Parts, assemble, attack_of, lay_out, read_config, single
from fedapa.config.load import check, dump, load, settings_of, training_of
from fedapa.config.sections import Config
from fedapa.data.site_description import Sites
from fedapa.errors import InputError
from fedapa.rounds.round_plan import Plan
from fedapa.training.settings import Training


def mistake(tmp_path: Path, text: str, *changes: str) -> InputError:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load(str(path), changes)
    assert caught.value.exit_code == 2
    return caught.value


# -------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "line", "shown", "message", "hint"),
    [
        ("[run]\nronds = 3", 2, "ronds = 3", "unknown key run.ronds", "did you mean rounds?"),
        ("metods = ['local']", 1, "metods = ['local']", "unknown key metods", "did you mean methods?"),
        ("# one\n[trainin]\nlr = 1", 2, "[trainin]", "unknown key trainin", "did you mean training?"),
        ("[data]\n  clients = 0", 2, "  clients = 0", "data.clients is 0", "cp"),
        ("[data]\nalpha = 0", 2, "alpha = 0", "data.alpha is 0", "cp"),
        ("[data]\nalpha = -1.0", 2, "alpha = -1.0", "data.alpha is -1.0", "cp"),
        ("[data]\nalpha = nan", 2, "alpha = nan", "data.alpha is nan", "cp"),
        ("[data]\nclasses_per_client = 0", 2, "classes_per_client = 0", "data.classes_per_client is 0", "cp"),
        ("[data]\nvalidation = 1.0", 2, "validation = 1.0", "data.validation is 1.0", "cp"),
        ("[run]\nrounds = 0", 2, "rounds = 0", "run.rounds is 0", "cp"),
        ("[run]\nrounds = '5'", 2, "rounds = '5'", "run.rounds is '5': input should be a valid integer", "cp"),
        ("[run]\nrounds = 5.0", 2, "rounds = 5.0", "run.rounds is 5.0", "cp"),
        ("[run]\nrounds = true", 2, "rounds = true", "run.rounds is True", "cp"),
        ("[run]\nparticipation = 0", 2, "participation = 0", "run.participation", "cp"),
        ("[run]\nparticipation = 1.5", 2, "participation = 1.5", "run.participation", "cp"),
        ("[run]\nparticipation = [0.9, 0.5]", 2, "participation = [0.9, 0.5]", "the lower share comes first", "cp"),
        ("[run]\nparticipation = [0.5]", 2, "participation = [0.5]", "run.participation", "cp"),
        ("[run]\nschedule = 'serial'", 2, "schedule = 'serial'", "'auto', 'parallel' or 'sequential'", "cp"),
        ("[run]\nevaluate_every = 0", 2, "evaluate_every = 0", "run.evaluate_every is 0", "cp"),
        ("[run]\ncheckpoint_every = 0", 2, "checkpoint_every = 0", "run.checkpoint_every is 0", "cp"),
        ("[training]\nlr = 0", 2, "lr = 0", "training.lr is 0", "cp"),
        ("[training]\nlr = inf", 2, "lr = inf", "training.lr is inf", "cp"),
        ("[training]\ndrop_last = 'yes'", 2, "drop_last = 'yes'", "training.drop_last is 'yes'", "cp"),
        ("[training]\nmomentum = 1.0", 2, "momentum = 1.0", "training.momentum is 1.0", "cp"),
        ("training.lr = 'fast'", 1, "training.lr = 'fast'", "training.lr is 'fast'", "cp"),
        ("run = 3", 1, "run = 3", "run is 3: it must be a table", "cp"),
        ("methods = []", 1, "methods = []", "methods is []", "cp"),
        ("methods = 'local'", 1, "methods = 'local'", "methods is 'local'", "cp"),
        ("methods = ['local', 'local']", 1, "methods = ['local', 'local']", "local is named twice", "cp"),
        ("methods = ['local', 'fedapaa']", 1, "methods = ['local', 'fedapaa']", "unknown method 'fedapaa'", "fedapa?"),
        ("seeds = [-1]", 1, "seeds = [-1]", "seeds.0 is -1", "cp"),
        ("seeds = [1, 1]", 1, "seeds = [1, 1]", "1 is named twice", "cp"),
        ("[method.fedapa]\netta = 1", 2, "etta = 1", "no hyper-parameter 'etta'", "did you mean eta?"),
        ("[method.fedapa]\nmu = 7", 2, "mu = 7", "FedAPA.mu is 7, outside its legal range", "0 to 1"),
        ("[method.fedapa]\nsign = 'up'", 2, "sign = 'up'", "FedAPA.sign is 'up'", "descend, printed"),
        ("[method.fedapa]\nclip = 1", 2, "clip = 1", "FedAPA.clip is 1", "bool"),
        ("[method.fedapa]\neta = 'x'", 2, "eta = 'x'", "FedAPA.eta is 'x'", "number"),
        ("[method.fedap]\neta = 1", 1, "[method.fedap]", "unknown method 'fedap'", "fedapa"),
        ("[method.mine]\nbase = 'fedap'", 2, "base = 'fedap'", "unknown method 'fedap'", "fedapa"),
        ("[method.mine]\nbase = 'fedapa'\nmuh = 1", 3, "muh = 1", "no hyper-parameter 'muh'", "mu"),
        ("[method.'../../x']\nbase = 'local'", 1, "[method.'../../x']", "cannot name a method", "folder"),
        ("[method.fedapa.training]\nlrr = 1", 2, "lrr = 1", "unknown key training.lrr", "did you mean lr?"),
        ("[method.fedapa]\ntraining.lr = 0", 2, "training.lr = 0", "[method.fedapa]: training.lr is 0", "cp"),
        ("[method.fedapa]\ntraining = 3", 2, "training = 3", "method.fedapa.training must be a table", "lr"),
        ("[method.'']\nbase = 'local'", 1, "[method.'']", "cannot name a method", "folder"),
    ],
)  # fmt: skip
def test_a_mistake_is_shown_where_it_is(
    tmp_path: Path, text: str, line: int, shown: str, message: str, hint: str
) -> None:
    error = mistake(tmp_path, text + "\n")
    said, source, caret = error.message.split("\n")
    assert said.startswith(f"{tmp_path / 'mine.toml'}:{line}: ")
    assert message in said
    assert hint in error.hint
    assert source == f"  {shown}"
    assert source[caret.index("^")] == shown.lstrip()[0]


def test_a_key_in_the_wrong_table_lists_what_is_legal_there(tmp_path: Path) -> None:
    assert "legal here: name, head, buffers" in mistake(tmp_path, "[model]\nzzz = 1").hint


@pytest.mark.parametrize("text", ["rounds =", "[run\nrounds = 1", "a = 1\na = 2", "[run]\n[run]", "x = 'open"])
def test_invalid_toml_says_where(tmp_path: Path, text: str) -> None:
    error = mistake(tmp_path, text)
    assert "not valid TOML" in error.message
    assert "line" in error.message or "end of document" in error.message


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        load(str(path))


def test_neither_file_nor_preset() -> None:
    with pytest.raises(InputError, match="no file and no preset is called 'cifar10-dirichlett'") as caught:
        load("cifar10-dirichlett")
    assert "did you mean cifar10-dirichlet?" in caught.value.hint


# ----------------------------------------------------------------------------------------------------------- --set


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ("run.rounds", "--set 'run.rounds' is not key=value", "--set run.rounds=10"),
        ("=3", "is not key=value", "--set"),
        ("run.rouds=3", "--set run.rouds=3: unknown key run.rouds", "did you mean rounds?"),
        ("run.rounds=many", "--set run.rounds=many: run.rounds is 'many'", "cp"),
        ("run.rounds=0", "--set run.rounds=0: run.rounds is 0", "cp"),
        ("run.rounds.x=3", "--set run.rounds.x=3: rounds is a value, not a table", "dots"),
        ("methods=['fedapaa']", "--set methods=['fedapaa']: unknown method", "fedapa"),
        ("method.fedapa.mu=2", "--set method.fedapa.mu=2: FedAPA.mu is 2", "0 to 1"),
        ("method.fedapa.nu=2", "no hyper-parameter 'nu'", "mu"),
        ("run=3", "--set run=3: run is 3: it must be a table", "cp"),
        ("a..b=3", "unknown key a", "legal here"),
    ],
)
def test_mistakes_of_set_name_the_option(tmp_path: Path, change: str, message: str, hint: str) -> None:
    error = mistake(tmp_path, SMALL, change)
    assert message in error.message
    assert "\n" not in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("run.rounds=7", 7),
        (" run.rounds = 7", 7),
        ("training.lr=1", 1.0),
        ("model.name=cnn8", "cnn8"),
        ('model.name="cnn8"', "cnn8"),
        ("run.participation=0.5", (0.5, 0.5)),
        ("run.participation=[0.5, 1]", (0.5, 1.0)),
        ("training.drop_last=false", False),
        ("seeds=[3, 4]", [3, 4]),
        ("data.data_dir=/a=b", "/a=b"),
    ],
)
def test_set_changes_a_key(tmp_path: Path, change: str, value: object) -> None:
    (tmp_path / "c.toml").write_text(SMALL)
    here: object = load(str(tmp_path / "c.toml"), [change])
    for step in change.partition("=")[0].strip().split("."):
        here = getattr(here, step)
    assert here == value


def test_later_changes_win(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(SMALL)
    assert load(str(tmp_path / "c.toml"), ["run.rounds=1", "run.rounds=2"]).run.rounds == 2


def test_another_partition_rule_brings_its_own_parameters() -> None:
    """The demo is dealt by Dirichlet shares, with an alpha that other rules lack; minima are common to both."""
    data = load("demo", ["data.partition=iid"]).data
    assert (data.partition, data.alpha, data.min_train) == ("iid", None, 15)
    data = load("demo", ["data.partition=pathological", "data.classes_per_client=5"]).data
    assert data.rule_parameters() == {"classes_per_client": 5, "min_train": 15, "min_test": 3}
    assert load("demo", ["data.partition=iid", "data.alpha=0.3"]).data.alpha == 0.3  # the user's own mistake stays
    assert load("demo", ["data.partition=dirichlet"]).data.alpha == 0.5


# ----------------------------------------------------------------------------------------------- presets and dumps


@pytest.mark.parametrize("name", presets.names())
def test_presets_load_and_come_back_from_a_dump(name: str) -> None:
    config = load(name)
    assert presets.title(name)
    assert check(tomllib.loads(dump(config))) == config
    assert dump(check(tomllib.loads(dump(config)))) == dump(config)


def test_there_is_a_preset_for_every_setting_of_the_paper() -> None:
    wanted = {
        f"{d}-{r}{m}"
        for d in ("cifar10", "cifar100", "fmnist")
        for r in ("dirichlet", "pathological")
        for m in ("", "-50")
    }
    assert set(presets.names()) >= wanted | {"demo"}


def test_a_dump_is_complete() -> None:
    raw = tomllib.loads(dump(Config()))
    assert raw["training"].keys() == Training.__dataclass_fields__.keys() - {"by_client"}  # no table, no key
    assert raw["training"]["keep_momentum"] == "auto"
    assert raw["run"]["participation"] == [0.6, 1.0]


# --------------------------------------------------------------------------------------------------------- variants


VARIANT = """
methods = ["mild", "fedapa"]

[method.mild]
base = "fedapa"
eta = 0.001

[method.fedapa]
mu = 0.3
"""


def test_a_variant_is_another_method_by_an_own_name(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(VARIANT + SMALL.split("\n", 2)[2])
    config = load(str(tmp_path / "c.toml"))
    assert settings_of(config, "mild") == ("fedapa", {"eta": 0.001})
    assert repr(assemble(single(config, "mild", 0)).method).startswith("FedAPA(eta=0.001, mu=0.5")
    assert repr(assemble(single(config, "fedapa", 0)).method).startswith("FedAPA(eta=0.01, mu=0.3")
    runs = lay_out(config, tmp_path / "out")
    assert [run.name for run in runs] == ["mild-seed0", "fedapa-seed0"]
    assert read_config(runs[0]) == single(config, "mild", 0)


def test_a_method_may_have_training_settings_of_its_own(tmp_path: Path) -> None:
    own = "[method.mild.training]\nlr = 1\nepochs = 3\n"
    (tmp_path / "c.toml").write_text(VARIANT + own + SMALL.split("\n", 2)[2])
    config = load(str(tmp_path / "c.toml"))
    assert settings_of(config, "mild") == ("fedapa", {"eta": 0.001})
    assert training_of(config, "fedapa") == config.training
    run = read_config(lay_out(config, tmp_path / "out")[0])  # by way of the run's own config, as a run reads it
    mild, plain = assemble(run).task.training, assemble(single(config, "fedapa", 0)).task.training
    assert (mild.lr, mild.epochs, mild.batch) == (1.0, 3, 32)
    assert (plain.lr, plain.epochs, plain.batch) == (0.1, 1, 32)


def test_a_variant_without_base_is_an_unknown_method(tmp_path: Path) -> None:
    error = mistake(tmp_path, "methods = ['mild']\n[method.mild]\neta = 1\n")
    assert "unknown method 'mild'" in error.message


# ------------------------------------------------------------------------------------------------------- run folders


def test_paths_are_made_absolute_so_that_resume_works_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = check({"methods": ["local"], "data": {"data_dir": "files", "partition": "mine.npz"}})
    found = read_config(lay_out(config, tmp_path / "out")[0])
    assert found.data.data_dir == str(tmp_path / "files")
    assert found.data.partition == str(tmp_path / "mine.npz")


def test_nothing_is_laid_out_if_one_run_is_in_the_way(tmp_path: Path) -> None:
    config = check({"methods": ["local", "fedavg"]})
    (tmp_path / "fedavg-seed0").mkdir()
    (tmp_path / "fedavg-seed0" / "config.toml").write_text("methods = ['fedavg']\n")
    with pytest.raises(InputError, match="fedavg-seed0 holds a run with another config"):
        lay_out(config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fedavg-seed0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods = ['local', 'fedavg']", "names several runs"),
        ("methods = ", "cannot read"),
        ("seeds = [0", "cannot read"),
        ("[run]\nround = 1", "unknown key run.round"),
    ],
)
def test_a_run_folder_with_a_broken_config(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_config(tmp_path)


ATTACK = """\
[data]
clients = 4
[attack]
kind = "scaled"
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("attack.kind=swap", "attack.kind is 'swap'"),
        ("attack.clients=0", "attack.clients is 0: give a number of clients"),
        ("attack.clients=-1", "attack.clients is -1"),
        ("attack.clients=true", "attack.clients is True"),
        ("attack.clients=1.5", "attack.clients is 1.5"),
        ("attack.clients=nan", "attack.clients is nan"),
        ("attack.clients=4", "makes 4 of 4 clients malicious"),
        ("attack.clients=[1, 1]", "1 is named twice"),
        ("attack.clients=[4]", "names client 4"),
        ("attack.clients=[]", "makes 0 of 4 clients malicious"),
        ("attack.factor=nan", "attack.factor is nan"),
        ("attack.factor=inf", "attack.factor is inf"),
        ("attack.strength=2", "unknown key attack.strength"),
    ],
)
def test_an_attack_that_makes_no_sense_is_refused(tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(ATTACK)
    with pytest.raises(InputError) as caught:
        load(str(path), [change])
    assert said in caught.value.message
    assert change in caught.value.message


def test_a_flip_has_no_factor_and_an_attack_needs_a_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    for text, said in (('kind = "label-flip"\nfactor = 2.0', "no factor"), ("clients = 1", "attack.kind")):
        path.write_text(f"[attack]\n{text}\n")
        with pytest.raises(InputError, match=said):
            load(str(path))


def test_the_allocation_can_be_held_while_the_seed_of_the_training_varies(tmp_path: Path) -> None:
    """Two seeds deal the samples in two ways, unless data.seed decides; the training still follows the seed."""

    def parts(seed: int, text: str = "") -> Parts:
        config = f"methods = ['local']\nseeds = [{seed}]\n[data]\nclients = 3\nalpha = 5.0\nmin_train = 10\n{text}"
        config += "\n[model]\nname = 'mlp'\n"
        return assemble(check(tomllib.loads(config), config, "x"))

    assert parts(1).data.fingerprint != parts(2).data.fingerprint
    one, two = parts(1, "seed = 7"), parts(2, "seed = 7")
    assert one.data.fingerprint == two.data.fingerprint == parts(7).data.fingerprint
    assert (one.plan.seed, two.plan.seed) == (1, 2)


def test_an_attack_is_kept_in_the_config_and_its_clients_are_drawn_by_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(ATTACK)
    config = load(str(path), ["attack.clients=2"])
    assert check(tomllib.loads(dump(config))) == config
    found = [attack_of(config, 4, seed) for seed in range(10)]
    assert all(one is not None and (one.kind, one.factor, len(one.clients)) == ("scaled", -5.0, 2) for one in found)
    assert len(set(found)) > 2
    assert attack_of(load(str(path), ["attack.clients=[3]"]), 4, 0).clients == (3,)  # type: ignore[union-attr]
    assert attack_of(load("demo"), 4, 0) is None


def test_the_defaults_of_run_are_those_of_a_plan() -> None:
    words = inspect.signature(fa.fit).parameters
    for name in ("rounds", "participation", "schedule", "evaluate_every"):
        assert getattr(Config().run, name) == getattr(Plan(), name)
    for name in ("rounds", "participation"):
        assert words[name].default == getattr(Plan(), name)


def test_a_section_that_others_use_is_their_own_class() -> None:
    config = check({"training": {"lr": 0.5}, "sites": {"files": ["a.csv"], "drop": ["id"]}})
    assert config.training == Training(lr=0.5)
    assert config.sites == Sites({"a": "a.csv"}, drop=("id",))
