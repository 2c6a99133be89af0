"""The model is delivered: at the site, from its own disk, whatever happened to the coordinator or to the run."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from fleet import Direct, make_sites, sent, terms_of
from fleet import config_text as text_of
from test_hospitals import ENGINE, kits

from command import Call
from fedapa.analysis.personalized_model import in_use, last_checkpoint, predictions
from fedapa.config.experiment import _load_own, assemble, lay_out, read_config
from fedapa.config.load import load
from fedapa.core.tree import digest
from fedapa.errors import InputError
from fedapa.federation import delivery, site_result
from fedapa.federation.delivery import Delivery
from fedapa.federation.kit import Kit, write_kit
from fedapa.federation.messages import TrainRequest
from fedapa.federation.registry import Enrolled
from fedapa.federation.run_federation import play_over
from fedapa.federation.site_agent import Site
from fedapa.federation.site_settings import SiteSettings, write_settings
from fedapa.federation.site_store import Store
from fedapa.site.kit_export import deliver_kit
from fedapa.site.site_model import read_model
from fedapa.store import run_db
from hospitals import write_hospitals

NAMES = ["north", "south"]


class Cut(Direct):
    """The power fails at the coordinator before it asks for round ``stop``."""

    def __init__(self, sites: list[Path], stop: int) -> None:
        super().__init__(sites)
        self.stop = stop

    def answer(self, message):
        if "ask" in message.content and message.content["ask"]["round"] >= self.stop:
            raise KeyboardInterrupt
        return super().answer(message)


def federate(folder: Path, method: str, session: Direct | None = None, *changes: str) -> Path:
    rest = (folder / "silo.toml").read_text().partition("[model]")[2]
    (folder / f"{method}.toml").write_text(f'methods = ["{method}"]\n[data]\nsource = "own"\n[model]{rest}')
    (run,) = lay_out(load(str(folder / f"{method}.toml"), ["run.engine=torch", *changes]), folder / "fed")
    sites = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(NAMES)]
    session = session or Direct([folder / "kits" / name for name in NAMES])
    play_over(session, lambda: sites, read_config(run), run)
    return run


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`silo run` on two hospitals, and real sites with the same files; nobody but the sites keeps a thing of it."""
    import sys

    from fedapa.cli import main

    folder, before = tmp_path_factory.mktemp("hospitals"), sys.argv
    write_hospitals(folder)
    words = [
        "--out",
        str(folder / "silo"),
        "--method",
        "local,fedavg,fedapa",
        "--seeds",
        "1",
        "--no-baselines",
        *ENGINE,
    ]
    sys.argv = ["fedapa", "silo", "run", str(folder / "silo.toml"), *words]
    try:
        main()
    finally:
        sys.argv = before
    kits(folder, NAMES, folder / "silo" / "schema.json")
    for method in ("fedavg", "fedapa"):
        shutil.move(federate(folder, method), folder / "coordinator" / method)
    return folder


def simulated(folder: Path, method: str, i: int):
    """State and predictions of a client's test rows, as the simulation of the same run has them."""
    run = folder / "silo" / f"{method}-seed0"
    made, task, data, plan = assemble(read_config(run))
    state = in_use(made, task, last_checkpoint(run, plan.rounds), i, data.clients[i], plan.seed)
    return state, predictions(made, task, state, data.clients[i].test.x)


@pytest.mark.parametrize(("method", "k"), [("fedapa", 0), ("fedavg", 1)])  # used as trained, used as it arrives
def test_the_model_at_the_site_is_the_one_of_the_run(done: Path, tmp_path: Path, method: str, k: int) -> None:
    kit = shutil.copytree(done / "kits" / "south", tmp_path / "south")
    shutil.copy(done / "kits" / "south.settings.toml", tmp_path)
    run = site_result.runs_of(Store(kit / "states"))[k]
    found = deliver_kit(kit, tmp_path / "out", run[:8] if k else method, baselines=k == 0)
    assert found.run == run
    assert (found.method, found.rounds, found.notes) == (method, (3, 3), [])
    state, p = simulated(done, method, 1)
    model = read_model(found.folder)
    assert digest(model.state) == digest(state)
    mine, _, odd = model.predict(tmp_path / "out" / "held-out.csv")
    assert mine.tobytes() == p.tobytes()
    assert odd == []
    alone, q = simulated(done, "local", 1)
    assert digest(read_model(tmp_path / "out" / "alone-model").state) == digest(alone)
    assert (
        read_model(tmp_path / "out" / "alone-model").predict(tmp_path / "out" / "held-out.csv")[0].tobytes()
        == q.tobytes()
    )
    card = (found.folder / "MODEL_CARD.md").read_text()
    assert "| alone (local) |" in card
    assert f"| with the federation ({method}) |" in card
    assert found.verdict is not None
    assert f"**Verdict: {found.verdict.text}.**" in card
    for rival in ("plain model", "network as held-out rows want it"):
        assert (f"| alone, {rival} |" in card) == (k == 0)
    assert (kit / "states" / run / "ended").is_file()


def test_its_score_is_the_one_that_the_coordinator_was_told(done: Path, tmp_path: Path) -> None:
    found = deliver_kit(done / "kits" / "north", tmp_path, baselines=False)
    y, p = (
        assemble(read_config(done / "silo" / "fedapa-seed0")).data.clients[0].test.y.numpy(),
        simulated(done, "fedapa", 0)[1],
    )
    with run_db.reading(done / "coordinator" / "fedapa" / "run.db") as db:
        wanted = "client=0 AND phase='after' AND data='test' AND score='accuracy'"
        told = db.execute(f"SELECT sum, count FROM client_score WHERE {wanted} ORDER BY round DESC").fetchone()
    assert told == (int((p.argmax(1) == y).sum()), len(y))
    assert found.run == site_result.runs_of(Store(done / "kits" / "north" / "states"))[0]


def test_the_commands_export_and_predict(done: Path, fedapa: Call, tmp_path: Path) -> None:
    kit = done / "kits" / "north"
    early = fedapa("predict", shutil.copytree(kit, tmp_path / "fresh"), done / "north.csv")
    assert (early.code, "fedapa site export" in early.err) == (2, True)
    answer = fedapa("site", "export", kit, "--out", tmp_path / "out", "--format", "json", "--no-baselines")
    assert answer.code == 0, answer.err
    said = json.loads(answer.out)
    assert said["verdict"]["use"] in ("alone", "joined")
    predicted = fedapa("predict", tmp_path / "out", done / "north.csv")  # the folder above site-model/ will do
    assert (predicted.code, predicted.out.splitlines()[0]) == (0, "line,outcome,p(fine),p(ill)")
    wrong = fedapa("site", "export", kit, "--run", "zz")
    assert (wrong.code, "0 runs of north are called 'zz'" in wrong.err) == (2, True)
    for words in (
        ("export", done / "coordinator" / "fedapa", "--client", "north"),
        ("onboard", done / "coordinator" / "fedapa", done / "north.csv"),
    ):
        refused = fedapa(*words)
        assert (refused.code, "their models are there" in refused.err, "digits" in refused.err) == (2, True, False)
    at_kit = fedapa("export", kit, "--client", "0")
    assert (at_kit.code, "fedapa site export" in at_kit.err) == (2, True)


def test_a_run_that_was_cut_off_leaves_its_last_model(tmp_path: Path) -> None:
    write_hospitals(tmp_path)
    text = (tmp_path / "silo.toml").read_text()
    (tmp_path / "silo.toml").write_text(text.replace("rounds = 3", "rounds = 5"))
    made = kits(tmp_path, NAMES, schema_of(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        federate(tmp_path, "fedapa", Cut([tmp_path / "kits" / name for name in NAMES], 2))
    shutil.rmtree(tmp_path / "fed")  # the coordinator is gone
    found = deliver_kit(made[0], baselines=False)
    assert found.rounds == (2, 5)
    assert found.folder == made[0] / "site-model"
    store, run = Store(made[0] / "states"), found.run
    use = site_result.read_use(store, run)
    assert not (store.place(run) / "ended").exists()
    assert (use.rounds, max(store.rounds(run))) == (2, 2)
    assert digest(read_model(found.folder).state) == digest(store.load(run, 2, use.digest).state)


def schema_of(folder: Path) -> Path:
    from fedapa.data import schema as schemas
    from fedapa.site.export_models import agreed_schema
    from fedapa.store.atomic_io import write_json

    write_json(folder / "schema.json", schemas.to_json(agreed_schema(load(str(folder / "silo.toml")))))
    return folder / "schema.json"


def test_rows_that_changed_cost_the_scores_and_not_the_model(done: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(done, tmp_path / "copy")
    settings = copy / "kits" / "north.settings.toml"
    settings.write_text(settings.read_text().replace(str(done), str(copy)))
    config = copy / "north" / "site.toml"
    config.write_text(config.read_text().replace(str(done), str(copy)))
    before = deliver_kit(copy / "kits" / "north", tmp_path / "before", baselines=False)
    lines = (copy / "north.csv").read_text().splitlines()
    (copy / "north.csv").write_text("\n".join([*lines, *lines[1:9]]) + "\n")
    _load_own.cache_clear()  # as in another process
    after = deliver_kit(copy / "kits" / "north", tmp_path / "after")
    assert (after.verdict, len(after.notes)) == (None, 1)
    one, other = (read_model(found.folder) for found in (before, after))
    assert digest(one.state) == digest(other.state)
    assert one.schema == other.schema  # scaled by the rows of the run
    assert "Not known" in (after.folder / "MODEL_CARD.md").read_text()
    averaged = site_result.runs_of(Store(copy / "kits" / "north" / "states"))[1]
    with pytest.raises(InputError, match="rows changed, and fedavg fits what arrives"):
        deliver_kit(copy / "kits" / "north", tmp_path / "no", averaged)


def test_no_request_removes_the_model_in_use(tmp_path: Path) -> None:
    terms = terms_of(text_of(participation=(1.0, 1.0)))
    site = Site.open(make_sites(tmp_path)[0])
    ask = TrainRequest("amber", 0, 0, True, False, False, 0, "", 10**6)
    answer, up = site.visit(terms, ask, sent(terms))
    assert (answer.fault, up is not None) == ("", True)
    assert site.store.rounds(terms.run) == [1]
    assert site_result.read_use(site.store, terms.run).digest == answer.digest


def test_a_failed_visit_changes_nothing(tmp_path: Path) -> None:
    terms = terms_of(text_of(participation=(1.0, 1.0)))
    site = Site.open(make_sites(tmp_path)[0])
    site.visit(terms, TrainRequest("amber", 0, 0, True, False, False, 0, "", 0), sent(terms))
    before = site_result.read_use(site.store, terms.run)
    broken = {name: leaf * float("nan") for name, leaf in sent(terms).items()}
    answer, _ = site.visit(terms, TrainRequest("amber", 0, 1, True, False, False, 0, "", 0), broken)
    assert answer.fault
    assert site_result.read_use(site.store, terms.run)[:3] == before[:3]


def test_a_trial_on_a_shared_data_set_is_delivered_too(tmp_path: Path) -> None:
    terms = terms_of(text_of(participation=(1.0, 1.0)))
    folder = make_sites(tmp_path)[0]
    site = Site.open(folder)
    site.visit(terms, TrainRequest("amber", 0, 0, True, False, False, 0, "", 0), sent(terms))
    found = deliver_kit(folder, anyway=True, baselines=False)
    data = site.share(read_config_text(terms.config)).clients[0]
    np.savez(tmp_path / "x.npz", x=data.test.x.numpy())
    p, _, _ = read_model(found.folder).predict(tmp_path / "x.npz")
    assert p.shape == (len(data.test.y), 10)
    assert found.rounds == (1, 3)


def read_config_text(text: str):
    from fedapa.federation.site_agent import read_config as parse

    return parse(text)


def test_a_kit_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="amber has no model yet"):
        deliver_kit(make_sites(tmp_path)[0])


def test_a_threshold_travels_with_the_model(tmp_path: Path, fedapa: Call) -> None:
    """Of a primary score for rare classes: in the card, in model.json, in predictions.csv and in `predict`."""
    write_hospitals(tmp_path)
    kits(tmp_path, NAMES, schema_of(tmp_path))
    federate(tmp_path, "fedapa", None, "objective.score=AUC")
    kit = tmp_path / "kits" / "north"
    (kit / "site-model").mkdir()
    (kit / "site-model" / "model.onnx").write_text("of another model")
    found = deliver_kit(kit, baselines=False)
    assert sorted(path.name for path in found.folder.iterdir()) == [
        "MODEL_CARD.html",
        "MODEL_CARD.md",
        "model.json",
        "model.safetensors",
        "preprocessing.json",
    ]
    cut = json.loads((found.folder / "model.json").read_text())["threshold"]
    assert f"counts as ill from a probability of {cut:.3g} on" in (found.folder / "MODEL_CARD.md").read_text()
    p, _, _ = read_model(found.folder).predict(kit / "held-out.csv")
    wanted = [("fine", "ill")[int(one >= cut)] for one in p[:, 1]]
    assert wanted != [("fine", "ill")[k] for k in p.argmax(1)]  # the threshold makes a difference here
    said = fedapa("predict", kit, kit / "held-out.csv")
    for text in (said.out, (kit / "predictions.csv").read_text()):
        assert [line.split(",")[1] for line in text.splitlines()[1:]] == wanted


class Clock:
    """A kit with two answered runs, and a command in place of the export."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_kit(folder, Kit("north", "nowhere:1", 0))

    def answer(self, run: str, ended: bool, ago: float) -> None:
        place = self.folder / "states" / run
        place.mkdir(parents=True, exist_ok=True)
        (place / site_result.IN_USE).write_bytes(b"")
        if ended:
            (place / site_result.ENDED).touch()
        then = time.time() - ago
        os.utime(place / site_result.IN_USE, (then, then))

    def deliver(self, *command: str) -> Delivery:
        made = Delivery(self.folder, self.folder / "log" / "export.log", command)
        made.look()
        if made.process is not None:
            made.process.wait(30)
            made.look()
        return made


def test_a_run_that_has_ended_is_delivered_by_itself_and_once(tmp_path: Path) -> None:
    kit = Clock(tmp_path)
    kit.deliver("touch", str(tmp_path / "early"))  # no run
    kit.answer("aa", ended=False, ago=60)
    kit.deliver("touch", str(tmp_path / "early"))  # none that has ended
    kit.answer("aa", ended=True, ago=1)
    kit.deliver("touch", str(tmp_path / "early"))  # it may still be answering
    assert not (tmp_path / "early").exists()
    kit.answer("aa", ended=True, ago=60)
    kit.answer("bb", ended=False, ago=1)
    kit.deliver("touch", str(tmp_path / "early"))  # a round of another run is going
    assert (delivery.describe(tmp_path), (tmp_path / "early").exists()) == ("of run aa to be made", False)
    kit.answer("bb", ended=False, ago=50)
    kit.deliver("touch", str(tmp_path / "made"))
    assert (tmp_path / "made").exists()
    assert delivery.describe(tmp_path) == "of run aa"
    kit.deliver("touch", str(tmp_path / "again"))
    assert not (tmp_path / "again").exists()
    kit.answer("aa", ended=True, ago=30)  # the last aggregation came late
    kit.deliver("touch", str(tmp_path / "again"))
    assert (tmp_path / "again").exists()


def test_a_delivery_that_was_killed_is_begun_again_and_one_that_failed_says_why(tmp_path: Path) -> None:
    kit = Clock(tmp_path)
    kit.answer("aa", ended=True, ago=60)
    kit.deliver("sh", "-c", "kill -9 $$")
    assert delivery.pending(tmp_path) is not None
    kit.deliver("sh", "-c", "echo error: no rows; exit 2")
    assert delivery.pending(tmp_path) is None
    assert delivery.describe(tmp_path) == "not made of run aa: no rows"
    write_settings(tmp_path, SiteSettings(deliver=False))
    kit.answer("bb", ended=True, ago=60)
    kit.deliver("touch", str(tmp_path / "made"))
    assert not (tmp_path / "made").exists()
    assert delivery.describe(tmp_path) == "of run bb to be made: fedapa site export"
    write_settings(tmp_path, SiteSettings())
    running = Delivery(tmp_path, tmp_path / "log" / "export.log", ["sleep", "60"])
    running.look()
    running.stop()  # the site leaves
    assert running.process.poll() is not None
    assert delivery.pending(tmp_path) is not None
    assert delivery.export_command(tmp_path, "bb")[-5:] == ["site", "export", str(tmp_path), "--run", "bb"]
