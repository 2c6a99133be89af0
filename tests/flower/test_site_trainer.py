"""A site trains with its own loop where it allowed it: the same bits as in one process."""

from pathlib import Path

import pytest
import torch
from fleet import (
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
