"""Waiting, asking again, leaving out: with a session that loses messages, and time that passes at will."""

import shutil
import time
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import pytest
from fleet import (
    NAMES,
    Direct,
    client_digests,
    config_text,
    grid,
    in_process,
    make_sites,
    over_grid,
    server_digest,
    terms_of,
)  # fmt: skip
from flwr.app import Error, Message
from hardship import disk

from fedapa.errors import RunError
from fedapa.federation.remote_transport import Node, RemoteTransport, SessionLost
from fedapa.federation.site_store import Store
from fedapa.rounds.site_policy import SitePolicy
from fedapa.transports.flower.session import FlowerSession


def round_of(message):
    return int(message.content["ask"]["round"])


class Losing(Direct):
    """Loses what ``lost`` says: a function of (round, client, how often it was asked)."""

    def __init__(self, sites, lost):
        super().__init__(sites)
        self.lost, self.asked = lost, {}

    def answer(self, message):
        key = (round_of(message), message.metadata.dst_node_id - 100)
        self.asked[key] = self.asked.get(key, 0) + 1
        return self.mend(message) if self.lost(*key, self.asked[key]) else super().answer(message)

    def mend(self, message):
        return None


class Failing(Losing):
    def mend(self, message):
        super(Losing, self).answer(message)  # the work is done, and then the process dies
        return Message(Error(8, "stopped responding"), reply_to=message)


def test_stragglers_are_left_out_and_counted(tmp_path):
    terms = terms_of(config_text(participation=(1.0, 1.0)))
    transport = grid(
        Losing(make_sites(tmp_path), lambda t, i, _: (t, i) == (1, 2)), terms, SitePolicy(round_timeout=30)
    )
    there = over_grid(transport, terms)
    here = in_process(terms, frozenset({(1, 2)}))
    assert server_digest(there) == server_digest(here)
    assert client_digests(there, transport) == client_digests(here)
    (event,) = there.logs[1].events
    assert (event.client, event.kind) == (2, "absent")
    assert "client cedar did not answer within 30 s" in event.text


def test_an_error_is_answered_by_asking_again(tmp_path):
    """The site had already stored the state of that round: it starts from the accepted one, not from that."""
    terms = terms_of(config_text(participation=(1.0, 1.0)))
    session = Failing(make_sites(tmp_path), lambda t, i, asked: (t, i) == (1, 0) and asked <= 2)
    transport = grid(session, terms)
    assert server_digest(over_grid(transport, terms)) == server_digest(in_process(terms))
    assert session.asked[1, 0] == 3


def test_errors_without_end_leave_a_site_out(tmp_path):
    terms = terms_of(config_text(participation=(1.0, 1.0)))
    session = Failing(make_sites(tmp_path), lambda t, i, _: (t, i) == (0, 3))
    there = over_grid(grid(session, terms), terms)
    assert server_digest(there) == server_digest(in_process(terms, frozenset({(0, 3)})))
    assert "failed: stopped responding" in there.logs[0].events[0].text


class Restarting(Losing):
    """A node that is killed with a message in hand comes back later: no reply, no error."""

    came_back = 0.0

    def mend(self, message):
        self.came_back = self.clock() + 50
        return

    def nodes(self):
        away = self.clock() < self.came_back
        return super().nodes() | {101: Node(not away, self.came_back)}


def test_a_restarted_node_is_sent_its_message_again(tmp_path):
    terms = terms_of(config_text(participation=(1.0, 1.0)))
    session = Restarting(make_sites(tmp_path), lambda t, i, asked: (t, i, asked) == (1, 1, 1))
    transport = grid(session, terms)
    session.clock = transport._clock
    assert server_digest(over_grid(transport, terms)) == server_digest(in_process(terms))
    assert session.asked[1, 1] == 2


def test_a_clock_that_is_set_back_holds_nobody_up(tmp_path):
    """The node comes back at an hour before it went, by the clock of the machine."""

    class Back(Restarting):
        def nodes(self):
            return {k: Node(node.online, -3600.0 if node.since else 0.0) for k, node in super().nodes().items()}

    terms = terms_of(config_text(participation=(1.0, 1.0)))
    session = Back(make_sites(tmp_path), lambda t, i, asked: (t, i, asked) == (1, 1, 1))
    transport = grid(session, terms)
    session.clock = transport._clock
    assert server_digest(over_grid(transport, terms)) == server_digest(in_process(terms))
    assert session.asked[1, 1] == 2
    assert RemoteTransport(session, terms, lambda: [])._clock is time.monotonic  # that of the machine may be set


def test_a_site_that_stays_away_is_not_waited_for_longer_than_agreed(tmp_path):
    class Away(Direct):
        def nodes(self):
            return super().nodes() | {101: Node(False, 0.0)}

    terms = terms_of(config_text(participation=(1.0, 1.0)))
    transport = grid(Away(make_sites(tmp_path)), terms, SitePolicy(rejoin=20))
    there = over_grid(transport, terms)
    assert server_digest(there) == server_digest(in_process(terms, frozenset({(t, 1) for t in range(3)})))
    assert "was offline for 20 s" in there.logs[0].events[0].text
    assert transport._clock() < 1000 + 4 * 25  # three rounds, and the look at what the last one sends


def test_a_site_that_left_is_not_waited_for_at_all(tmp_path):
    terms = terms_of(config_text(participation=(1.0, 1.0)))
    transport = grid(Direct(make_sites(tmp_path)), terms)
    transport.places = lambda: [100, None, 102, 103]
    there = over_grid(transport, terms)
    assert server_digest(there) == server_digest(in_process(terms, frozenset({(t, 1) for t in range(3)})))
    assert "has left the federation" in there.logs[0].events[0].text
    assert transport._clock() < 1005


def test_an_answer_of_a_site_that_was_removed_meanwhile_does_not_count(tmp_path):
    class Slow(Direct):
        """Answers lie at the SuperLink for a moment, in which birch is removed."""

        looks, removed = 0, False

        def pull(self, ids):
            self.looks += 1
            self.removed = True
            return super().pull(ids) if self.looks > 1 else []

    terms = terms_of(config_text(rounds=1, participation=(1.0, 1.0)))
    session = Slow(make_sites(tmp_path))
    transport = grid(session, terms)
    transport.places = lambda: [100, None if session.removed else 101, 102, 103]
    there = over_grid(transport, terms)
    assert sorted(there.logs[0].trained) == [0, 2, 3]
    assert "birch has left the federation" in there.logs[0].events[0].text
    assert server_digest(there) == server_digest(in_process(terms, frozenset({(0, 1)})))


@pytest.mark.parametrize("way", ["answer", "error"])
def test_what_a_site_says_is_one_line_in_the_log(way, tmp_path):
    """A fault must not write lines of its own into a log, nor colour a terminal."""
    evil = "no\n2026-01-01 round 9/9: all well\x1b[2J\r"

    class Shouting(Direct):
        def answer(self, message):
            reply = super().answer(message)
            if message.metadata.dst_node_id != 100:
                return reply
            if way == "error":
                return Message(Error(2, evil), reply_to=message)
            reply.content["answer"].update({"fault": evil, "trained": False, "digest": ""})
            return reply

    terms = terms_of(config_text(rounds=1, participation=(1.0, 1.0)))
    (event,) = over_grid(grid(Shouting(make_sites(tmp_path)), terms), terms).logs[0].events
    assert "all well" in event.text
    assert event.text.isprintable()


def test_a_lost_session_sends_again_what_was_not_answered(tmp_path):
    class Short(Direct):
        def pull(self, ids):
            if self.renewed == 0 and len(self.pushed) > 5:
                self.replies.clear()
                raise SessionLost
            return super().pull(ids)

    terms = terms_of(config_text(participation=(1.0, 1.0)))
    session = Short(make_sites(tmp_path))
    assert server_digest(over_grid(grid(session, terms), terms)) == server_digest(in_process(terms))
    assert session.renewed == 1


def test_replies_to_other_messages_and_second_replies_change_nothing(tmp_path):
    class Replaying(Direct):
        kept: tuple[Message, ...] = ()

        def pull(self, ids):
            fresh = super().pull(ids)
            self.kept = (*self.kept, *fresh)
            return [*self.kept, *fresh, *fresh]

    terms = terms_of(config_text(participation=(1.0, 1.0)))
    there = over_grid(grid(Replaying(make_sites(tmp_path)), terms), terms)
    assert server_digest(there) == server_digest(in_process(terms))
    assert not any(log.events for log in there.logs)


def test_too_few_uploads_stop_the_run_to_be_resumed(tmp_path):
    terms = terms_of(config_text(participation=(1.0, 1.0)))
    lost = Losing(make_sites(tmp_path / "sites"), lambda t, i, _: t == 2 and i > 0)
    policy = SitePolicy(min_replies=3, quorum_timeout=100)
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="too few sites answered: 2 more"):
        over_grid(grid(lost, terms, policy), terms, tmp_path / "run")
    again = grid(Direct(make_sites(tmp_path / "sites")), terms, policy)
    there = over_grid(again, terms, tmp_path / "run")
    here = in_process(terms)
    assert server_digest(there) == server_digest(here)
    assert client_digests(there, again) == client_digests(here)


def test_a_site_without_the_accepted_state_says_so_and_is_left_out(tmp_path):
    class Forgetful(Direct):
        def answer(self, message):
            if round_of(message) == 1 and message.metadata.dst_node_id == 100:
                shutil.rmtree(self.sites[0] / "states")
            return super().answer(message)

    terms = terms_of(config_text(participation=(1.0, 1.0)))
    there = over_grid(grid(Forgetful(make_sites(tmp_path)), terms), terms)
    assert server_digest(there) == server_digest(in_process(terms, frozenset({(1, 0), (2, 0)})))
    assert "the state after round 1" in there.logs[1].events[0].text
    assert "is not on this disk" in there.logs[1].events[0].text


def test_a_damaged_state_is_not_used(tmp_path):
    class Damaging(Direct):
        def answer(self, message):
            if round_of(message) == 1 and message.metadata.dst_node_id == 100:
                (path,) = (self.sites[0] / "states").glob("*/round-*")
                content = bytearray(path.read_bytes())
                content[-1] ^= 1
                path.write_bytes(content)
            return super().answer(message)

    terms = terms_of(config_text(participation=(1.0, 1.0)))
    there = over_grid(grid(Damaging(make_sites(tmp_path)), terms), terms)
    assert "does not match its digest" in there.logs[1].events[0].text


def test_states_that_no_checkpoint_can_ask_for_are_dropped(tmp_path):
    terms = terms_of(config_text("fedavg", rounds=8, participation=(1.0, 1.0)))
    (tmp_path / "run").mkdir()
    over_grid(grid(Direct(make_sites(tmp_path)), terms), terms, tmp_path / "run")
    for name in NAMES:
        kept = Store(tmp_path / name / "states").rounds(terms.run)
        assert kept[-1] == 8
        assert 6 in kept  # the checkpoint before the newest is still good for a resume
        assert len(kept) <= 5
    newest = sorted((tmp_path / "run" / "checkpoints").glob("round-*"))[-1]
    newest.write_bytes(b"damaged")
    there = over_grid(grid(Direct(make_sites(tmp_path)), terms), terms, tmp_path / "run")
    assert server_digest(there) == server_digest(in_process(terms))


def test_a_full_disk_at_a_site_costs_its_round_and_nothing_else(tmp_path):
    sites = make_sites(tmp_path)

    class Full(Direct):
        def answer(self, message):
            if (round_of(message), message.metadata.dst_node_id) != (1, 102):
                return super().answer(message)
            small.fill()
            try:
                return super().answer(message)
            finally:
                small.free()

    terms = terms_of(config_text(participation=(1.0, 1.0)))
    with ExitStack() as stack:
        try:
            small = stack.enter_context(disk(sites[2], 1))
        except PermissionError as error:
            pytest.skip(str(error))
        transport = grid(Full(sites), terms)
        there, here = over_grid(transport, terms), in_process(terms, frozenset({(1, 2)}))
        assert not list(sites[2].rglob("*.part"))
    assert server_digest(there) == server_digest(here)
    assert client_digests(there, transport) == client_digests(here)
    assert "No space left" in there.logs[1].events[0].text


def test_after_an_outage_of_the_superlink_every_node_counts_as_restarted() -> None:
    """A SuperLink that was killed while it handed a message out has marked it as delivered: the site is asked again."""
    session, listed = object.__new__(FlowerSession), SimpleNamespace(node_id=7, status="online", last_activated_at="")
    answers: list[object] = [SimpleNamespace(nodes=[listed])] * 3
    answers[1:1] = [httpx.ConnectError("refused"), httpx.ConnectError("refused")]

    def get_nodes(_: object) -> object:
        if isinstance(found := answers.pop(0), Exception):
            raise found
        return found

    session.outages, session.outage = 0, 60.0
    session._grid = SimpleNamespace(_runtime_client=SimpleNamespace(GetNodes=get_nodes))
    assert [session.nodes()[7].since for _ in range(3)] == [0.0, 1.0, 1.0]  # one outage, however often it was tried
