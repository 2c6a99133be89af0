"""A coordinator that wants more than was agreed: other settings, rows of the site, its files, its code, its words."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fleet import NAMES, config_text, make_sites, sent, terms_of
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from command import invoke
from fedapa.cli import site_join
from fedapa.config.load import check, dump, load
from fedapa.config.sections import Config
from fedapa.core.tree import Tree
from fedapa.data.federated import target_scale
from fedapa.errors import InputError
from fedapa.federation import manifest, processes, site_settings
from fedapa.federation.kit import KIT
from fedapa.federation.messages import Refused, Terms, TrainReply, TrainRequest, digest_of
from fedapa.federation.site_agent import Site, agree, read_config, shared_data
from fedapa.federation.site_settings import SiteLimits, SiteSettings, read_settings, settings_path, write_settings
from fedapa.federation.site_store import Store
from fedapa.federation.site_terms import check_target
from fedapa.site.dry_run import dry_run
from fedapa.site.federation_config import federation_config
from fedapa.transports.flower import client_app, site_supervisor, worker

ANYTHING = SiteLimits(min_rows=1, min_batch=1, max_lr=1e9, max_steps=10**9)


def ask_of(round: int = 0) -> TrainRequest:
    return TrainRequest(NAMES[0], 0, round, True, False, False, 0, "", 0)


def asked(site: Site, terms: Terms) -> tuple[TrainReply, Tree | None]:
    return site.visit(terms, ask_of(), sent(terms))


# ------------------------------------------------------------------------------------ other settings than agreed

AGREED = {"base": "fedavg+noised", "noise": 1.0, "norm": 1.0}


def mine(changes: dict[str, object] | None = None, **sections: dict[str, object]) -> str:
    """A run whose method has a label of the coordinator's choice."""
    raw = {
        "methods": ["mine"],
        "data": {"source": "digits", "clients": 4, "alpha": 0.5},
        "model": {"name": "mlp"},
        "training": {"lr": 0.05, "batch": 32, "epochs": 1},
        "run": {"rounds": 3, "participation": [1.0, 1.0], "engine": "torch"},
        "method": {"mine": {**AGREED, **(changes or {})}},
    }
    return dump(check({**raw, **{name: {**raw[name], **keys} for name, keys in sections.items()}}))


def pinned_site(folder: Path) -> Site:
    make_sites(folder)
    site, terms = Site.open(folder / NAMES[0]), terms_of(mine())
    down = sent(terms)
    up = {"omega": down["omega"], "n": torch.zeros(1)}
    site.wire = manifest.agreement(NAMES[0], "mine", [(down, up)], [], None, manifest.pinned(read_config(terms.config)))
    return site


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (mine({"noise": 0.0}), "method.noise = 0.0, this site agreed to 1.0"),
        (mine({"norm": 2.0}), "method.norm = 2.0"),
        (mine({"training": {"lr": 0.5}}), "training.lr = 0.5, this site agreed to 0.05"),
        (mine(training={"batch": 8}), "training.batch = 8, this site agreed to 32"),
        (mine(training={"epochs": 2}), "training.epochs = 2"),
        (mine(training={"clip_norm": 1.0}), "training.clip_norm = 1.0"),
        (mine(model={"name": "lenet5"}), "model.name = lenet5, this site agreed to mlp"),
        (mine(model={"buffers": "private"}), "model.buffers = private"),
        (mine(run={"rounds": 4}), "run.rounds = 4"),
        (mine(run={"evaluate_every": 2}), "run.evaluate_every = 2"),
        (mine().replace('base = "fedavg+noised"', 'base = "fedprox+noised"'), "FedProx"),
        (mine().replace('base = "fedavg+noised"\nnoise = 1.0\nnorm = 1.0', 'base = "fedavg"'), "FedAvg"),
    ],
)
def test_the_same_label_with_another_setting_is_refused_by_name(text: str, named: str, tmp_path: Path) -> None:
    site = pinned_site(tmp_path)
    assert named in site.describe(text, NAMES[0]).fault
    terms = terms_of(mine())
    answer, up = site.visit(replace(terms, config=text), ask_of(), sent(terms))
    assert (named in answer.fault, up) == (True, None)


def test_what_was_agreed_leaves(tmp_path: Path) -> None:
    site = pinned_site(tmp_path)
    assert site.describe(mine(), NAMES[0]).fault == ""
    answer, up = asked(site, terms_of(mine()))
    assert (answer.fault, up is not None) == ("", True)


def keys_of(section: object) -> list[str]:
    return [f.name for f in fields(section)] if is_dataclass(section) else [*getattr(type(section), "model_fields", ())]


def test_every_section_that_is_not_listed_as_harmless_is_pinned() -> None:
    """A key that is added to a config tomorrow is pinned, too."""
    config = read_config(mine())
    pinned = manifest.pinned(config)
    for section in config.model_fields_set - manifest.NOT_PINNED:
        found = getattr(config, section)
        keys = {f"{section}.{key}" for key in keys_of(found)} or {section}
        assert keys - pinned.keys() <= {f"run.{key}" for key in manifest.ASIDE["run"]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"round": 3}, "asks for round 4, this run has 3"),
        ({"round": 4, "train": False}, "asks for round 5, this run has 3"),
        ({"round": -1}, "asks for round 0"),
        ({"round": 10**30}, "this run has 3"),
        ({"round": 1, "accepted": -1}, "this run has 3"),
        ({"client": 1}, "no site amber of number 1"),
        ({"client": -4}, "no site amber of number -4"),
        ({"client": 99}, "no site amber of number 99"),
    ],
)
def test_no_round_and_no_number_beyond_the_run(changes: dict[str, int], named: str, tmp_path: Path) -> None:
    site, terms = pinned_site(tmp_path), terms_of(mine())
    assert asked(site, terms)[0].fault == ""  # what was agreed, is remembered
    answer, up = site.visit(terms, replace(ask_of(), **changes), sent(terms))
    assert named in answer.fault
    assert up is None


def test_runs_without_end_are_refused(tmp_path: Path) -> None:
    """The number of rounds is pinned, but a new run has new rounds, and a new epsilon."""
    site, runs = replace(pinned_site(tmp_path), limits=SiteLimits(max_runs=2)), ["aa" * 8, "bb" * 8, "cc" * 8]
    faults = [asked(site, terms_of(mine(), run))[0].fault for run in (*runs, runs[0])]
    assert (faults[0], faults[1], faults[3]) == ("", "", "")  # a run that is here goes on
    assert "states of 2 runs, its limit max_runs" in faults[2]
    assert not site.store.place(runs[2]).exists()


def test_no_other_run_hides_under_the_id_of_one(tmp_path: Path) -> None:
    """Without noise and without a wire.json, one id of a run held as many runs as the coordinator liked."""
    make_sites(tmp_path)
    site, text = Site.open(tmp_path / NAMES[0]), config_text("fedavg", participation=(1.0, 1.0))
    terms = terms_of(text)
    assert asked(site, terms)[0].fault == ""
    swapped = [terms.names[0], *reversed(terms.names[1:])]
    others = {
        "config": replace(terms, config=text.replace("lr = 0.05", "lr = 0.06")),
        "engine": replace(terms, engine="native"),
        "list of sites": replace(terms, names=swapped),
    }
    for changed, other in others.items():
        for again in (site, Site.open(tmp_path / NAMES[0])):
            answer, up = again.visit(other, ask_of(), sent(terms))
            assert f"the run's {changed} changed since this site agreed to it" in answer.fault
            assert up is None
    longer = replace(terms, names=[*terms.names, "elm"], sizes=[*terms.sizes, 40])  # elm joined
    for later in (longer, terms, replace(longer, run="cd" * 8)):  # rounds before that, played again; a run of its own
        assert asked(site, later)[0].fault == ""


def test_code_that_says_more_than_the_dry_run_listed_is_refused(tmp_path: Path) -> None:
    site = pinned_site(tmp_path)
    assert site.wire is not None
    del site.wire["said"]["once"]["labels"]
    assert "says other things" in site.describe(mine(), NAMES[0]).fault


# ------------------------------------------------------------------------------------- questions about the rows


def payroll(folder: Path) -> tuple[Site, str]:
    """A site whose private targets are numbers, and the config of a run that fits its file."""
    random = torch.Generator().manual_seed(7)
    pay = torch.normal(50_000.0, 15_000.0, (60,), generator=random).round().tolist()
    rows = "".join(f"{20 + k % 50},{k % 7}.5,{value:.0f}\n" for k, value in enumerate(pay))
    (folder / "staff.csv").write_text("age,dose,pay\n" + rows)
    (folder / "mine.toml").write_text(
        '[sites]\nfiles = ["staff.csv"]\nlabel = "pay"\n[objective]\nname = "regression"\n'
    )
    changes = ["model.name=mlp", "run.rounds=3", "run.engine=torch", "training.batch=16"]
    kit = make_sites(folder)[0]
    write_settings(kit, SiteSettings(data=str(folder / "mine.toml")))
    return Site.open(kit), federation_config([str(folder / "mine.toml")], "fedavg", changes).text


def with_seed(text: str, seed: int) -> str:
    return dump(load_text(text).model_copy(update={"seeds": [seed]}))


def load_text(text: str) -> Config:
    return check(tomllib.loads(text), text)


def sums_told(site: Site, text: str, seeds: int) -> set[float]:
    """The sums of the train targets that a coordinator gets by asking for a description under so many seeds: as many
    equations for the single targets."""
    found = [site.describe(with_seed(text, seed), NAMES[0]) for seed in range(seeds)]
    return {answer.target[1] for answer in found if not answer.fault}


def test_a_site_answers_for_one_split_of_its_rows_alone(tmp_path: Path) -> None:
    site, text = payroll(tmp_path)
    every = replace(site, seeds=frozenset(range(8)), store=Store(tmp_path / "other"))
    assert len(sums_told(every, text, 8)) > 1  # the attack works where a site allows all seeds
    assert len(sums_told(site, text, 8)) == 1
    fault = Site.open(tmp_path / NAMES[0]).describe(with_seed(text, 7), NAMES[0]).fault  # after a restart, too
    assert "the run wants seed 7, this site splits its rows by seed 0 alone" in fault
    assert "--allow-seed" in fault
    about = site.describe(with_seed(text, 0), NAMES[0])
    terms = Terms("ab" * 8, with_seed(text, 7), [NAMES[0]], [about.train], "torch", 0, about.shape, [], [], [])
    assert "seed 7" in site.visit(terms, ask_of(), {})[0].fault


def test_a_wire_json_lists_the_seeds(tmp_path: Path) -> None:
    site, text = payroll(tmp_path)
    config = load_text(text).model_copy(update={"seeds": [3, 5], "sites": load(str(tmp_path / "mine.toml")).sites})
    site.wire = dry_run(config, "fedavg").wire
    faults = [site.describe(with_seed(text, seed), NAMES[0]).fault for seed in (3, 5, 4)]
    assert faults[:2] == ["", ""]
    assert "the server wants seeds = [4], this site agreed to [3, 5]" in faults[2]


def test_a_site_allows_the_seeds_of_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = payroll(tmp_path)
    kit = tmp_path / NAMES[0]
    monkeypatch.setattr(site_supervisor, "site_processes", lambda folder: SimpleNamespace(run=lambda: None))
    assert invoke(site_join.join, str(kit), "--allow-seed", "1", "--allow-seed", "2").exit_code == 0
    assert read_settings(kit).seeds == [1, 2]
    faults = [Site.open(kit).describe(with_seed(text, seed), NAMES[0]).fault for seed in (0, 1, 2)]
    assert "the run wants seed 0, this site splits its rows by seed 1, 2 alone" in faults[0]
    assert faults[1:] == ["", ""]
    (tmp_path / "mine.toml").write_text((tmp_path / "mine.toml").read_text() + "# the site's own change\n")
    assert Site.open(kit).describe(with_seed(text, 2), NAMES[0]).fault == ""


def test_questions_without_end_are_refused(tmp_path: Path) -> None:
    """A question that a visit asks counts as well; the same one again does not."""
    make_sites(tmp_path)
    site = replace(Site.open(tmp_path / NAMES[0]), limits=SiteLimits(max_questions=3))
    texts = [mine(training={"epochs": epochs}) for epochs in range(1, 6)]
    faults = [site.describe(text, NAMES[0]).fault for text in (*texts[:2], texts[0], texts[0])]
    assert faults == [""] * 4
    assert asked(site, terms_of(texts[2]))[0].fault == ""
    site = replace(Site.open(tmp_path / NAMES[0]), limits=SiteLimits(max_questions=3))
    assert (
        "answered 3 different questions about its rows, its limit max_questions"
        in asked(site, terms_of(texts[3], "cd" * 8))[0].fault
    )
    assert "max_questions" in site.describe(texts[4], NAMES[0]).fault
    assert site.describe(texts[2], NAMES[0]).fault == ""
    (site.store.folder / "questions.json").write_text("[]")
    assert "what this site was asked before cannot be read" in site.describe(texts[2], NAMES[0]).fault


# ----------------------------------------------------------------------------------------- rows from an upload


def greedy(lr: float, batch: int) -> Terms:
    text = config_text("fedavg", participation=(1.0, 1.0)).replace("momentum = 0.9", "momentum = 0.0")
    text = text.replace("lr = 0.05", f"lr = {lr}").replace("batch = 32", f"batch = {batch}")
    return terms_of(text, digest_of(text))


def rows_read_off(terms: Terms, up: Tree) -> int:
    """How many rows of the site can be read off an upload. The step of a unit of the first layer is its gradient: the
    weights' is the row times the bias's. At a large rate one row kills a unit, which then keeps that row alone."""
    _, task, _ = agree(terms)
    before, after = (task.parts(tree["omega"])["theta"] for tree in (sent(terms), up))
    change = (after - before)[: 64 * 64 + 64]
    weights, bias = change[: 64 * 64].reshape(64, 64), change[64 * 64 :]
    guesses = weights[bias != 0] / bias[bias != 0][:, None]
    data = shared_data(0)(read_config(terms.config))
    rows = task.prepare(data.clients[0].train.x).reshape(-1, 64)
    near = (guesses[:, None] - rows[None]).abs().amax(2) < 0.01
    return int(near.any(0).sum())


def test_rows_cannot_be_read_off_an_upload(tmp_path: Path) -> None:
    make_sites(tmp_path)
    site, terms = Site.open(tmp_path / NAMES[0]), greedy(10.0, 1)
    site.limits = ANYTHING
    _, up = asked(site, terms)
    assert up is not None
    assert rows_read_off(terms, up) >= 3  # the attack works where a site sets no limits
    site = Site.open(tmp_path / NAMES[0])
    answer, up = asked(site, terms)
    assert (answer.fault.startswith("training.batch = 1 is too small for this site"), up) == (True, None)
    assert "training.batch = 1" in site.describe(terms.config, NAMES[0]).fault
    answer, up = asked(site, greedy(10.0, 32))
    assert (answer.fault.startswith("training.lr = 10.0 is too large"), up) == (True, None)
    terms = greedy(1.0, 8)  # the most that this site allows
    answer, up = asked(site, terms)
    assert up is not None
    assert rows_read_off(terms, up) == 0


def test_a_site_with_few_rows_takes_no_part(tmp_path: Path) -> None:
    make_sites(tmp_path)
    site = Site.open(tmp_path / NAMES[0])
    rows = site.describe(config_text(), NAMES[0]).train
    site.limits = SiteLimits(min_rows=rows + 1)
    fault = site.describe(config_text(), NAMES[0]).fault
    assert "at least" in fault
    assert f"{rows} " not in fault


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("fedrep", {"head_epochs": 9}, "a training takes more than 50 steps"),
        ("apple", {"lr_p": 0.9}, "the rate of p = 0.9 is too large"),
    ],
)
def test_rates_and_steps_of_a_methods_own_are_held_to_the_limits(
    method: str, settings: dict[str, float], said: str, tmp_path: Path
) -> None:
    make_sites(tmp_path)
    site, terms = Site.open(tmp_path / NAMES[0]), terms_of(config_text(method, participation=(1.0, 1.0), **settings))
    site.limits = SiteLimits(max_steps=50, max_lr=0.5)
    assert site.describe(terms.config, NAMES[0]).fault == ""
    answer, up = asked(site, terms)
    assert (said in answer.fault, up) == (True, None)


def test_limits_are_set_at_the_site_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = make_sites(tmp_path)[0]
    monkeypatch.setattr(site_supervisor, "site_processes", lambda folder: SimpleNamespace(run=lambda: None))
    assert invoke(site_join.join, str(kit), "--limit", "min_batch=4").exit_code == 0
    assert invoke(site_join.join, str(kit), "--limit", "max_lr=0.5").exit_code == 0
    assert read_settings(kit).limits == SiteLimits(min_batch=4, max_lr=0.5)
    assert Site.open(kit).limits.min_batch == 4
    for wrong in ("min_batch", "min_batch=0", "max_rate=1", "max_lr=inf"):
        assert isinstance(invoke(site_join.join, str(kit), "--limit", wrong).exception, InputError)
    assert read_settings(kit).limits.min_batch == 4


def scaled(site: Site, text: str, target: list[float]) -> Terms:
    about = site.describe(text, NAMES[0])
    form = about.classes, about.shape, about.mean, about.std
    return Terms("ab" * 8, text, [NAMES[0]], [about.train], "torch", *form, target)


def honest_scale(site: Site, text: str) -> tuple[float, float]:
    count, total, squares = site.describe(text, NAMES[0]).target
    return target_scale([(count, total, squares)])


def test_targets_are_not_scaled_up(tmp_path: Path) -> None:
    """A deviation of a hundredth multiplies the loss, and the update, as a rate beyond max_lr would."""
    site, text = payroll(tmp_path)
    mean, std = honest_scale(site, text)
    down = sent(scaled(site, text, [mean, std]))
    norms = []
    for factor in (1.0, 0.01):
        trusting = replace(site, limits=SiteLimits(max_target=1e9), store=Store(tmp_path / str(factor)))
        _, up = trusting.visit(scaled(site, text, [mean, std * factor]), ask_of(), down)
        assert up is not None
        norms.append(float((up["omega"] - down["omega"]).norm()))
    assert norms[1] > 100 * norms[0]  # the attack works where a site sets no limit
    for target in ([mean, std * 0.01], [mean + 100 * std, std], [mean, 5e-324]):
        answer, up = site.visit(scaled(site, text, target), ask_of(), down)
        assert "exceed its limit max_target = 5" in answer.fault
        assert up is None
    answer, up = site.visit(scaled(site, text, [mean, std]), ask_of(), down)
    assert (answer.fault, up is not None) == ("", True)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ([], "holds 0 numbers, expected is a mean and a standard deviation"),
        ([50_000.0], "holds 1 numbers"),
        ([50_000.0, 15_000.0, 1.0], "holds 3 numbers"),
        ([50_000.0, 0.0], "which is no scale"),
        ([50_000.0, -15_000.0], "which is no scale"),
        ([50_000.0, float("nan")], "which is no scale"),
        ([float("inf"), 15_000.0], "which is no scale"),
    ],
)
def test_a_scale_that_is_none_is_refused_by_name(target: list[float], said: str, tmp_path: Path) -> None:
    site, text = payroll(tmp_path)
    down = sent(scaled(site, text, [50_000.0, 15_000.0]))
    answer, up = site.visit(scaled(site, text, target), ask_of(), down)
    assert (said in answer.fault, up) == (True, None)


def test_a_scale_keeps_to_the_agreed_range_of_the_numbers() -> None:
    y = torch.tensor([1.0, 2.0, 3.0])
    for target in ([4.5, 1.0], [-0.5, 1.0], [2.0, 2.5]):
        with pytest.raises(Refused, match="which numbers from 0 to 4 cannot have"):
            check_target(target, y, 0, (0.0, 4.0), 5.0)
    for target in ([0.0, 2.0], [4.0, 2.0], [2.0, 0.8]):
        check_target(target, y, 0, (0.0, 4.0), 5.0)
    check_target([3.0, 1.0], torch.full((4,), 3.0), 0, (3.0, 3.5), 5.0)  # numbers that are all equal have deviation 1
    with pytest.raises(Refused, match="expected is none, as labels are classes"):
        check_target([2.0, 1.0], y, 3, None, 5.0)


# ------------------------------------------------------------------------------------------- answers beside epsilon


def overflowing(terms: Terms, above: float) -> Tree:
    """A model whose training fails if and only if pixel 10 of a train row is above this number: one hidden unit leads
    to one class, both with weights that overflow."""
    down = sent(terms)
    omega, first = torch.zeros_like(down["omega"]), 64 * 64
    omega[10], omega[first], omega[first + 64] = 1e20, -above * 1e20, 1e25
    return {**down, "omega": omega}


def test_faults_of_noised_trainings_are_counted_and_tell_nothing(tmp_path: Path) -> None:
    """A coordinator that searched for the largest pixel got a fault for every one below, and epsilon counted none."""
    site, terms = pinned_site(tmp_path), terms_of(mine())
    thresholds = [-1.5, -1.0, -0.5, 0.0, 0.5]
    faults = [site.visit(terms, ask_of(), overflowing(terms, above))[0].fault for above in thresholds]
    assert faults[:3] == ["its training failed; its log says why"] * 3
    assert all(
        "has answered 3 requests in this run, as many as epsilon was promised for" in said for said in faults[3:]
    )
    for above in thresholds[:3]:  # the same question again has the same answer, and does not count
        answer, up = Site.visit(pinned_site(tmp_path), terms, ask_of(), overflowing(terms, above))
        assert (answer.fault, up) == (faults[0], None)
    (counted,) = tmp_path.rglob("releases.json")
    assert len(json.loads(counted.read_text())["requests"]) == 3


def test_why_a_noised_training_failed_is_in_the_sites_own_log(tmp_path: Path) -> None:
    site, terms = pinned_site(tmp_path), terms_of(mine())
    assert "log" in site.visit(terms, ask_of(), overflowing(terms, -1.0))[0].fault
    assert "its training diverged" in site.reason
    shown = replace(ask_of(), train=False, evaluate=True)
    broken = {"omega": torch.full_like(sent(terms)["omega"], float("nan"))}
    assert site.visit(terms, shown, broken)[0].fault == "its training failed; its log says why"
    assert "is broken" in site.reason


def test_models_without_end_are_not_scored(tmp_path: Path) -> None:
    """Every score of a model of the coordinator's choice is an answer about test rows."""
    site, terms = pinned_site(tmp_path), terms_of(mine())
    down, shown = sent(terms), replace(ask_of(), train=False, evaluate=True)
    scored = [site.visit(terms, shown, {"omega": down["omega"] * (1 + k)})[0] for k in range(8)]
    assert [bool(answer.before) for answer in scored] == [True] * 5 + [False] * 3
    assert "has scored 5 models in round 1, its limit max_scored" in scored[5].fault
    again = pinned_site(tmp_path).visit(terms, shown, {"omega": down["omega"] * 3})[0]  # after a restart
    assert again.before == scored[2].before
    assert site.visit(terms, replace(ask_of(), evaluate=True), {"omega": down["omega"] * 99})[1] is None
    assert site.visit(terms, replace(shown, round=1), down)[0].before
    (tmp_path / NAMES[0] / "states" / terms.run / "scored.json").write_text("[]")
    assert "what this site has scored in this run cannot be read" in site.visit(terms, shown, down)[0].fault


# ------------------------------------------------------------------------------------------------ a site's disk


def test_states_of_one_round_do_not_fill_the_disk(tmp_path: Path) -> None:
    """Every other model makes another state, and ``keep_from = 0`` lets the coordinator keep all of them."""
    make_sites(tmp_path)
    site, terms = Site.open(tmp_path / NAMES[0]), terms_of(config_text("fedavg", participation=(1.0, 1.0)))
    down = sent(terms)["omega"]
    answers = [site.visit(terms, ask_of(), {"omega": down + k * 1e-3})[0] for k in range(5)]
    found = sorted(path.name[13:29] for path in tmp_path.rglob("round-*.safetensors"))
    assert found == sorted(answer.digest[:16] for answer in answers[-2:])
    accepted = replace(ask_of(1), accepted=1, digest=answers[-2].digest)
    assert site.visit(terms, accepted, {"omega": down})[0].fault == ""
    assert len(list(tmp_path.rglob("round-000002-*.safetensors"))) == 1


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["x" * 100_000], "is no name of a site"),
        (["a\nb"], "is no name of a site"),
        (["x"] * 10_000, "10004 names of sites and 10004 sizes, at most 10000"),
    ],
)
def test_names_do_not_fill_a_sites_log(names: list[str], said: str, tmp_path: Path) -> None:
    make_sites(tmp_path)
    site, terms = Site.open(tmp_path / NAMES[0]), terms_of(config_text("fedavg"))
    many = replace(terms, names=terms.names + names, sizes=terms.sizes + [1] * len(names))
    answer, up = site.visit(many, ask_of(), sent(terms))
    assert (said in answer.fault, up) == (True, None)
    assert not site.store.place(terms.run).exists()
    most = replace(terms, names=[*terms.names, *(f"s{k}" for k in range(9_996))], sizes=[*terms.sizes, *[1] * 9_996])
    assert site.visit(most, ask_of(), sent(terms))[0].fault == ""
    assert (tmp_path / NAMES[0] / "audit.jsonl").stat().st_size < 5_000
    fewer = replace(terms, sizes=terms.sizes[:1])
    assert "4 names of sites and 1 sizes" in site.visit(fewer, ask_of(), sent(terms))[0].fault


# ------------------------------------------------------------------------------------------------- a kit is data


def test_a_kit_chooses_neither_data_nor_models(tmp_path: Path) -> None:
    kit = make_sites(tmp_path)[0]
    with open(kit / KIT, "a") as file:
        file.write('data = "/etc/passwd"\nmodels = ["os:system"]\n')
    site = Site.open(kit)
    assert site.models == frozenset()
    assert site.describe(config_text(), NAMES[0]).fault == ""  # the data are those of the run's config
    text = config_text().replace('name = "mlp"', 'name = "os:system"')
    assert "is not allowed" in site.describe(text, NAMES[0]).fault


@pytest.mark.parametrize("planted", ["states/secret", "amber.settings.toml", "secret", "flwr/config.toml"])
def test_a_kit_that_brings_more_than_a_kit_is_refused(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the site's secret the coordinator could check guesses at its rows."""
    kit = make_sites(tmp_path)[0]
    monkeypatch.setattr(site_supervisor, "site_processes", lambda folder: SimpleNamespace(run=lambda: None))
    (kit / planted).parent.mkdir(exist_ok=True)
    (kit / planted).write_bytes(b"\0" * 32)
    refused = invoke(site_join.join, str(kit)).exception
    assert isinstance(refused, InputError)
    assert "which is no part of a kit" in refused.message
    assert not settings_path(kit).exists()


def test_settings_that_came_with_a_kit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a kit and, beside it, settings that allow code and lift all limits."""
    kit, started = make_sites(tmp_path)[0], []
    monkeypatch.setattr(
        site_supervisor, "site_processes", lambda folder: SimpleNamespace(run=lambda: started.append(1))
    )
    (tmp_path / "number").write_text("of the coordinator's machine\n")
    monkeypatch.setattr(site_settings, "MACHINE", tmp_path / "number")
    write_settings(kit, SiteSettings(models=[f"{kit}/evil.py:net"], limits=ANYTHING))
    assert invoke(site_join.join, str(kit)).exception is None  # at the machine that wrote them
    (tmp_path / "number").write_text("of the site's machine\n")
    for words in ([], ["--limit", "min_batch=8"]):
        refused = invoke(site_join.join, str(kit), *words).exception
        assert isinstance(refused, InputError)
        assert "was not written by `fedapa site join` on this machine" in refused.message
    settings_path(kit).unlink()
    assert invoke(site_join.join, str(kit)).exception is None
    assert read_settings(kit).limits == SiteLimits()
    assert len(started) == 2


def test_no_module_is_taken_from_the_working_folder(tmp_path: Path) -> None:
    planted = ["httpx", "setup", "socket", "torch"]
    for module in planted:
        (tmp_path / f"{module}.py").write_text(f"open('{module} ran', 'w').close()\n")
    for command in (
        processes.python("fedapa.transports.flower.worker"),  # ends at once: it was not told where its site is
        processes.flower("flwr.superlink.cli:flower_superlink", "--help"),
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert not list(tmp_path.glob("* ran")), (command, done.stderr[-300:])
    careless = [sys.executable, "-S", "-c", f"import {', '.join(planted)}"]  # coverage would have imported one before
    subprocess.run(careless, cwd=tmp_path, check=False, timeout=120)
    assert len(list(tmp_path.glob("* ran"))) == len(planted)  # what was planted does run where it is found


# ------------------------------------------------------------------------------------------ files and words of a site


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": {"data_dir": "/srv/clinic"}}, "data.data_dir"),
        ({"data": {"partition": "/srv/clinic/split.npz"}}, "data.partition"),
        ({"data": {}, "sites": {"files": ["/etc/passwd"]}}, "sites.files"),
        ({"data": {}, "sites": {"source": "heart-disease", "schema_file": "/etc/passwd"}}, "sites.schema_file"),
    ],
)
def test_a_run_names_no_files_at_a_site(changes: dict[str, dict[str, object]], named: str, tmp_path: Path) -> None:
    make_sites(tmp_path)
    text = dump(check({"methods": ["fedavg"], "model": {"name": "mlp"}, **changes}))
    fault = Site.open(tmp_path / NAMES[0]).describe(text, NAMES[0]).fault
    assert f"the run's config names files at this site: {named}" in fault


def test_a_model_that_is_allowed_takes_no_texts_of_the_coordinators(tmp_path: Path) -> None:
    """Models of libraries take files, addresses and leave to run code by settings."""
    make_sites(tmp_path)
    site = replace(Site.open(tmp_path / NAMES[0]), models=frozenset({"timm:resnet10t"}))
    raw = {"methods": ["fedavg"], "data": {"source": "digits", "clients": 4, "alpha": 0.5}}
    model = {"name": "timm:resnet10t", "settings": {"checkpoint_path": "/srv/clinic/model.bin"}}
    fault = site.describe(dump(check({**raw, "model": model})), NAMES[0]).fault
    assert "model.settings.checkpoint_path is no number" in fault


def clinic(folder: Path, rows: str) -> Site:
    """A site with a table of its own."""
    kit = make_sites(folder)[0]
    (folder / "patients.csv").write_text(rows)
    (folder / "mine.toml").write_text(
        '[sites]\nfiles = ["patients.csv"]\nlabel = "diagnosis"\nclasses = ["flu", "cold"]\n'
    )
    write_settings(kit, SiteSettings(data=str(folder / "mine.toml")))
    return Site.open(kit)


@pytest.mark.parametrize(
    "rows",
    [
        "iban,diagnosis\n" + "1,flu\n2,cold\n" * 20 + "77,scarlet fever\n",
        "iban,diagnosis\n" + "1,flu\n2,cold,\n" * 20,
        "iban,other\n1,flu\n",
        "",
    ],
)
def test_faults_hold_no_values_columns_or_paths(rows: str, tmp_path: Path) -> None:
    site = clinic(tmp_path, rows)
    text = dump(check({"methods": ["fedavg"], "model": {"name": "mlp"}}))
    terms = replace(terms_of(config_text("fedavg")), config=text)
    faults = [site.describe(text, NAMES[0]).fault, asked(site, terms)[0].fault]
    assert all(faults)
    for fault in faults:
        for private in ("scarlet", "fever", "iban", "diagnosis", "other", "patients", str(tmp_path), "42", "line"):
            assert private not in fault
    assert "patients.csv" in site.reason or "scarlet" in site.reason  # the site's own log has it


def test_a_bug_at_a_site_is_told_by_its_kind_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(RecordDict(), 100, MessageType.TRAIN, ttl=60)
    told: list[str] = []

    def broken(*_: object) -> Message:
        raise KeyError("scarlet fever in /srv/clinic/patients.csv")

    quiet = SimpleNamespace(from_server_address=lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(worker, "RuntimeHttpClient", quiet)
    monkeypatch.setattr(worker, "trusted", lambda folder: b"")
    monkeypatch.setattr(worker, "app", broken)
    monkeypatch.setattr(
        worker, "pull_task_input", lambda client: (message, SimpleNamespace(node_config={}), None, None)
    )
    monkeypatch.setattr(worker, "push_message", lambda client, reply, context: told.append(str(reply.error.reason)))
    monkeypatch.setattr(worker, "push_task_output", lambda client, _, status, details: told.append(details))
    worker.perform(tmp_path, "127.0.0.1:9", "token")
    assert told == ["KeyError at this site; its log says more"] * 2


def test_a_request_writes_one_plain_line_into_the_sites_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fleet import Direct

    from fedapa.federation.messages import Outgoing, write

    make_sites(tmp_path)
    terms = terms_of(config_text(), run="ab\n2026-11-18 all is well \x1b[2J")
    client_app.open_site.cache_clear()
    records = {"terms": write(terms), "ask": write(ask_of())}
    Direct([tmp_path / name for name in NAMES]).push(Outgoing(100, "train", records, {"down": sent(terms)}, 60.0))
    said = capsys.readouterr().err
    assert (said.count("\n"), "\x1b" in said) == (1, False)
