"""Noised uploads of real sites: a coordinator that looks at all it knows learns nothing about the noise.

The coordinator is honest but curious. It follows the protocol, knows seed, round, client, call, method, task and every
message, and here even the site's rows: all but the noise. The sites are the real ClientApp with real states on disk.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fleet import NAMES, Direct, config_text, grid, in_process, make_sites, over_grid, server_digest, terms_of
from flwr.app import Error, Message

from fedapa.analysis import result_sets
from fedapa.config.experiment import lay_out
from fedapa.config.experiment import read_config as read_run
from fedapa.config.load import load
from fedapa.core.tree import Tree, digest
from fedapa.federation import manifest, messages, releases
from fedapa.federation.messages import Description, Terms, TrainReply, TrainRequest
from fedapa.federation.registry import Enrolled
from fedapa.federation.releases import COUNTED
from fedapa.federation.run_federation import play_over
from fedapa.federation.site_agent import Site, agree, read_config, shared_data
from fedapa.methods.privacy import NOT_COVERED
from fedapa.methods.wrappers import Noised, noise_of
from fedapa.rounds.transport import Record, Request, visit
from fedapa.store.checkpoint import from_record
from fedapa.training import local as toolbox
from fedapa.training.local import stream
from fedapa.transports.flower import client_app
from fedapa.transports.flower.serialization import pack, unpack

METHOD, NOISE, NORM = "fedavg+noised", 0.5, 2.0


def noised_terms(run: str = "ab" * 8, rounds: int = 3, **settings: float) -> Terms:
    settings = {"noise": NOISE, "norm": NORM, **settings}
    return terms_of(config_text(METHOD, rounds, (1.0, 1.0), **settings), run)


def opened(folder: Path, i: int = 0) -> Site:
    """The site as a process finds it that has just started."""
    return Site.open(folder / NAMES[i])


def ask_of(i: int = 0, round: int = 0, accepted: int = 0, state: str = "", keep_from: int = 0) -> TrainRequest:
    return TrainRequest(NAMES[i], i, round, True, True, False, accepted, state, keep_from)


def sent_by(server: int, terms: Terms) -> Tree:
    method, task, plan = agree(terms)
    state, _ = method.init(task, plan.seed)
    return method.send(task, state, server)


def upload(site: Site, terms: Terms, ask: TrainRequest, down: Tree | None = None) -> tuple[TrainReply, Tree]:
    answer, up = site.visit(terms, ask, sent_by(ask.client, terms) if down is None else down)
    assert up is not None, answer.fault
    return answer, up


def clean(terms: Terms, i: int = 0) -> Tree:
    """The upload of round 0 without noise, from the site's own rows: more than any coordinator has."""
    return played(noised_terms(terms.run, noise=0.0), i)[1]


def played(terms: Terms, i: int) -> tuple[Record, Tree]:
    """The coordinator plays the site's visit of round 0, by the same code."""
    method, task, plan = agree(terms)
    _, state = method.init(task, plan.seed)
    data = shared_data(i)(read_config(terms.config)).clients[0]
    request = Request(0, i, lambda: sent_by(i, terms), True, True)
    record, reply = visit(method, task, data, Record(state, {}), request, plan.seed)
    assert reply.up is not None
    return record, reply.up


def noise_in(up: Tree, terms: Terms, i: int = 0) -> np.ndarray:
    return (up["omega"] - clean(terms, i)["omega"]).numpy().astype(np.float64) / (NOISE * NORM)


def likeness(one: np.ndarray, other: np.ndarray) -> float:
    """Correlation in standard deviations of what chance gives."""
    return abs(float(np.corrcoef(one, other)[0, 1])) * len(one) ** 0.5


def guesses(terms: Terms, count: int, round: int = 0, i: int = 0) -> list[np.ndarray]:
    """All that the streams of the package give for what the server knows, whatever purpose and call it tries."""
    seed = agree(terms).plan.seed
    keys = [(purpose, round, i, call) for purpose in range(5) for call in range(12)] + [(p,) for p in range(5)]
    drawn = [stream(seed, *key).standard_normal(count, dtype=np.float32) for key in keys]
    return [*drawn, noise_in(played(terms, i)[1], terms, i)]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Terms, TrainReply, Tree]:
    folder, terms = tmp_path_factory.mktemp("first"), noised_terms()
    make_sites(folder)
    return terms, *upload(opened(folder), terms, ask_of())


# ---------------------------------------------------------------------------------------- what the server knows


def test_what_the_server_knows_does_not_predict_the_noise(first: tuple[Terms, TrainReply, Tree]) -> None:
    terms, _, up = first
    noise = noise_in(up, terms)
    assert noise.std() == pytest.approx(1.0, rel=0.05)
    assert abs(noise.mean()) < 5 / len(noise) ** 0.5
    assert max(likeness(noise, guess) for guess in guesses(terms, len(noise))) < 5


def test_the_same_coordinator_finds_seeded_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: a site that draws from the run's seed is found out, its update to the last digits."""
    monkeypatch.setattr("fedapa.federation.site_agent.Entropy", lambda: None)
    make_sites(tmp_path)
    terms = noised_terms()
    _, up = upload(opened(tmp_path), terms, ask_of())
    noise = noise_in(up, terms)
    found = max(guesses(terms, len(noise)), key=lambda guess: likeness(noise, guess))
    assert likeness(noise, found) > 50
    assert np.abs(noise - found).max() < 1e-4


def test_the_digest_of_the_state_does_not_confirm_a_guess_at_the_rows(first: tuple[Terms, TrainReply, Tree]) -> None:
    """A coordinator that has guessed all rows can train on them; the digest must not tell it that it guessed right."""
    terms, answer, up = first
    record, _ = played(terms, 0)
    for memory in (record.memory, {**record.memory, **up}, {}):
        assert digest(from_record(Record(record.state, memory))) != answer.digest


def test_the_fingerprint_does_not_confirm_a_guess_at_the_rows(tmp_path: Path) -> None:
    make_sites(tmp_path)
    text = config_text(METHOD)
    told = [opened(tmp_path, i).describe(text, NAMES[i]).fingerprint for i in (0, 1)]
    assert shared_data(0)(read_config(text)).fingerprint not in told
    assert told[0] != told[1]  # the same allocation, two secrets
    assert told[0] == opened(tmp_path, 0).describe(text, NAMES[0]).fingerprint  # runs on the same rows can be compared


def test_nothing_of_the_clean_update_or_the_entropy_is_in_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[bytes] = []

    def noted(count: int) -> bytes:
        drawn.append(np.random.default_rng(len(drawn)).bytes(count))
        return drawn[-1]

    monkeypatch.setattr(toolbox.secrets, "token_bytes", noted)
    make_sites(tmp_path)
    terms = noised_terms()
    answer, up = upload(opened(tmp_path), terms, ask_of())
    assert [name for name in up if name not in ("omega", "n")] == []
    message = json.dumps(asdict(answer)).encode() + b"".join(array.data for array in pack(up).values())
    hidden = clean(terms)["omega"]
    assert not any(secret[k : k + 8] in message for secret in drawn for k in range(0, len(secret) - 8, 509))
    assert not any(hidden[k : k + 4].numpy().tobytes() in message for k in range(0, len(hidden) - 4, 101))


# ---------------------------------------------------------------------------------------- laws of the noise


def test_two_sites_two_rounds_and_two_starts_have_independent_noise(tmp_path: Path) -> None:
    terms = noised_terms()
    seen = []
    for start in ("one", "other"):  # two folders: two sites of one run that never heard of each other
        make_sites(tmp_path / start)
        for i in (0, 1):
            _, up = upload(opened(tmp_path / start, i), terms, ask_of(i))
            seen.append(noise_in(up, terms, i))
    down = {"omega": sent_by(0, terms)["omega"]}
    answer, _ = upload(opened(tmp_path / "one"), terms, ask_of())
    ask = ask_of(0, 1, 1, answer.digest)
    _, later = upload(opened(tmp_path / "one"), terms, ask, down)
    quiet = noised_terms("cd" * 8, noise=0.0)
    make_sites(tmp_path / "quiet")
    start, _ = upload(opened(tmp_path / "quiet"), quiet, ask_of())
    _, still = upload(opened(tmp_path / "quiet"), quiet, replace(ask, digest=start.digest), down)
    seen.append((later["omega"] - still["omega"]).numpy() / (NOISE * NORM))
    pairs = [(a, b) for a in range(len(seen)) for b in range(a)]
    assert len(pairs) == 10
    assert all(noise.std() == pytest.approx(1.0, rel=0.05) for noise in seen)
    assert max(likeness(seen[a], seen[b]) for a, b in pairs) < 5


def test_a_run_over_real_sites_has_other_bits_than_its_simulation(tmp_path: Path) -> None:
    """The law that noised uploads are exempt from: not even two real runs are the same."""
    terms = noised_terms()
    runs = [over_grid(grid(Direct(make_sites(tmp_path / name)), terms), terms) for name in ("one", "other")]
    assert len({server_digest(in_process(terms)), *map(server_digest, runs)}) == 3
    plain = terms_of(config_text("fedavg", 3, (1.0, 1.0)))
    there = over_grid(grid(Direct(make_sites(tmp_path / "plain")), plain), plain)
    assert server_digest(there) == server_digest(in_process(plain))


# ---------------------------------------------------------------------------------------- a request that comes again


def counted(folder: Path, terms: Terms, i: int = 0) -> int:
    path = folder / NAMES[i] / "states" / terms.run / COUNTED
    return len(json.loads(path.read_text())["requests"]) if path.is_file() else 0


def test_a_repeated_request_gets_the_same_bytes_and_spends_once(tmp_path: Path) -> None:
    """To the running site, and to one that was started again: everything it says, not only the tensors."""
    make_sites(tmp_path)
    terms, site = noised_terms(), opened(tmp_path)
    answer, up = upload(site, terms, ask_of())
    for again in (site, opened(tmp_path), opened(tmp_path)):
        same, bits = upload(again, terms, ask_of())
        assert same == answer
        assert messages.write(same) == messages.write(answer)
        assert [*bits] == [*up]
        assert all(a.data == b.data for a, b in zip(pack(bits).values(), pack(up).values(), strict=True))
    assert counted(tmp_path, terms) == 1


class Killed(BaseException):
    """kill -9."""


@pytest.mark.parametrize("moment", ["state", "upload", "count", "sent"])
def test_killed_at_any_moment_no_second_noise_of_one_update_leaves(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the upload is kept, the noise that was drawn is lost and nobody saw it; after it, it is the one."""
    make_sites(tmp_path)
    terms, drawn = noised_terms(), []

    def noted(self: object, count: int) -> np.ndarray:
        drawn.append(np.random.default_rng(len(drawn)).standard_normal(count, dtype=np.float32))
        return drawn[-1]

    def kill(*_: object) -> None:
        raise Killed

    places = {"state": "fedapa.federation.site_store.write_tree", "upload": "fedapa.federation.releases.write_tree"}
    places |= {"count": "fedapa.federation.releases.write_json", "sent": "fedapa.federation.releases._from_tree"}
    monkeypatch.setattr(toolbox.Entropy, "normal", noted)
    with monkeypatch.context() as patch:
        patch.setattr(places[moment], kill)
        with pytest.raises(Killed):
            opened(tmp_path).visit(terms, ask_of(), sent_by(0, terms))
    assert counted(tmp_path, terms) == (moment != "count")  # before anything is drawn
    _, up = upload(opened(tmp_path), terms, ask_of())
    kept = moment in ("count", "sent")
    assert len(drawn) == (1 if kept else 2)
    torch.testing.assert_close(
        torch.from_numpy(noise_in(up, terms)).float(), torch.from_numpy(drawn[-1]), atol=1e-4, rtol=0
    )
    assert counted(tmp_path, terms) == 1
    upload(opened(tmp_path), terms, ask_of())
    assert (len(drawn), counted(tmp_path, terms)) == (1 if kept else 2, 1)


def test_a_coordinator_that_repeats_itself_with_small_changes_ends_at_the_promised_number(tmp_path: Path) -> None:
    """Averaging over answers to nearly the same request is what epsilon counts: three rounds, three answers."""
    make_sites(tmp_path)
    terms, down = noised_terms(rounds=3), sent_by(0, noised_terms())
    for k in range(3):
        upload(opened(tmp_path), terms, ask_of(), {"omega": down["omega"] + 1e-6 * k})
    answer, up = opened(tmp_path).visit(terms, ask_of(), {"omega": down["omega"] + 1e-6 * 3})
    assert up is None
    assert "has answered 3 requests in this run, as many as epsilon was promised for" in answer.fault
    upload(opened(tmp_path), terms, ask_of(), {"omega": down["omega"]})  # what was kept is sent again


def test_a_coordinator_that_has_an_upload_forgotten_pays_for_the_next(tmp_path: Path) -> None:
    """``keep_from`` drops what no honest coordinator asks for again; whoever does, spends again."""
    make_sites(tmp_path)
    terms = noised_terms()
    answer, _ = upload(opened(tmp_path), terms, ask_of())
    upload(opened(tmp_path), terms, ask_of(0, 1, 1, answer.digest, keep_from=2))
    assert not list((tmp_path / NAMES[0]).rglob("upload-000001-*"))
    upload(opened(tmp_path), terms, ask_of())
    assert counted(tmp_path, terms) == 3


def test_a_run_whose_noise_is_turned_down_on_the_way_gets_no_upload(tmp_path: Path) -> None:
    make_sites(tmp_path)
    upload(opened(tmp_path), noised_terms(), ask_of())
    for terms in (noised_terms(noise=0.0), noised_terms(rounds=30)):
        answer, up = opened(tmp_path).visit(terms, ask_of(), sent_by(0, terms))
        assert up is None
        assert "config changed" in answer.fault


def test_a_damaged_account_sends_nothing(tmp_path: Path) -> None:
    make_sites(tmp_path)
    terms = noised_terms()
    upload(opened(tmp_path), terms, ask_of())
    (path,) = (tmp_path / NAMES[0]).rglob(COUNTED)
    path.write_text("{")
    answer, up = opened(tmp_path).visit(terms, ask_of(), sent_by(0, terms))
    assert (up, "cannot be read" in answer.fault) == (None, True)


class Failing(Direct):
    """Every answer of round 1 is lost at first: the site's process died after it had handed it over."""

    def __init__(self, sites: list[Path]) -> None:
        super().__init__(sites)
        self.answers: dict[tuple[int, int], list[bytes]] = {}

    def answer(self, message: Message) -> Message | None:
        client_app.open_site.cache_clear()  # a new process every time
        reply = super().answer(message)
        assert reply is not None
        key = int(message.content["ask"]["round"]), message.metadata.dst_node_id
        sent = b"".join(array.data for array in reply.content["up"].values())
        self.answers.setdefault(key, []).append(sent)
        return Message(Error(8, "gone"), reply_to=message) if key[0] == 1 and len(self.answers[key]) < 3 else reply


def test_the_coordinator_asks_again_and_the_run_goes_on_with_the_same_upload(tmp_path: Path) -> None:
    terms, session = noised_terms(), Failing(make_sites(tmp_path))
    there = over_grid(grid(session, terms), terms)
    assert [len(log.trained) for log in there.logs] == [4, 4, 4]
    assert all(len(set(sent)) == 1 for sent in session.answers.values())
    assert {len(sent) for key, sent in session.answers.items() if key[0] == 1} == {3}
    assert [counted(tmp_path, terms, i) for i in range(4)] == [3] * 4


def test_a_run_that_is_resumed_plays_its_rounds_again_with_the_kept_uploads(tmp_path: Path) -> None:
    """Bit for bit, as long as the sites have kept what they drew."""
    terms, folder = noised_terms(), tmp_path / "run"
    folder.mkdir()
    sites = make_sites(tmp_path / "sites")
    whole = over_grid(grid(Direct(sites), terms), terms, folder)
    (folder / "checkpoints" / "round-000003.safetensors").unlink()
    again = over_grid(grid(Direct(sites), terms), terms, folder)
    assert server_digest(again) == server_digest(whole)
    assert [counted(tmp_path / "sites", terms, i) for i in range(4)] == [3] * 4


# ---------------------------------------------------------------------------------------- what was agreed


def listed(rounds: int, noise: float) -> dict[str, object]:
    terms = noised_terms(rounds=rounds, noise=noise)
    method, down = agree(terms).method, sent_by(0, terms)
    found = noise_of(method)
    assert isinstance(found, Noised)
    up = {"omega": down["omega"], "n": torch.zeros(1)}
    account, pinned = found.account(rounds, simulated=False), manifest.pinned(read_config(terms.config))
    return manifest.agreement(NAMES[0], METHOD, [(down, up)], [], account, pinned)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"noise": 0.4}, "the server wants method.noise = 0.4, this site agreed to 0.5"),
        ({"rounds": 4}, "the server wants run.rounds = 4, this site agreed to 3"),
        ({"noise": 0.6}, "the server wants method.noise = 0.6, this site agreed to 0.5"),
        ({"norm": 9.0}, "the server wants method.norm = 9.0"),
        ({}, ""),
    ],
)
def test_a_site_holds_the_server_to_the_noise_of_its_dry_run(
    wanted: dict[str, float], said: str, tmp_path: Path
) -> None:
    make_sites(tmp_path)
    site, terms = opened(tmp_path), noised_terms(**wanted)  # type: ignore[arg-type]
    site.wire = listed(3, NOISE)
    assert said in site.describe(terms.config, NAMES[0]).fault
    answer, up = site.visit(terms, ask_of(), sent_by(0, terms))
    assert (said in answer.fault, up is None) == (True, bool(said))


def test_requests_differ_by_what_is_trained() -> None:
    down = {"omega": torch.zeros(3)}
    asks = [ask_of(), ask_of(round=1), ask_of(accepted=1), ask_of(state="ab")]
    names = {releases.request_of(ask, down) for ask in asks} | {releases.request_of(ask_of(), {"omega": torch.ones(3)})}
    assert len(names) == 5
    assert releases.request_of(replace(ask_of(), evaluate=False, keep_from=7), down) in names


def test_what_travels_is_what_was_kept(tmp_path: Path) -> None:
    make_sites(tmp_path)
    terms = noised_terms()
    _, up = upload(opened(tmp_path), terms, ask_of())
    assert digest(unpack(pack(up))) == digest(up)


def test_the_loss_of_the_rows_stays_where_uploads_are_noised(tmp_path: Path) -> None:
    """Epsilon is about the train rows: an exact number of them beside the noised upload would undo it."""
    make_sites(tmp_path)
    noised, _ = upload(opened(tmp_path), noised_terms(), ask_of())
    assert noised.train_loss == []
    plain_terms = terms_of(config_text("fedavg", 3, (1.0, 1.0)), "cd" * 8)
    plain, _ = upload(opened(tmp_path), plain_terms, ask_of())
    assert (
        plain.train_loss[0] > 0 < plain.train_loss[1] <= plain_terms.sizes[0] * agree(plain_terms).task.training.epochs
    )


# Every field of what a site says, and the words under which NOT_COVERED lists it; None: it holds nothing of the rows.
SAID = {
    "run": None, "site": "the site's name", "round": "that it takes part", "fault": "that a training failed",
    "trained": "that it takes part", "digest": None,
    "before": "scores on test and validation rows before and after training",
    "after": "scores on test and validation rows before and after training", "seconds": "how long it took",
    "train_loss": None,  # withheld: test_the_loss_of_the_rows_stays_where_uploads_are_noised
    "train_seconds": "how long it took", "train": "numbers of train, test and validation rows",
    "test": "numbers of train, test and validation rows", "validation": "numbers of train, test and validation rows",
    "classes": "names of columns and classes", "shape": "shape, type and scaling", "dtype": "shape, type and scaling",
    "mean": "shape, type and scaling", "std": "shape, type and scaling", "labels": "which classes it has",
    "fingerprint": None, "native": None, "target": "of targets that are numbers", "layout": "or a hash of them",
}  # fmt: skip


def test_all_that_a_site_says_beside_its_upload_is_listed() -> None:
    """A new field of an answer must be listed, or hold nothing of the rows (digest and fingerprint: tests above)."""
    assert {field.name for kind in (TrainReply, Description) for field in fields(kind)} == SAID.keys()
    told = "; ".join(NOT_COVERED)
    assert [words for words in SAID.values() if words is not None and words not in told] == []
    assert "number of train rows (n)" in told


def test_a_real_run_does_not_call_its_noise_simulated(tmp_path: Path) -> None:
    (tmp_path / "fed.toml").write_text(noised_terms().config)
    (run,) = lay_out(load(str(tmp_path / "fed.toml")), tmp_path / "fed")
    sites = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]
    play_over(Direct(make_sites(tmp_path)), lambda: sites, read_run(run), run)
    (found,) = result_sets.load(run)
    account = found.privacy
    assert account is not None
    assert (account.simulated, account.noise, account.norm, account.rounds) == (False, NOISE, NORM, 3)
    assert f"epsilon {account.epsilon:.3g} at delta 1e-05 over 3 rounds" in result_sets.protection([found])[0]
    assert not any("simulated" in line.lower() for line in result_sets.protection([found]))
