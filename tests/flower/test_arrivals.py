"""Sites that join a run that is going, and sites that leave it for good: the same bits as a run planned that way."""

import json

import pytest
from fleet import NAMES, Direct, client_digests, config_text, in_process, make_sites, server_digest
from flwr.app import Error, Message

from fedapa.config.experiment import read_config
from fedapa.core.tree import digest
from fedapa.errors import RunError
from fedapa.federation.enrolment import AGREED, read_agreement
from fedapa.federation.registry import Enrolled
from fedapa.federation.remote_transport import Node, SessionLost, _from_record
from fedapa.federation.run_federation import play_over
from fedapa.methods.catalogue import METHODS
from fedapa.store import checkpoint, run_db, run_folder
from fedapa.transports.flower.serialization import AWAY

SITES = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]
REFUSE = [name for name in METHODS if name.startswith("pfedla")]


class Growing(Direct):
    """Dune is enrolled once round ``join`` is under way; amber is removed once round ``leave`` is."""

    def __init__(self, sites, join=1, leave=99, stop=99):
        super().__init__(sites)
        self.join, self.leave, self.stop, self.round, self.questions = join, leave, stop, -1, 0

    def answer(self, message):
        if "ask" not in message.content:
            self.questions += message.metadata.dst_node_id == 103
            return super().answer(message)
        self.round = max(self.round, int(message.content["ask"]["round"]))
        if self.round >= self.stop:
            raise KeyboardInterrupt
        return super().answer(message)

    def members(self):
        found = SITES if self.round >= self.join else SITES[:3]
        return [site for site in found if not (site.name == "amber" and self.round >= self.leave)]

    def play(self, path):
        return play_over(self, self.members, read_config(path), path)


def make_run(path, method="fedapa", rounds=4, participation=(0.6, 1.0), **more):
    text = config_text(method, rounds, participation)
    for key, value in more.items():
        was = next(line for line in text.splitlines() if line.startswith(f"{key} = "))
        text = text.replace(was, f"{key} = {json.dumps(value)}")
    run_folder.create(path, text)
    return path


def events(path):
    with run_db.reading(path / "run.db") as db:
        return run_db.events(db)


def assert_planned(path):
    """The run of a folder is the one in which everybody came and went when the folder says so, planned beforehand."""
    agreed = read_agreement(path)
    here = in_process(agreed.terms, since=agreed.since, until=agreed.until)
    found = checkpoint.newest(path / "checkpoints")
    assert digest(found.state.server) == server_digest(here)
    assert [_from_record(record).digest for record in found.records] == client_digests(here)
    with run_db.reading(path / "run.db") as db:
        trained = [log.trained for log in run_db.logs(db)]
    assert trained == [sorted(log.trained) for log in here.logs]
    return here


@pytest.mark.parametrize("method", [name for name in METHODS if name not in REFUSE])
def test_a_site_that_joins_a_run_that_is_going(method, tmp_path):
    session, path = Growing(make_sites(tmp_path)), make_run(tmp_path / "run", method)
    result = session.play(path)
    assert read_agreement(path).since == [0, 0, 0, 2]  # it came in round 1 (of 0, 1, 2, 3)
    assert events(path) == [(2, 3, "joined", "client dune joined")]
    assert [len(log.after) for log in result.logs] == [3, 3, 4, 4]
    assert result.task.names == tuple(NAMES)
    assert_planned(path)


def test_the_newcomer_is_heard_and_the_others_keep_their_rows(tmp_path):
    """FedAPA's rule: its extractor starts as the mean of all, its row as itself alone, its column as 0."""
    session, path = Growing(make_sites(tmp_path)), make_run(tmp_path / "run", participation=(1.0, 1.0))
    before = checkpoint.newest(make_two(tmp_path / "two")).state.server
    session.play(path)
    sent = next(m for m in session.pushed if "ask" in m.content and m.content["ask"]["site"] == "dune")
    from fedapa.transports.flower.serialization import unpack

    assert unpack(sent.content["down"])["theta"].allclose(before["theta"].mean(0), atol=1e-6)
    assert sent.content["terms"]["names"] == NAMES
    after = checkpoint.newest(path / "checkpoints").state.server
    assert after["A"].shape == (4, 4)
    assert after["A"][3, 3] > 0.3
    assert not after["theta"][3].allclose(before["theta"].mean(0), atol=1e-4)


def make_two(path):
    """Two rounds of the same run without dune."""
    session, run = Growing(make_sites(path), join=99), make_run(path / "run", rounds=2, participation=(1.0, 1.0))
    session.play(run)
    return run / "checkpoints"


@pytest.mark.parametrize("method", REFUSE)
def test_a_method_without_a_rule_turns_it_away_and_goes_on(method, tmp_path):
    session, path = Growing(make_sites(tmp_path)), make_run(tmp_path / "run", method)
    session.play(path)
    assert read_agreement(path).since == [0, 0, 0]
    assert events(path) == [
        (2, None, "turned away", "client dune cannot join: the server's psi cannot take another client")
    ]
    assert session.questions == 1


@pytest.mark.parametrize(("stop", "every"), [(2, 1), (3, 1), (3, 2)])
def test_cut_off_while_it_joins_or_after_a_resumed_run_is_the_same(stop, every, tmp_path):
    """In the round that it joined (decided, not yet played), after it, and where that round must be played again."""
    whole = make_run(tmp_path / "whole", "fedapa", 4, checkpoint_every=every)
    Growing(make_sites(tmp_path / "one")).play(whole)
    path, sites = make_run(tmp_path / "cut", "fedapa", 4, checkpoint_every=every), make_sites(tmp_path / "two")
    with pytest.raises(KeyboardInterrupt):
        Growing(sites, stop=stop).play(path)
    Growing(sites, join=-1).play(path)
    assert read_agreement(path).since == [0, 0, 0, 2]
    assert run_db.numbers(path / "run.db") == run_db.numbers(whole / "run.db")
    assert_planned(path)


def test_a_site_that_leaves_for_good_is_not_drawn_not_asked_and_stays_in_the_mixtures(tmp_path):
    session, path = Growing(make_sites(tmp_path), leave=1), make_run(tmp_path / "run")
    result = session.play(path)
    assert read_agreement(path).until == [2, -1, -1, -1]
    told = [event for event in events(path) if event[1] == 0]
    assert told[-1] == (2, 0, "left", "client amber left for good")
    asked = [m.content["ask"]["round"] for m in session.pushed if "ask" in m.content and m.metadata.dst_node_id == 100]
    assert max(asked) <= 1
    assert all(0 not in log.trained for log in result.logs[2:])
    assert result.logs[-1].after[0, 0].tolist() == [0, 0, 0, 0]  # nobody uses its model any more
    assert_planned(path)
    assert result.state.server["theta"].shape[0] == 4


def test_if_all_have_left_the_run_says_so(tmp_path):
    session, path = Growing(make_sites(tmp_path), join=99), make_run(tmp_path / "run")
    session.members = lambda: SITES[:3] if session.round < 0 else []
    with pytest.raises(RunError, match="every client has left for good"):
        session.play(path)


def test_who_does_not_fit_is_turned_away_once_and_asked_again_after_a_restart(tmp_path):
    class Odd(Growing):
        since = 0.0

        def answer(self, message):
            reply = super().answer(message)
            if "ask" not in message.content and message.metadata.dst_node_id == 103 and self.questions == 1:
                reply.content["description"]["classes"] = 11
                self.since = 2e9  # it is started again, much later
            return reply

        def nodes(self):
            return super().nodes() | {103: Node(True, self.since)}

    session, path = Odd(make_sites(tmp_path)), make_run(tmp_path / "run", rounds=4)
    session.play(path)
    texts = [(t, kind, text) for t, _, kind, text in events(path)]
    assert texts == [
        (2, "turned away", "client dune cannot join: the data differ in classes: 10 at amber, 11 at dune"),
        (3, "joined", "client dune joined"),
    ]
    assert_planned(path)


@pytest.mark.parametrize("failure", ["silent", "away", "failing", "lost", "nonsense"])
def test_a_newcomer_that_does_not_answer_holds_nobody_up(failure, tmp_path):
    class Silent(Growing):
        def answer(self, message):
            if "ask" in message.content or message.metadata.dst_node_id != 103:
                return super().answer(message)
            self.questions += 1
            errors = {"away": Error(AWAY, "gone"), "failing": Error(2, "no")}
            if failure in errors:
                return Message(errors[failure], reply_to=message)
            if failure == "nonsense":
                return Message(message.content, reply_to=message)
            return None

        def pull(self, ids):
            if failure == "lost" and not self.renewed and self.questions:
                raise SessionLost
            return super().pull(ids)

    session, path = Silent(make_sites(tmp_path)), make_run(tmp_path / "run")
    session.play(path)
    assert read_agreement(path).terms.names == NAMES[:3]
    said = [text for _, _, _, text in events(path)]
    assert len(said) == (failure in ("failing", "nonsense"))
    assert all("client dune cannot join: site dune" in text for text in said)


def test_a_run_may_be_closed_to_late_sites(tmp_path):
    session, path = Growing(make_sites(tmp_path)), make_run(tmp_path / "run", late_sites=False)
    session.play(path)
    assert read_agreement(path).since == [0, 0, 0]
    assert session.questions == 0


def test_a_run_that_began_before_sites_could_join_goes_on(tmp_path):
    path, sites = make_run(tmp_path / "run"), make_sites(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        Growing(sites, join=99, stop=1).play(path)
    old = json.loads((path / AGREED).read_text())
    del old["since"], old["until"]
    (path / AGREED).write_text(json.dumps(old))
    Growing(sites, join=-1).play(path)
    assert read_agreement(path).since == [0, 0, 0, 1]
    assert_planned(path)


def test_in_one_process_a_planned_run_is_resumed_bit_for_bit(tmp_path):
    session, path = Growing(make_sites(tmp_path)), make_run(tmp_path / "run", rounds=5)
    session.play(path)
    agreed = read_agreement(path)
    (tmp_path / "here").mkdir()
    here = in_process(agreed.terms, since=agreed.since, until=agreed.until, folder=tmp_path / "here")
    for point in sorted((tmp_path / "here" / "checkpoints").glob("round-*"))[1:]:
        point.unlink()
    again = in_process(agreed.terms, since=agreed.since, until=agreed.until, folder=tmp_path / "here")
    assert server_digest(again) == server_digest(here)
    assert again.task.names == here.task.names == tuple(NAMES)
