"""A site trains with its own loop where it allowed it: the same bits as in one process."""

import os
from pathlib import Path

import pytest
import torch
from federation import Federation, assert_same, events
from fleet import (
    NAMES,
    Direct,
    client_digests,
    config_text,
    grid,
    in_process,
    make_sites,
    over_grid,
    scores,
    server_digest,
    terms_of,
)

from fedapa.federation.messages import TrainRequest
from fedapa.federation.site_agent import Site
from fedapa.federation.site_settings import SiteSettings, write_settings

OWN = f"{Path(__file__).parents[2] / 'examples' / 'own_trainer.py'}:train"


def text(method: str) -> str:
    return config_text(method).replace('trainer = ""', f'trainer = "{OWN}"')


def sites(folder: Path, models: list[str]) -> list[Path]:
    found = make_sites(folder)
    for kit in found:
        write_settings(kit, SiteSettings(models=models))
    return found


@pytest.mark.parametrize("method", ["fedapa", "fedrep"])
def test_same_bits_as_in_process(method, tmp_path):
    terms = terms_of(text(method))
    transport = grid(Direct(sites(tmp_path, [OWN])), terms)
    there, here = over_grid(transport, terms), in_process(terms)
    assert server_digest(there) == server_digest(here)
    assert client_digests(there, transport) == client_digests(here)
    assert scores(there.logs) == scores(here.logs)
    plain = in_process(terms_of(config_text(method)))
    assert server_digest(plain) != server_digest(here)  # it was the own loop that trained


@pytest.mark.parametrize("models", [[], ["other.py:train"]])
def test_a_trainer_that_the_site_did_not_allow_is_not_imported(models, tmp_path):
    site = Site.open(sites(tmp_path, models)[0])
    asked = TrainRequest("amber", 0, 0, True, False, False, 0, "", 0)
    answer, up = site.visit(terms_of(text("fedapa")), asked, {"theta": torch.zeros(3)})
    assert f"the trainer {OWN[:80]} is not allowed at amber" in answer.fault
    assert up is None
    assert "is not allowed at amber" in site.describe(text("fedapa"), "amber").fault


@pytest.mark.skipif(os.environ.get("FEDAPA_FEDERATION") != "1", reason="takes minutes: make test-federation")
def test_between_real_processes(tmp_path):
    federation = Federation(tmp_path)
    try:
        for name in NAMES:
            write_settings(tmp_path / "kits" / name, SiteSettings(models=[OWN]))
        federation.start()
        process = federation.run("own", "--set", f"training.trainer={OWN}", "--set", "run.rounds=2")
        assert process.wait(900) == 0
        run = tmp_path / "own" / "fedapa-seed0"
        assert_same(federation, run)
        assert events(run) == []
    finally:
        federation.close()
        for process in federation.started:
            process.wait(60)  # one that had to be killed is still to be reaped
