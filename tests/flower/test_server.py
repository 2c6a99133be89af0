"""The ServerApp over a grid that Flower lends, and what sites say before a run."""

import subprocess
import sys

import pytest
from fleet import NAMES, Direct, client_digests, config_text, in_process, make_sites, replace_id, server_digest
from flwr.app import Context, RecordDict

from fedapa.core.tree import digest
from fedapa.errors import RunError
from fedapa.federation.enrolment import read_agreement
from fedapa.federation.messages import Terms
from fedapa.federation.registry import Enrolled
from fedapa.federation.remote_transport import _from_record
from fedapa.federation.site_agent import Site, agree
from fedapa.store import checkpoint
from fedapa.store.run_folder import create
from fedapa.transports.flower import client_app, server_app
from fedapa.transports.flower.serialization import FlowerReply, to_flower


class Borrowed(Direct):
    """The calls of Flower's own grid."""

    def push_messages(self, messages):
        return [self.post(message) for message in messages]

    def pull_messages(self, ids):
        return [reply.message for reply in self.pull(ids)]

    def get_node_ids(self):
        return [103, 101, 100, 102]


def test_a_run_folder_over_a_borrowed_grid(tmp_path):
    create(tmp_path / "run", config_text("fedavg", rounds=2))
    grid = Borrowed(make_sites(tmp_path / "sites"))
    server_app.app(grid, Context(1, 1, {}, RecordDict(), {"config": str(tmp_path / "run")}))
    agreement = read_agreement(tmp_path / "run")
    assert agreement.terms.names == NAMES
    found, here = checkpoint.newest(tmp_path / "run" / "checkpoints"), in_process(agreement.terms)
    assert digest(found.state.server) == server_digest(here)
    assert [_from_record(record).digest for record in found.records] == client_digests(here)


def test_partitions_of_a_simulation_are_site_folders(tmp_path, monkeypatch):
    sites = make_sites(tmp_path)
    monkeypatch.setenv("FEDAPA_SITES", str(tmp_path))
    assert client_app.folder_of(Context(1, 7, {"partition-id": 2}, RecordDict(), {})) == sites[2]


def test_what_a_site_says_about_itself(tmp_path):
    site = Site.open(make_sites(tmp_path)[1])
    found = site.describe(config_text(), "birch")
    assert (found.fault, found.classes, found.shape, found.dtype) == ("", 10, [1, 8, 8], "uint8")
    assert found.train > 0
    assert set(found.labels) <= set(range(10))


def test_sites_train_as_their_method_asks():
    text = config_text("fedavg") + "\n[method.fedavg.training]\nepochs = 4\n"
    terms = Terms("run", text, NAMES, [9] * len(NAMES), "torch", 10, [1, 8, 8], [0.5], [0.5], [])
    assert agree(terms).task.training.epochs == 4


def test_a_site_does_not_answer_in_anothers_name(tmp_path):
    assert "this is birch, not amber" in Site.open(make_sites(tmp_path)[1]).describe(config_text(), "amber").fault


def test_a_model_by_name_is_code_and_must_be_allowed(tmp_path):
    text = config_text().replace('name = "mlp"', 'name = "os:system"')
    site = Site.open(make_sites(tmp_path)[0])
    assert "the model os:system is not allowed at amber" in site.describe(text, "amber").fault


def test_so_are_an_augmentation_and_a_source_of_data(tmp_path):
    site = Site.open(make_sites(tmp_path)[0])
    text = config_text() + '\n[method.fedapa.training]\naugment = "os:system"\n'
    assert "the augmentation os:system is not allowed at amber" in site.describe(text, "amber").fault
    text = config_text().replace('source = "digits"', 'source = "os:getcwd"')
    assert "the data source os:getcwd is not allowed at amber" in site.describe(text, "amber").fault
    text = config_text().replace('source = "digits"', 'source = "secret.npz"')
    assert "data.source" in site.describe(text, "amber").fault or "log says more" in site.describe(text, "amber").fault


def test_a_site_has_devices_of_its_own():
    text = config_text("fedavg").replace('device = "cpu"', 'device = "cuda:9"')
    terms = Terms("run", text, NAMES, [9] * len(NAMES), "torch", 10, [1, 8, 8], [0.5], [0.5], [])
    assert agree(terms).task.devices[0].type == "cpu"


def test_a_config_that_does_not_fit_is_told(tmp_path):
    site = Site.open(make_sites(tmp_path)[3])
    assert "no share 3 among 3" in site.describe(config_text().replace("clients = 4", "clients = 3"), "dune").fault
    assert "unknown method" in site.describe(config_text().replace('"fedapa"', '"nonsense"'), "dune").fault
    assert "not TOML" in site.describe("= 5", "dune").fault
    attack = config_text() + '[attack]\nkind = "scaled"\n'
    assert "section [attack]" in site.describe(attack, "dune").fault  # no real site is asked to attack


def test_a_site_whose_answer_is_cut_off_is_asked_again(tmp_path):
    from flwr.app import Error, Message

    from fedapa.federation.run_federation import make_agreement
    from fedapa.federation.site_agent import read_config
    from fedapa.transports.flower.serialization import AWAY

    class Cut(Direct):
        asked = 0

        def answer(self, message):
            self.asked += message.metadata.dst_node_id == 101
            cut = message.metadata.dst_node_id == 101 and self.asked == 1
            return Message(Error(AWAY, "gone"), reply_to=message) if cut else super().answer(message)

    sites = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]
    session = Cut(make_sites(tmp_path))
    assert make_agreement(session, sites, read_config(config_text()), config_text()).terms.names == NAMES
    assert session.asked == 2


@pytest.mark.parametrize("change", [
    {"classes": 10**15}, {"train": 2**62}, {"train": 0}, {"test": -1}, {"labels": [-1]}, {"labels": [10]},
    {"shape": []}, {"shape": [0, 8, 8]}, {"dtype": "float64"}, {"site": "amber"},
])  # fmt: skip
def test_a_site_that_cannot_be_what_it_says_is_named(tmp_path, change):
    """Found before anything is made of it: so many classes would fill the coordinator's memory."""
    from fedapa.federation.enrolment import described_by

    (reply,) = [Direct(make_sites(tmp_path)).answer(message) for message in [asked(1)]]
    assert described_by(Enrolled("birch", "", 1, 101), FlowerReply(reply)).train > 0
    for key, value in change.items():
        reply.content["description"][key] = value
    with pytest.raises(RunError, match="site birch sent an inconsistent description"):
        described_by(Enrolled("birch", "", 1, 101), FlowerReply(reply))


def asked(k):
    from flwr.app.message import make_message
    from flwr.supercore.task_identity import TaskIdentity

    from fedapa.federation.enrolment import question

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = to_flower(question(Enrolled(NAMES[k], "", k, 100 + k), config_text()))
    return make_message(replace_id(message, "asked"), message.content)


def test_sites_whose_data_differ_are_named(tmp_path):
    from fedapa.federation.run_federation import make_agreement
    from fedapa.federation.site_agent import read_config

    class Odd(Direct):
        def answer(self, message):
            reply = super().answer(message)
            if message.metadata.dst_node_id == 102:
                reply.content["description"]["classes"] = 11
            return reply

    sites = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]
    with pytest.raises(RunError, match="the data differ in classes: 10 at amber, 11 at cedar"):
        make_agreement(Odd(make_sites(tmp_path)), sites, read_config(config_text()), config_text())


def test_the_long_lived_processes_of_a_coordinator_load_no_torch():
    """It would double their memory, and every start."""
    modules = "superlink, supernode, control, server_supervisor, site_supervisor"
    code = f"import sys; from fedapa.transports.flower import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
