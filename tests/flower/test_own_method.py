"""A method in a user's file at real sites: allowed by each, run from its own copy, with the bits of the simulation."""

import shutil
from pathlib import Path

import pytest
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
)  # fmt: skip

from fedapa.config.own_code import label_of
from fedapa.federation import manifest
from fedapa.federation.site_agent import Site, read_config
from fedapa.federation.site_settings import SiteSettings, own_copy, write_settings
from fedapa.plugins import fingerprint
from fedapa.site.kit_export import read_kept

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"


@pytest.fixture
def coordinators(tmp_path):
    path = tmp_path / "coordinator" / "mine.py"
    path.parent.mkdir()
    shutil.copy(EXAMPLE, path)
    return path


def text_of(path, name="HalfWay"):
    """The config that a coordinator sends: its own path, and the fingerprint of its file."""
    label, code = label_of(f"{path}:{name}"), fingerprint(f"{path}:{name}")
    table = f'\n[method."{label}"]\nbase = "{path}:{name}"\ncode = "{code}"\nstep = 0.8\n'
    return config_text("fedavg").replace('"fedavg"', f'"{label}"') + table


def with_copies(tmp_path, change=lambda text: text):
    """Sites, each with its own copy of the file in its own place, which it allowed."""
    sites = make_sites(tmp_path)
    for kit in sites:
        copy = kit.parent / f"code-of-{kit.name}" / "mine.py"
        copy.parent.mkdir()
        copy.write_text(change(EXAMPLE.read_text()))
        write_settings(kit, SiteSettings(methods=[f"{copy}:HalfWay"]))
    return sites


@pytest.mark.parametrize("name", ["HalfWay", "HalfWay+ema"])
def test_the_same_bits_as_in_process(tmp_path, coordinators, name):
    terms, kits = terms_of(text_of(coordinators, name)), with_copies(tmp_path)
    transport = grid(Direct(kits), terms)
    there, here = over_grid(transport, terms), in_process(terms)
    assert server_digest(there) == server_digest(here)
    assert client_digests(there, transport) == client_digests(here)
    assert scores(there.logs) == scores(here.logs)
    assert [event for log in there.logs for event in log.events] == []
    coordinators.unlink()  # a site makes its model with its own copy, too
    kept = read_kept(Site.open(kits[0]), None)
    assert kept.record.keys() == here.records[0].state.keys()


def test_what_was_not_allowed_is_refused_and_not_imported(tmp_path, coordinators):
    kit = make_sites(tmp_path)[0]
    coordinators.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\n")
    fault = Site.open(kit).describe(text_of(coordinators), "amber").fault
    assert "mine.py:HalfWay is not allowed at amber" in fault
    assert not (tmp_path / "sprung").exists()


def test_a_copy_that_differs_is_refused_without_a_folder_of_the_site(tmp_path, coordinators):
    kit = with_copies(tmp_path, lambda text: text + "# more\n")[0]
    fault = Site.open(kit).describe(text_of(coordinators), "amber").fault
    assert "is not the file that the run began with" in fault
    assert "code-of-amber" not in fault


def test_an_installed_name_is_not_allowed_by_being_installed(tmp_path, monkeypatch):
    """A request that names an entry point instead of a file imports nothing either."""
    monkeypatch.setattr("fedapa.methods.catalogue.installed", lambda kind: {"sneaky": "os:system"})
    kit = make_sites(tmp_path)[0]
    text = config_text("fedavg").replace('"fedavg"', '"sneaky"')
    assert "the method os:system is not allowed at amber" in Site.open(kit).describe(text, "amber").fault


def test_wire_json_pins_the_code(tmp_path, coordinators):
    config = read_config(text_of(coordinators))
    wire = manifest.agreement("amber", config.methods[0], [], [], terms=manifest.pinned(config))
    manifest.check_terms(wire, config)
    assert wire["terms"]["method.code"] == fingerprint(f"{coordinators}:HalfWay")
    coordinators.write_text(coordinators.read_text() + "# another\n")
    with pytest.raises(manifest.Refused, match=r"method\.code"):
        manifest.check_terms(wire, config)


def test_wire_json_pins_a_training_loop_by_its_file_whatever_the_folder(tmp_path):
    for folder in ("coordinator", "site"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "loop.py").write_text("def train(module, data, training, generator): ...\n")
    configs = [
        read_config(config_text("fedapa").replace('trainer = ""', f'trainer = "{tmp_path}/{folder}/loop.py:train"'))
        for folder in ("coordinator", "site")
    ]
    wire = manifest.agreement("amber", "fedapa", [], [], terms=manifest.pinned(configs[0]))
    manifest.check_terms(wire, configs[1])
    (tmp_path / "site" / "loop.py").write_text("def train(*words): ...\n")
    with pytest.raises(manifest.Refused, match=r"training\.trainer"):
        manifest.check_terms(wire, configs[1])


def test_whose_copy_is_meant():
    allowed = ["/site/a/mine.py:HalfWay", "/site/b/other.py:HalfWay", "pkg.mod:M"]
    assert own_copy("/coordinator/mine.py:HalfWay", allowed) == "/site/a/mine.py:HalfWay"
    assert own_copy("pkg.mod:M", allowed) == "pkg.mod:M"
    for wrong in ("/c/mine.py:Whole", "/c/third.py:HalfWay", "pkg.mod:N", "other.mod:M"):
        assert own_copy(wrong, allowed) is None
    assert own_copy("/c/mine.py:M", ["/a/mine.py:M", "/b/mine.py:M"]) is None  # either could be meant
