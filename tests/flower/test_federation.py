"""Real processes over TLS on loopback: the same bits as in one process, whoever is killed when.

They take minutes, and run in `make test-federation`.
"""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from federation import REAL, Federation, assert_same, events, fedapa, kill, trained, wait_for_round
from fleet import NAMES, in_process

from fedapa.core.tree import digest
from fedapa.federation.enrolment import read_agreement
from fedapa.federation.releases import COUNTED
from fedapa.federation.site_settings import SiteSettings, write_settings
from fedapa.store import checkpoint

METHOD = "fedapa+noised"
EXAMPLES = Path(__file__).parents[2] / "examples"
METHOD_FILE, TRAINER = EXAMPLES / "my_method.py", f"{EXAMPLES / 'own_trainer.py'}:train"
pytestmark = REAL


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("federation"))
    shutil.copy(METHOD_FILE, made.folder / "mine.py")
    for name in NAMES:  # every site has a copy of its own, and allows it
        copy = made.folder / f"code-of-{name}" / "mine.py"
        copy.parent.mkdir()
        shutil.copy(METHOD_FILE, copy)
        write_settings(made.folder / "kits" / name, SiteSettings(methods=[f"{copy}:HalfWay"], models=[TRAINER]))
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_a_method_in_a_file_has_the_bits_of_a_run_in_one_process(federation):
    """By the command line alone: the coordinator's file, a copy of it at every site, TLS."""
    words = ("--method", "mine.py:HalfWay", "--set", "run.rounds=3")
    assert federation.run("over", *words).wait(900) == 0
    run = federation.folder / "over" / "halfway-seed0"
    assert_same(federation, run)  # every site's own state, too
    fedapa("run", "fed.toml", *words, "--out", "one", cwd=federation.folder)
    there, here = (checkpoint.newest(path / "checkpoints") for path in (run, federation.folder / "one" / run.name))
    assert digest(there.state.server) == digest(here.state.server)
    assert events(run) == []


def test_so_has_a_trainer_in_a_file(federation):
    assert federation.run("own", "--set", f"training.trainer={TRAINER}", "--set", "run.rounds=2").wait(900) == 0
    run = federation.folder / "own" / "fedapa-seed0"
    assert_same(federation, run)
    assert events(run) == []


def test_killed_one_after_another_nothing_is_lost_and_nothing_counted_twice(federation):
    """kill -9 of the SuperLink, of one site's SuperNode and another one's worker, and of the coordinator, each in the
    middle of a round."""
    run = federation.folder / "storm" / "fedapa-seed0"
    process = federation.run("storm", "--set", "run.rounds=5")
    wait_for_round(run, 1)
    time.sleep(2)
    kill(federation.superlink())
    wait_for_round(run, 2)
    time.sleep(1)
    kill(federation.worker("cedar"))
    time.sleep(1)
    kill(federation.node("birch"))
    wait_for_round(run, 3)
    time.sleep(2)
    kill(process.pid)
    process.wait()
    fedapa("coordinator", "resume", "storm", cwd=federation.folder)
    assert trained(run) == [4] * 5
    assert_same(federation, run)


def test_a_curious_coordinator_of_noised_uploads_learns_nothing_about_the_noise(federation):
    """Over the real SuperLink, with a site's worker and the coordinator killed on the way.

    The coordinator plays the first round itself, by the same code, seed and even rows, with the noise and without.
    """
    words = ("--method", METHOD, "--set", f"method.{METHOD}.noise=0.05", "--set", "run.rounds=3")
    run = federation.folder / "noised" / f"{METHOD}-seed0"
    process = federation.run("noised", *words)
    wait_for_round(run, 1)
    kill(federation.worker("amber"))
    wait_for_round(run, 2)
    kill(process.pid)
    process.wait()
    fedapa("coordinator", "resume", "noised", cwd=federation.folder)
    assert trained(run) == [4] * 3
    terms = read_agreement(run).terms
    silent = replace(terms, config=terms.config.replace("noise = 0.05", "noise = 0.0"))
    assert silent.config != terms.config
    last = checkpoint.newest(run / "checkpoints").state.server["theta"]
    guess, clean = (first_uploads(each) for each in (terms, silent))
    for i, name in enumerate(terms.names):
        place = federation.folder / "kits" / name / "states" / terms.run
        assert len(set(json.loads((place / COUNTED).read_text())["requests"])) == 3
        assert len(json.loads((place / COUNTED).read_text())["requests"]) == 3  # nothing was noised twice
        (first,), (third,) = (list(place.glob(f"upload-{t:06d}-*")) for t in (1, 3))
        assert torch.equal(checkpoint.read_tree(third)["up/theta"], last[i])  # what was kept is what was sent
        noise = (checkpoint.read_tree(first)["up/theta"] - clean[i]).numpy()
        assert noise.std() == pytest.approx(0.05, rel=0.1)
        predicted = (guess[i] - clean[i]).numpy()
        assert predicted.std() == pytest.approx(0.05, rel=0.1)
        assert abs(np.corrcoef(noise, predicted)[0, 1]) < 5 / len(noise) ** 0.5


def first_uploads(terms):
    """theta [sites, P] that the server would have after the first round, if sites drew as a simulation does."""
    found = in_process(replace(terms, config=terms.config.replace("rounds = 3", "rounds = 1")))
    return found.state.server["theta"]
