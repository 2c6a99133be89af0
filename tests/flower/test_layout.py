"""Sites agree on their columns and classes before they train; whoever differs is turned away and told why at home."""

import json
import os
import signal
from pathlib import Path

import pytest
from federation import Federation, real_processes, wait
from fleet import Direct
from flwr.common.serde import recorddict_to_proto

from command import Call
from fedapa.config.experiment import _load_own, lay_out, read_config
from fedapa.config.load import dump, load
from fedapa.core.tree import digest
from fedapa.data.schema import read_schema
from fedapa.errors import RunError
from fedapa.federation import delivery, manifest, site_status
from fedapa.federation.kit import Kit, write_kit
from fedapa.federation.registry import Enrolled
from fedapa.federation.run_federation import play_over
from fedapa.federation.site_agent import Site
from fedapa.federation.site_settings import SiteSettings, write_settings
from fedapa.site.kit_export import deliver_kit
from fedapa.site.site_model import read_model
from fedapa.store import checkpoint, run_db
from hospitals import write_hospital, write_hospitals

NAMES = ["north", "south"]
SITE = '[sites]\nfiles = ["../{}.csv"]\nlabel = "outcome"\ndrop = ["patient"]\n'
HOME_ONLY = (b"marker", b"patient", b"ward", b"P1000", b"outcome", b".csv")  # columns, cells, files


def describe(folder: Path, names: list[str] = NAMES) -> None:
    """What every site writes about itself, beside its file."""
    for name in names:
        (folder / name).mkdir()
        (folder / name / "site.toml").write_text(SITE.format(name))


def proposed(folder: Path, fedapa: Call, *words: str) -> Path:
    """The first site's schema, and the coordinator's config made of it."""
    assert fedapa("site", "schema", folder / "north" / "site.toml", "--out", folder / "schema.json").code == 0
    out = folder / "fed.toml"
    options = (
        "--method",
        "fedapa",
        "--set",
        "run.rounds=3",
        "--set",
        "training.lr=0.1",
        "--set",
        "run.engine=torch",
        *words,
    )
    made = fedapa("coordinator", "new-config", folder / "schema.json", "--out", out, *options)
    assert made.code == 0, made.err
    return out


@pytest.fixture
def agreed(tmp_path: Path, fedapa: Call) -> Path:
    write_hospitals(tmp_path)
    describe(tmp_path)
    proposed(tmp_path, fedapa)
    for k, name in enumerate(NAMES):
        (tmp_path / "kits" / name).mkdir(parents=True)
        write_kit(tmp_path / "kits" / name, Kit(name, "nowhere:1", k))
        write_settings(tmp_path / "kits" / name, SiteSettings(data=str(tmp_path / name / "site.toml")))
    return tmp_path


class Recording(Direct):
    """Keeps every reply, as fields and as the bytes that travel."""

    def __init__(self, sites: list[Path]) -> None:
        super().__init__(sites)
        self.answers: list[tuple[dict, bytes]] = []

    def answer(self, message):
        reply = super().answer(message)
        content = dict(reply.content.items())
        self.answers.append((content, recorddict_to_proto(reply.content).SerializeToString()))
        return reply


def play(folder: Path, config: str = "fed.toml", session: Recording | None = None) -> Path:
    (run,) = lay_out(load(str(folder / config)), folder / "runs")
    sites = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]
    play_over(session or recorded(folder), lambda: sites, read_config(run), run)
    return run


def recorded(folder: Path) -> Recording:
    return Recording([folder / "kits" / name for name in NAMES])


def test_sites_that_fit_run_and_nothing_else_leaves_than_is_listed(agreed: Path, fedapa: Call) -> None:
    for name in NAMES:
        words = ("site", "dry-run", agreed / name / "site.toml", "--run", agreed / "fed.toml")
        made = fedapa(*words, "--out", agreed / name / "wire.json")
        assert made.code == 0, made.err
        assert "a hash of names, kinds, units and codes of 3 columns" in made.out
        assert "stays here: rows" in made.out
    session = recorded(agreed)
    run = play(agreed, session=session)
    with run_db.reading(run / "run.db") as db:
        assert dict(db.execute("SELECT key, value FROM meta"))["source"] == "own"
    wire = manifest.read(agreed / "north" / "wire.json")
    kinds = {frozenset(content) for content, _ in session.answers}
    assert kinds == {frozenset({"description"}), frozenset({"answer", "up"})}
    listed = [sorted(row["name"] for row in message) for message in wire["up"]]
    for content, raw in session.answers:
        assert [word for word in HOME_ONLY if word in raw] == []
        if "description" in content:
            assert set(content["description"]) == set(wire["said"]["once"])
        else:
            assert set(content["answer"]) == set(wire["said"]["every round"])
            assert not content["up"] or sorted(content["up"]) in listed
    assert any(content.get("up") for content, _ in session.answers)
    deliver_kit(agreed / "kits" / "north", agreed / "out", baselines=False)
    card = (agreed / "out" / "site-model" / "MODEL_CARD.md").read_text()
    for fields in wire["said"].values():
        assert [words for words in fields.values() if words not in card] == []


def spoil(folder: Path, header: str, change=lambda line: line) -> None:
    path = folder / "south.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *map(change, lines[1:])]) + "\n")


def shuffled(line: str) -> str:
    patient, age, marker, ward, outcome = line.split(",")
    return ",".join([patient, marker, age, ward, outcome])


def without_ward(line: str) -> str:
    cells = line.split(",")
    return ",".join(cells[:3] + cells[4:])


HEADER = "patient,age,marker,ward,outcome"


SPOILED = {  # header, change of every line, and what the site's own log names
    "renamed": (HEADER.replace("age", "years"), str, "no column 'age'"),
    "shuffled": ("patient,marker,age,ward,outcome", shuffled, "'marker' stands in the place of 'age'"),
    "missing": ("patient,age,marker,outcome", without_ward, "no column 'ward'"),
    "other codes": (HEADER, lambda line: line.replace(",A,", ",1,").replace(",B,", ",2,"), "'ward' has '"),
    "other classes": (HEADER, lambda line: line.replace("fine", "0").replace("ill", "1"), "label '0'"),
}


@pytest.mark.parametrize(("header", "change", "named"), SPOILED.values(), ids=SPOILED.keys())
def test_a_site_that_differs_is_turned_away(agreed: Path, header: str, change, named: str) -> None:
    spoil(agreed, header, change)
    session = recorded(agreed)
    with pytest.raises(RunError) as error:
        play(agreed, session=session)
    assert (
        "site south cannot take part: its columns or classes are not those of the agreed layout" in error.value.message
    )
    assert named in site_status.read(agreed / "kits" / "south")["fault"]
    raw = b"".join(raw for _, raw in session.answers)
    assert [word for word in HOME_ONLY if word in raw] == []  # the coordinator is told that, not what
    assert not any("answer" in content for content, _ in session.answers)  # before anybody trained


def test_without_a_layout_the_first_site_proposes_its_own(agreed: Path) -> None:
    """Sites with equal layouts run; a site with another code is not mixed with them by luck of equal shapes."""
    bare = (agreed / "fed.toml").read_text().partition("\n[layout]\n")[0]
    rest = (agreed / "fed.toml").read_text().partition("\n[federation]\n")[2]
    (agreed / "bare.toml").write_text(f"{bare}\n[federation]\n{rest}")
    assert load(str(agreed / "bare.toml")).layout is None
    spoil(agreed, "patient,age,marker,ward,outcome", lambda line: line.replace(",A,", ",C,"))
    with pytest.raises(RunError, match="north and south have other columns or classes") as error:
        play(agreed, config="bare.toml")
    assert "fedapa coordinator new-config" in error.value.hint


def test_a_dry_run_holds_the_site_to_its_layout(agreed: Path, fedapa: Call) -> None:
    words = ("site", "dry-run", agreed / "south" / "site.toml", "--run", agreed / "fed.toml")
    assert fedapa(*words, "--out", agreed / "south" / "wire.json").code == 0
    text = (agreed / "fed.toml").read_text()
    assert text.count('"A",') == 1
    (agreed / "fed.toml").write_text(text.replace('"A",', '"A", "Z",'))  # the coordinator asks for one input more
    with pytest.raises(RunError, match="this site's columns or classes are not those of its dry run"):
        play(agreed)


def test_a_layout_beside_the_dry_run_tells_nothing_of_the_rows(agreed: Path, fedapa: Call) -> None:
    """Whether rows fit a layout is an answer about them: one per layout that a coordinator thinks of."""
    words = ("site", "dry-run", agreed / "south" / "site.toml", "--run", agreed / "fed.toml")
    assert fedapa(*words, "--out", agreed / "south" / "wire.json").code == 0
    text, told = (agreed / "fed.toml").read_text(), set()
    site = Site.open(agreed / "kits" / "south")
    for codes in ('"Z",', '"A", "Z",'):  # is there a row of ward A?
        found = site.describe(dump(load(str(agreed / "fed.toml"))), "south")
        assert found.fault == ""
        (agreed / "guess.toml").write_text(text.replace('"A",', codes))
        told.add(site.describe(dump(load(str(agreed / "guess.toml"))), "south").fault)
    (fault,) = told
    assert fault.startswith("this site's columns or classes are not those of its dry run")


def test_a_run_on_own_data_needs_some(agreed: Path) -> None:
    write_settings(agreed / "kits" / "south", SiteSettings())
    with pytest.raises(RunError, match="this site joined with none"):
        play(agreed)


def test_the_new_config_says_what_it_is(agreed: Path, fedapa: Call) -> None:
    config = load(str(agreed / "fed.toml"))
    assert (config.data.source, config.layout.label, config.methods) == ("own", "outcome", ["fedapa"])
    assert config.run.checkpoint_every == 1
    assert [column.name for column in config.layout.columns] == ["age", "marker", "ward"]
    again = fedapa("coordinator", "new-config", agreed / "schema.json", "--out", agreed / "fed.toml")
    assert (again.code, "exists" in again.err) == (2, True)
    simulated = fedapa("run", agreed / "fed.toml", "--out", agreed / "no")
    assert (simulated.code, "the data of this config are at the sites" in simulated.err) == (2, True)
    from_config = fedapa("coordinator", "new-config", agreed / "silo.toml", "--out", agreed / "two.toml")
    assert from_config.code == 0, from_config.err
    assert load(str(agreed / "two.toml")).training.lr == 0.05  # settings of the source are kept


def test_every_site_proposes_and_accepts(agreed: Path, fedapa: Call) -> None:
    """Codes of both sites are in the layout, one dry run accepts all methods, and no other layout or method runs."""
    spoil(agreed, HEADER, lambda line: line.replace(",A,", ",C,"))
    _load_own.cache_clear()
    for name in NAMES:
        made = fedapa("site", "schema", agreed / name / "site.toml", "--out", agreed / f"{name}.json")
        assert made.code == 0, made.err
    proposals = [agreed / f"{name}.json" for name in NAMES]
    words = ("--method", "fedapa,fedavg", "--set", "run.rounds=3", "--set", "run.engine=torch")
    made = fedapa("coordinator", "new-config", *proposals, "--out", agreed / "both.toml", *words)
    assert made.code == 0, made.err
    config = load(str(agreed / "both.toml"))
    assert config.layout.columns[2].levels == ("A", "B", "C")
    assert config.federation.min_sites == 2
    for name in NAMES:
        words = ("site", "dry-run", agreed / name / "site.toml", "--run", agreed / "both.toml")
        made = fedapa(*words, "--out", agreed / name / "wire.json")
        assert made.code == 0, made.err
        assert "accepted by this site" in made.err
    runs = lay_out(config, agreed / "runs")
    sites = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]
    for run in runs:
        play_over(recorded(agreed), lambda: sites, read_config(run), run)
        assert checkpoint.newest(run / "checkpoints").state.round == 3
    (other,) = lay_out(config.model_copy(update={"methods": ["local"]}), agreed / "other")
    with pytest.raises(RunError, match="the server runs local, this site agreed to fedapa, fedavg"):
        play_over(recorded(agreed), lambda: sites, read_config(other), other)
    agreed_schema = fedapa("site", "schema", agreed / "both.toml", "--out", agreed / "agreed.json")
    assert "schema_file" in agreed_schema.err
    assert read_schema(agreed / "agreed.json").columns[2].levels == ("A", "B", "C")


@real_processes
def test_over_tls_turned_away_then_corrected_killed_and_delivered(tmp_path: Path, fedapa: Call) -> None:
    write_hospitals(tmp_path)
    describe(tmp_path)
    whole = (tmp_path / "south.csv").read_text()
    text = proposed(tmp_path, fedapa, "--sites", "2").read_text()
    made = Federation(tmp_path, names=NAMES)
    (tmp_path / "fed.toml").write_text(text + "rejoin = 300.0\n")
    try:
        made.spawn("coordinator", "start")
        for name in NAMES:
            made.spawn("site", "join", f"kits/{name}", "--data", f"{name}/site.toml")
        made.wait_online(2)
        for how, (header, change, named) in SPOILED.items():
            (tmp_path / "south.csv").write_text(whole)
            spoil(tmp_path, header, change)
            (tmp_path / "run.log").unlink(missing_ok=True)
            assert made.run(how.replace(" ", "-")).wait(600) == 1, how
            said = (tmp_path / "run.log").read_text()
            assert "site south cannot take part: its columns or classes are not those of the agreed layout" in said
            assert [word for word in HOME_ONLY if word.decode() in said] == []
            assert named in site_status.read(tmp_path / "kits" / "south")["fault"], how
            assert not list((tmp_path / "kits").glob("*/states/*/in-use*")), how  # nobody trained
        (tmp_path / "south.csv").write_text(whole)
        assert made.run("second").wait(600) == 0
        for name in NAMES:
            for pid in (made.node(name), made.worker(name)):
                os.kill(pid, signal.SIGKILL)
        for name in NAMES:  # every site makes its model by itself, the killed ones too
            wait(lambda name=name: delivery.read_delivery(tmp_path / "kits" / name).get("fault") == "", 600)
        assert fedapa("site", "leave", tmp_path / "kits" / "south").code == 0
    finally:
        made.close()
    run = tmp_path / "second" / "fedapa-seed0"
    assert checkpoint.newest(run / "checkpoints").state.round == 3
    agreed = json.loads((run / "federation.json").read_text())["terms"]
    (tmp_path / "second").rename(tmp_path / "gone")
    (tmp_path / "coordinator").rename(tmp_path / "gone too")
    told = tmp_path / "gone" / "fedapa-seed0" / "run.db"
    for i, name in enumerate(NAMES):
        answer = fedapa("site", "export", tmp_path / "kits" / name, "--out", tmp_path / "later" / name)
        assert answer.code == 0, answer.err
        model = read_model(tmp_path / "kits" / name / "site-model")
        assert digest(model.state) == digest(read_model(tmp_path / "later" / name / "site-model").state)
        store, use = deliver_store(tmp_path / "kits" / name, agreed["run"])
        assert digest(model.state) == digest(store.load(agreed["run"], use.rounds, use.digest).state)
        p, _, _ = model.predict(tmp_path / "kits" / name / "held-out.csv")
        truth = [
            line.rpartition(",")[2] for line in (tmp_path / "kits" / name / "held-out.csv").read_text().splitlines()
        ]
        right = sum(("fine", "ill")[k] == was for k, was in zip(p.argmax(1), truth[1:], strict=True))
        with run_db.reading(told) as db:
            wanted = f"client={i} AND phase='after' AND data='test' AND score='accuracy'"
            row = db.execute(f"SELECT sum, count FROM client_score WHERE {wanted} ORDER BY round DESC").fetchone()
        assert row == (right, len(p))


def deliver_store(kit: Path, run: str):
    from fedapa.federation import site_result
    from fedapa.federation.site_store import Store

    store = Store(kit / "states")
    return store, site_result.read_use(store, run)


def test_many_rows_of_another_site_do_not_matter(agreed: Path) -> None:
    """A site without any row of one code, or without a missing value, still has every input."""
    write_hospital(agreed / "south.csv", 44, 2)
    spoil(agreed, "patient,age,marker,ward,outcome", lambda line: line.replace(",B,", ",A,").replace(",,", ",50,"))
    run = play(agreed)
    assert checkpoint.newest(run / "checkpoints").state.round == 3


def test_numbers_are_agreed_on_and_delivered(tmp_path: Path, fedapa: Call) -> None:
    """Sites that predict the marker: outside of the agreed range nobody takes part."""
    write_hospitals(tmp_path)
    describe(tmp_path)
    for k, name in enumerate(NAMES):
        words = SITE.format(name).replace('"outcome"', '"marker"') + "target_range = [-9.0, 9.0]\n"
        (tmp_path / name / "site.toml").write_text(f'{words}[objective]\nname = "regression"\n')
        (tmp_path / "kits" / name).mkdir(parents=True)
        write_kit(tmp_path / "kits" / name, Kit(name, "nowhere:1", k))
        write_settings(tmp_path / "kits" / name, SiteSettings(data=str(tmp_path / name / "site.toml")))
    config = load(str(proposed(tmp_path, fedapa)))
    assert (config.objective.name, config.layout.target_range) == ("regression", (-9.0, 9.0))
    play(tmp_path)
    found = deliver_kit(tmp_path / "kits" / "south", tmp_path / "out", anyway=True, baselines=False)
    assert read_model(found.folder).predict(tmp_path / "south.csv")[0].shape == (44, 1)
    header, first, *rest = (tmp_path / "north.csv").read_text().splitlines()
    cells = first.split(",")
    (tmp_path / "north.csv").write_text("\n".join([header, ",".join([*cells[:2], "900", *cells[3:]]), *rest]) + "\n")
    _load_own.cache_clear()
    (tmp_path / "runs" / "fedapa-seed0").rename(tmp_path / "first")
    with pytest.raises(RunError, match="not those of the agreed layout"):
        play(tmp_path)
    assert "900, are outside of -9 to 9" in site_status.read(tmp_path / "kits" / "north")["fault"]
