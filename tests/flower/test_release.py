"""What an administrator may lift at the coordinator (a quarantine), and allow at a site (a model of one's own)."""

import sys
from dataclasses import replace

import pytest
import torch
from fleet import NAMES, Direct, config_text, in_process, make_sites, server_digest, terms_of
from flwr.app import Message

from command import invoke
from fedapa.cli import coordinator as coordinator_cli
from fedapa.cli import site_join as join_cli
from fedapa.config.experiment import read_config
from fedapa.core.tree import digest
from fedapa.errors import InputError, RunError
from fedapa.federation.enrolment import read_agreement
from fedapa.federation.registry import Enrolled, Settings, create
from fedapa.federation.run_federation import play_over
from fedapa.federation.site_agent import Site
from fedapa.federation.site_settings import SiteSettings, read_settings, write_settings
from fedapa.store import checkpoint, run_db, run_folder
from fedapa.transports.flower import site_supervisor
from fedapa.transports.flower.serialization import pack, unpack

SITES = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]


def run(session, path):
    """The run of a folder with all four sites, as `coordinator run` and `resume` play it."""
    return play_over(session, lambda: SITES, read_config(path), path)


class Poisoned(Direct):
    """Dune sends nonsense; after ``rounds`` rounds the power fails."""

    def __init__(self, sites, rounds):
        super().__init__(sites)
        self.rounds, self.asked = rounds, []

    def answer(self, message):
        if "ask" not in message.content:
            return super().answer(message)
        if message.content["ask"]["round"] >= self.rounds:
            raise KeyboardInterrupt
        reply = super().answer(message)
        if message.metadata.dst_node_id != 103:
            return reply
        self.asked.append(int(message.content["ask"]["round"]))
        reply.content["up"] = pack({"theta": unpack(reply.content["up"])["theta"] * 1e20})
        return Message(reply.content, reply_to=message)


@pytest.fixture
def stopped(tmp_path):
    """A coordinator, and a run that was cut off after three rounds with dune in quarantine since the second."""
    create(tmp_path / "coordinator", Settings(proxy_port=0), [], None, None)
    text = config_text(rounds=4, participation=(1.0, 1.0)).replace("quarantine_after = 3", "quarantine_after = 1")
    run_folder.create(tmp_path / "run", text)
    session = Poisoned(make_sites(tmp_path / "sites"), 3)
    with pytest.raises(KeyboardInterrupt):
        run(session, tmp_path / "run")
    assert session.asked == [0]
    return tmp_path


def release(home, name, path=None):
    words = ["release", name, str(path or home / "run"), "--dir", str(home / "coordinator")]
    return invoke(coordinator_cli.command, *words)


def trained(path):
    with run_db.reading(path / "run.db") as db:
        rows = db.execute("SELECT round, client FROM client_round WHERE trained=1 ORDER BY 1, 2").fetchall()
        return [[i for t, i in rows if t == round] for round in range(4)], run_db.events(db)


def test_a_released_site_counts_again(stopped):
    assert release(stopped, "dune").exit_code == 0
    run(Direct(make_sites(stopped / "sites")), stopped / "run")
    found, events = trained(stopped / "run")
    assert found == [[0, 1, 2]] * 3 + [[0, 1, 2, 3]]
    assert [kind for _, i, kind, _ in events if i == 3] == ["refused", "absent", "absent"]
    terms = read_agreement(stopped / "run").terms
    here = in_process(terms, frozenset((t, 3) for t in range(3)))
    assert digest(checkpoint.newest(stopped / "run" / "checkpoints").state.server) == server_digest(here)


def test_without_release_it_stays_out(stopped):
    run(Direct(make_sites(stopped / "sites")), stopped / "run")
    assert trained(stopped / "run")[0] == [[0, 1, 2]] * 4


def test_a_release_that_cannot_be(stopped):
    for name, path in (("elm", None), ("dune", stopped / "sites")):
        refused = release(stopped, name, path)
        assert isinstance(refused.exception, InputError)
        assert "has no site called" in refused.exception.message
    keeper = run_folder.RunFolder(stopped / "run", 4)
    try:
        assert "is in use by another process" in release(stopped, "dune").exception.message
    finally:
        keeper.close()


def test_of_two_that_begin_a_run_at_once_one_says_so_and_changes_nothing(tmp_path):
    """The second one would write terms of its own into federation.json, under the first one's feet."""
    run_folder.create(tmp_path / "run", config_text(rounds=2))
    keeper = run_folder.lock(tmp_path / "run")
    try:
        with pytest.raises(run_folder.InUse, match="is in use by another process"):
            run(Direct(make_sites(tmp_path / "sites")), tmp_path / "run")
        assert not (tmp_path / "run" / "federation.json").exists()
    finally:
        keeper.close()


# --- a model of one's own ------------------------------------------------------------------------

MODEL = """
from collections import OrderedDict
from torch import nn
def small(shape, classes):
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU())
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(12, classes)))
def headless(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "clinic_models.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "clinic_models:small"
    sys.modules.pop("clinic_models", None)


def allow(kit, *models, monkeypatch):
    """`fedapa site join KIT --allow-model ...`, without the processes."""

    class Nothing:
        def run(self):
            return

    monkeypatch.setattr(site_supervisor, "site_processes", lambda folder: Nothing())
    words = [str(kit), *(word for model in models for word in ("--allow-model", model))]
    assert invoke(join_cli.join, *words).exit_code == 0


def with_model(name):
    return config_text(rounds=2).replace('name = "mlp"', f'name = "{name}"')


def test_a_model_that_every_site_allowed_is_trained(tmp_path, module, monkeypatch):
    sites = make_sites(tmp_path / "sites")
    for kit in sites:
        allow(kit, module, monkeypatch=monkeypatch)
        assert read_settings(kit).models == [module]
    run_folder.create(tmp_path / "run", with_model(module))
    result = run(Direct(sites), tmp_path / "run")
    assert result.task.P == 64 * 12 + 12
    assert server_digest(result) == server_digest(in_process(read_agreement(tmp_path / "run").terms))


def test_one_site_that_did_not_allow_it_is_named_before_the_run(tmp_path, module, monkeypatch):
    sites = make_sites(tmp_path / "sites")
    for kit in sites[:3]:
        allow(kit, module, monkeypatch=monkeypatch)
    allow(sites[3], "clinic_models:other", monkeypatch=monkeypatch)  # another one of the same module does not do
    run_folder.create(tmp_path / "run", with_model(module))
    with pytest.raises(RunError, match="site dune cannot take part: the model clinic_models:small is not allowed"):
        run(Direct(sites), tmp_path / "run")


def test_what_was_not_allowed_is_not_even_imported(tmp_path, module):
    """By a coordinator that skips the question, too."""
    from fedapa.federation.messages import TrainRequest

    (kit, *_) = make_sites(tmp_path / "sites")
    terms, site = replace(terms_of(config_text()), config=with_model(module)), Site.open(kit)
    answer, up = site.visit(terms, TrainRequest("amber", 0, 0, True, False, False, 0, "", 0), {"theta": torch.zeros(3)})
    assert "is not allowed at amber" in answer.fault
    assert up is None
    assert "clinic_models" not in sys.modules
    write_settings(kit, SiteSettings(models=[module]))
    assert Site.open(kit).describe(with_model(module), "amber").fault == ""
    assert "clinic_models" in sys.modules


def test_a_model_that_cannot_be_made_is_the_sites_answer(tmp_path, module):
    (kit, *_) = make_sites(tmp_path / "sites")
    write_settings(kit, SiteSettings(models=["clinic_models:headless"]))
    assert "no submodule named 'head'" in Site.open(kit).describe(with_model("clinic_models:headless"), "amber").fault
