"""A site trains with its own loop where it allowed it: the same bits as in one process."""

import shutil
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
from fedapa.site.kit_export import read_kept

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


def test_code_in_files_is_the_sites_own_copy(tmp_path):
    """The coordinator's files are at the coordinator alone, and gone when the site makes its model."""
    there = tmp_path / "coordinator"
    there.mkdir()
    (there / "loop.py").write_text(Path(OWN.rpartition(":")[0]).read_text())
    net = "from torch import nn\n\n\ndef net(shape, classes):\n    head = nn.Linear(64, classes)\n"
    (there / "mine.py").write_text(f"{net}    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), head)\n")
    changed = (
        text("fedapa").replace(OWN, f"{there}/loop.py:train").replace('name = "mlp"', f'name = "{there}/mine.py:net"')
    )
    terms = terms_of(changed.replace('head = "head"', 'head = "3"'))
    kits = make_sites(tmp_path)
    for kit in kits:
        shutil.copytree(there, copy := tmp_path / f"code-of-{kit.name}")
        write_settings(kit, SiteSettings(models=[f"{copy}/loop.py:train", f"{copy}/mine.py:net"]))
    transport = grid(Direct(kits), terms)
    assert client_digests(over_grid(transport, terms), transport) == client_digests(in_process(terms))
    shutil.rmtree(there)
    for site in map(Site.open, kits):
        assert site.describe(terms.config, site.name).fault == ""
        kept = read_kept(site, None)
        assert kept.config.training.trainer == f"{tmp_path}/code-of-{site.name}/loop.py:train"
        assert kept.record["theta"].shape == (kept.agreed.task.P,)


def test_a_site_with_a_recipe_of_its_own_has_the_bits_of_the_simulation(tmp_path):
    terms = terms_of(config_text("fedapa") + "\n[training.by_client.birch]\nepochs = 3\noptimizer = 'adam'\n")
    transport = grid(Direct(make_sites(tmp_path)), terms)
    there, here = over_grid(transport, terms), in_process(terms)
    assert server_digest(there) == server_digest(here)
    assert client_digests(there, transport) == client_digests(here)
    assert server_digest(in_process(terms_of(config_text("fedapa")))) != server_digest(here)


@pytest.mark.parametrize("own", ["batch = 1", "lr = 50.0", "lr_phi = 50.0", "epochs = 100000"])
def test_a_recipe_of_a_sites_own_is_held_to_its_limits(own, tmp_path):
    """Whoever it names: names are the coordinator's."""
    site = Site.open(make_sites(tmp_path)[0])
    for name in ("amber", "0", "birch"):
        fault = site.describe(config_text("fedapa") + f"\n[training.by_client.{name}]\n{own}\n", "amber").fault
        assert "for this site, whose limit is" in fault


@pytest.mark.parametrize("models", [[], ["other.py:train"]])
def test_a_trainer_that_the_site_did_not_allow_is_not_imported(models, tmp_path):
    site = Site.open(sites(tmp_path, models)[0])
    asked = TrainRequest("amber", 0, 0, True, False, False, 0, "", 0)
    answer, up = site.visit(terms_of(text("fedapa")), asked, {"theta": torch.zeros(3)})
    assert f"the trainer {OWN[:80]} is not allowed at amber" in answer.fault
    assert up is None
    assert "is not allowed at amber" in site.describe(text("fedapa"), "amber").fault
