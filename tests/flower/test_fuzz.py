"""Ten thousand bad uploads: none of them changes the server's state, none stops the run, each is told why."""

import math
import os
from functools import lru_cache

import pytest
import torch
from fleet import Direct, config_text, grid, make_sites, sample, terms_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fedapa.core.tree import digest
from fedapa.errors import RunError
from fedapa.federation.site_agent import agree
from fedapa.rounds import loop
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.loop import Context
from fedapa.rounds.site_policy import SitePolicy
from fedapa.rounds.upload_limits import Limits
from fedapa.transports.flower.serialization import pack, unpack

BAD = (1, 2, 3)  # site 0 stays honest
# Times three sites and three methods: more than ten thousand in `make test-federation`, and a taste of it otherwise.
EXAMPLES = 1112 if os.environ.get("FEDAPA_FUZZ") == "all" else 60


class Canned(Direct):
    """Every site answers with a reply that was made before, to a request to train also with that after tampering."""

    def __init__(self, session, tampered):
        super().__init__(session.sites)
        self.ready, self.scores, self.tampered = session.kept, session.scores, tampered

    def answer(self, message):
        i = message.metadata.dst_node_id - 100
        if not trains(message):
            return None if self.tampered.get(i) is silence else self.score(message, i)
        if i in self.tampered:
            return self.tampered[i](message, self.ready[i])
        return Message(self.ready[i], reply_to=message)

    def score(self, message, i):
        """What the site really scores, computed once for what it starts from and what it is sent."""
        key = i, message.content["ask"]["digest"], digest(unpack(message.content["down"]))
        if key not in self.scores:
            self.scores[key] = super().answer(message).content
        return Message(self.scores[key], reply_to=message)


@lru_cache(maxsize=4)
def stage(method, folder):
    """Terms, what is expected, the sound replies of the first round, and the server without the bad sites."""
    terms = terms_of(config_text(method, rounds=1, participation=(1.0, 1.0)))
    agreed = agree(terms)
    begin = loop.start(agreed.method, agreed.task, agreed.plan.seed)
    labels = [frozenset(range(10))] * 4
    expected = Expected(agreed.method, agreed.task, sample(terms), Limits(classes=labels))
    session = Recording(make_sites(folder))
    run(terms, agreed, begin, expected, session)
    alone = run(terms, agreed, begin, expected, Canned(session, dict.fromkeys(BAD, silence)))[0]
    return terms, agreed, begin, expected, session, digest(alone.server)


class Recording(Direct):
    def __init__(self, sites):
        super().__init__(sites)
        self.kept, self.scores = {}, {}

    def answer(self, message):
        reply = super().answer(message)
        if trains(message):
            self.kept[message.metadata.dst_node_id - 100] = reply.content
        return reply


def trains(message):
    return message.content["ask"]["train"]


def run(terms, agreed, begin, expected, session, policy=None):
    usual = SitePolicy(round_timeout=1, quarantine_after=10**9, max_upload_mb=10**6 / 2**20)
    transport = grid(session, terms, policy or usual, agreed)
    logs = []
    context = Context(*agreed[:2], transport, agreed.plan, expected)
    state = loop.run(context, begin[0], lambda log, _: logs.append(log))
    return state, logs, transport


def silence(message, content):
    return None


# ------------------------------------------------------------------------------------------------------ tampering


def changed(content, **answer):
    return RecordDict({**content, "answer": ConfigRecord({**content["answer"], **answer})})


def with_up(content, up):
    return RecordDict({"answer": content["answer"], "up": up})


def with_leaf(content, name, leaf):
    return with_up(content, pack({**unpack(content["up"]), name: leaf}))


def with_array(content, name, **parts):
    old = content["up"][name]
    fresh = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": old.data, **parts}
    return with_up(content, ArrayRecord({**content["up"], name: Array(**fresh)}))


def poked(leaf, where, value):
    leaf = leaf.clone()
    leaf.view(-1)[where % leaf.numel()] = value
    return leaf


@st.composite
def tampering(draw):
    """A function from a sound reply to a bad one."""
    kind = draw(st.sampled_from(KINDS))
    number, share = draw(st.integers(0, 10**6)), draw(st.floats(0, 1, exclude_max=True))
    word = draw(st.text("abcdefghijklmnop-_ /.\n", max_size=12))

    def tamper(message, content):
        names = sorted(content["up"])
        made = kind(content, names[number % len(names)], number, share, word)
        return Message(made, reply_to=message) if isinstance(made, RecordDict | Error) else None

    tamper.kind = kind.__name__
    return tamper


def truncated(content, name, number, share, word):
    data = content["up"][name].data
    return with_array(content, name, data=data[: int(share * len(data))])


def lengthened(content, name, number, share, word):
    return with_array(content, name, data=content["up"][name].data + bytes(1 + number % 50))


def not_a_number(content, name, number, share, word):
    return with_leaf(content, name, poked(unpack(content["up"])[name], number, math.nan))


def infinite(content, name, number, share, word):
    return with_leaf(content, name, poked(unpack(content["up"])[name], number, math.inf * (-1) ** number))


def enormous(content, name, number, share, word):
    return with_leaf(content, name, poked(unpack(content["up"])[name], number, (-1) ** number * 10 ** (8 + 30 * share)))


def other_shape(content, name, number, share, word):
    leaf = unpack(content["up"])[name]
    shapes = (leaf[None], leaf.reshape(-1)[:-1], torch.cat([leaf.reshape(-1)] * 2), leaf.reshape(-1)[:0])
    return with_leaf(content, name, shapes[number % 4])


def other_dtype(content, name, number, share, word):
    kinds = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool, torch.uint8)
    return with_leaf(content, name, unpack(content["up"])[name].to(kinds[number % 6]))


def false_header(content, name, number, share, word):
    wrong = ({"dtype": "object"}, {"stype": "numpy.ndarray"}, {"shape": (-1, number)}, {"shape": (2**39, 2**39)},
             {"dtype": word + "?"}, {"stype": "pickle"})  # fmt: skip
    return with_array(content, name, **wrong[number % 6])


def renamed(content, name, number, share, word):
    up = unpack(content["up"])
    up[word + "?"] = up.pop(name)
    return with_up(content, pack(up))


def missing(content, name, number, share, word):
    up = unpack(content["up"])
    del up[name]
    return with_up(content, pack(up))


def unasked(content, name, number, share, word):
    return with_leaf(content, word + "?", torch.zeros(1 + number % 9))


def giant(content, name, number, share, word):
    return with_leaf(content, name, torch.zeros(250_001 + number % 1000))


def other_round(content, name, number, share, word):
    return changed(content, round=1 + number if number % 2 else -1 - number)


def other_run(content, name, number, share, word):
    return changed(content, run=word)


def other_site(content, name, number, share, word):
    return changed(content, site=("amber", "nobody", word + "?")[number % 3])


def odd_answer(content, name, number, share, word):
    wrong = (
        {"digest": word}, {"digest": "zz" * 32}, {"trained": False}, {"fault": "it broke"}, {"seconds": math.nan},
        {"train_seconds": -1.0 - number}, {"before": [5.0, 4.0, 0.0, 0.0, 1.0, 4.0, 0.0, 0.0]},
        {"before": [4.0, 4.0, 0.0, 0.0, -1.0, 4.0, 0.0, 0.0]}, {"after": [-1.0, 3.0, 0.0, 0.0, 1.0, 3.0, 0.0, 0.0]},
        {"after": [1.0, 0.0, 0.0, 0.0, 1.0, 3.0, 0.0, 0.0]}, {"before": [float(number)]}, {"before": [5, 4, 0, 0]},
        {"round": "0"}, {"trained": 1}, {"site": 5}, {"surplus": 1}, {"before": [0.5]}, {"after": word},
    )  # fmt: skip
    return changed(content, **wrong[number % len(wrong)])


def field_gone(content, name, number, share, word):
    answer = dict(content["answer"])
    del answer[sorted(answer)[number % len(answer)]]
    return RecordDict({**content, "answer": ConfigRecord(answer)})


def nothing_in_it(content, name, number, share, word):
    kept = ({}, {"answer": content["answer"]}, {"up": content["up"]}, {"answer": content["up"], "up": content["up"]},
            {"answer": content["answer"], "up": content["answer"]})  # fmt: skip
    return RecordDict(kept[number % 5])


def failure(content, name, number, share, word):
    return Error(2 + number % 6, word)


def false_counts(content, name, number, share, word):
    """Fewer or more samples than declared, or half ones; for uploads without counts, a huge tensor."""
    up = unpack(content["up"])
    name = "n" if "n" in up else "counts" if "counts" in up else name
    if name == "n":
        return with_leaf(content, name, up[name] + (1 + number, -1 - number % 5, 0.5)[number % 3])
    if name == "counts":
        return with_leaf(content, name, poked(up[name], number, (-1.0 - number, 0.5, 1e7)[number % 3]))
    return with_leaf(content, name, up[name] * 1e12)


KINDS = [
    truncated, lengthened, not_a_number, infinite, enormous, other_shape, other_dtype, false_header, renamed, missing,
    unasked, giant, other_round, other_run, other_site, odd_answer, field_gone, nothing_in_it, failure, false_counts,
]  # fmt: skip


@pytest.mark.federation
@pytest.mark.parametrize("method", ["fedapa", "fedavg", "fedpac"])
def test_bad_uploads_leave_no_trace(method, tmp_path_factory):
    terms, agreed, begin, expected, session, alone = stage(method, tmp_path_factory.mktemp(method))

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.tuples(*[tampering() for _ in BAD]))
    def one_round(tampers):
        canned = Canned(session, dict(zip(BAD, tampers, strict=True)))
        state, logs, transport = run(terms, agreed, begin, expected, canned)
        assert digest(state.server) == alone, [t.kind for t in tampers]
        assert logs[0].trained == [0]
        assert sorted(event.client for event in logs[0].events) == list(BAD)
        for event in logs[0].events:
            assert terms.names[event.client] in event.text
        assert [s.accepted for s in transport.standings] == [1, 0, 0, 0]

    one_round()


def test_a_class_that_was_not_declared_is_refused(tmp_path):
    terms, agreed, begin, expected, session, _ = stage("fedproto", tmp_path)
    counts = {i: unpack(session.kept[i]["up"])["counts"] for i in range(4)}
    declared = [frozenset(counts[i].nonzero().flatten().tolist()) for i in range(4)]
    expected = Expected(*agreed[:2], sample(terms), Limits(classes=declared))
    _, logs, _ = run(terms, agreed, begin, expected, Canned(session, {}))
    assert logs[0].events == []
    declared[2] = declared[2] - {max(declared[2])}
    expected = Expected(*agreed[:2], sample(terms), Limits(classes=declared))
    _, logs, _ = run(terms, agreed, begin, expected, Canned(session, {}))
    assert "cedar refused: it counts samples of class" in logs[0].events[0].text


def test_refused_uploads_in_a_row_end_in_quarantine(tmp_path):
    terms = terms_of(config_text(rounds=6, participation=(1.0, 1.0)))
    agreed = agree(terms)
    begin = loop.start(agreed.method, agreed.task, 0)
    expected = Expected(*agreed[:2], sample(terms), Limits())

    class Poisoned(Direct):
        visits = 0

        def answer(self, message):
            reply = super().answer(message)
            if message.metadata.dst_node_id != 103:
                return reply
            self.visits += 1
            return Message(
                with_leaf(reply.content, "theta", unpack(reply.content["up"])["theta"] * 1e20), reply_to=message
            )

    session = Poisoned(make_sites(tmp_path))
    _, logs, transport = run(terms, agreed, begin, expected, session, SitePolicy(quarantine_after=2, rejoin=1))
    assert [len(log.events) for log in logs[:2]] == [1, 1]
    assert "client dune refused: theta has norm" in logs[0].events[0].text
    assert all("client dune is in quarantine after 2 refused uploads" in log.events[0].text for log in logs[2:])
    assert session.visits == 2
    restored = grid(session, terms)
    restored.restore(transport.records())
    assert restored.standings == transport.standings  # a resumed run remembers


def test_everyone_in_quarantine_ends_the_run(tmp_path):
    terms, agreed, begin, expected, session, _ = stage("fedavg", tmp_path)
    transport = grid(Canned(session, {}), terms)
    for standing in transport.standings:
        standing.refusals = 3
    with pytest.raises(RunError, match="every site is in quarantine"):
        loop.run(Context(*agreed[:2], transport, agreed.plan, expected), begin[0], lambda log, _: None)


def test_the_stage_is_sound(tmp_path):
    """Untampered, all four are absorbed: what is refused above is refused for what was done to it."""
    terms, agreed, begin, expected, session, alone = stage("fedavg", tmp_path)
    state, logs, _ = run(terms, agreed, begin, expected, Canned(session, {}))
    assert logs[0].events == []
    assert digest(state.server) != alone
