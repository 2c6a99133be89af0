"""Hospitals with files of their own: the same bits as `silo run`, and nothing leaves that wire.json does not list."""

import json
from pathlib import Path

import pytest
import tomli_w
from federation import Federation, real_processes
from fleet import Direct

from command import Call
from fedapa.config import presets
from fedapa.config.experiment import lay_out, read_config
from fedapa.config.load import load
from fedapa.core.tree import digest
from fedapa.data.site_description import Sites
from fedapa.data.sites import described
from fedapa.data.sources import is_present
from fedapa.errors import RunError
from fedapa.federation.kit import Kit, write_kit
from fedapa.federation.registry import Enrolled
from fedapa.federation.remote_transport import _from_record
from fedapa.federation.run_federation import play_over
from fedapa.federation.site_settings import SiteSettings, write_settings
from fedapa.federation.site_store import Store
from fedapa.store import checkpoint
from hospitals import write_hospital, write_hospitals

ENGINE = ("--set", "run.engine=torch")


def own_config(folder: Path, name: str, schema: Path) -> Path:
    """What one hospital writes: its file, and the schema that all agreed on."""
    place = folder / name
    place.mkdir()
    lines = ["[sites]", f'files = ["{folder / name}.csv"]', 'label = "outcome"', 'drop = ["patient"]']
    sites = "\n".join([*lines, f'schema_file = "{schema}"', ""])
    text = (folder / "silo.toml").read_text()
    before, after = text.partition("[sites]")[0], text.partition("[model]")[2]
    (place / "site.toml").write_text(before + sites + "\n[model]" + after)
    return place / "site.toml"


def simulated(fedapa: Call, folder: Path) -> Path:
    answer = fedapa("silo", "run", folder / "silo.toml", "--out", "silo", "--method", "fedapa", "--seeds", 1, *ENGINE)
    assert answer.code == 0, answer.err
    return folder / "silo"


def kits(folder: Path, names: list[str], schema: Path) -> list[Path]:
    made = []
    for k, name in enumerate(names):
        kit = folder / "kits" / name
        kit.mkdir(parents=True)
        write_kit(kit, Kit(name, "nowhere:1", k))
        write_settings(kit, SiteSettings(data=str(own_config(folder, name, schema))))
        made.append(kit)
    return made


def played(folder: Path, names: list[str], method: str = "fedapa") -> Path:
    """The coordinator's run over the real ClientApp; its config says nothing about anybody's data."""
    rest = (folder / "silo.toml").read_text().partition("[model]")[2]
    (folder / "fed.toml").write_text(f'methods = ["{method}"]\n[model]{rest}')
    (run,) = lay_out(load(str(folder / "fed.toml"), ["run.engine=torch"]), folder / "fed")
    sites = [Enrolled(name, "", k, 100 + k) for k, name in enumerate(names)]
    session = Direct([folder / "kits" / name for name in names])
    play_over(session, lambda: sites, read_config(run), run)
    return run


def assert_same_bits(silo: Path, run: Path, folder: Path, names: list[str]) -> None:
    here, there = (checkpoint.newest(path / "checkpoints") for path in (silo / "fedapa-seed0", run))
    assert digest(here.state.server) == digest(there.state.server)
    agreed = json.loads((run / "federation.json").read_text())["terms"]
    for name, mine, record in zip(names, here.records, there.records, strict=True):
        standing = _from_record(record)
        kept = Store(folder / "kits" / name / "states").load(agreed["run"], standing.accepted, standing.digest)
        assert digest(checkpoint.from_record(kept)) == digest(checkpoint.from_record(mine))


def test_hospitals_have_the_bits_of_silo_run(tmp_path: Path, fedapa: Call) -> None:
    write_hospitals(tmp_path)
    silo = simulated(fedapa, tmp_path)
    kits(tmp_path, ["north", "south"], silo / "schema.json")
    assert_same_bits(silo, played(tmp_path, ["north", "south"]), tmp_path, ["north", "south"])


def test_wire_json_is_kept_to(tmp_path: Path, fedapa: Call) -> None:
    write_hospitals(tmp_path)
    silo = simulated(fedapa, tmp_path)
    kits(tmp_path, ["north", "south"], silo / "schema.json")
    for name in ("north", "south"):
        made = fedapa("site", "dry-run", tmp_path / name / "site.toml", "--method", "fedapa")
        assert made.code == 0, made.err
        (tmp_path / "wire.json").rename(tmp_path / name / "wire.json")
    assert_same_bits(silo, played(tmp_path, ["north", "south"]), tmp_path, ["north", "south"])
    with pytest.raises(RunError, match="runs fedavg, this site agreed to fedapa"):
        played(tmp_path, ["north", "south"], "fedavg")


def federate(folder: Path, configs: dict[str, Path], rounds: int, rest: str) -> Path:
    """The same over TLS with real SuperNodes, each with its own config."""
    made = Federation(folder, names=list(configs))
    federation = "[federation]\nmin_sites = 4\nrejoin = 300.0\n"
    (folder / "fed.toml").write_text(f'methods = ["fedapa"]\n[model]{rest}{federation}')
    try:
        made.spawn("coordinator", "start")
        for name, config in configs.items():
            made.spawn("site", "join", f"kits/{name}", "--data", str(config))
        made.wait_online(4)
        assert made.run("fed", *ENGINE, "--set", f"run.rounds={rounds}").wait(1500) == 0
    finally:
        made.close()
    return folder / "fed" / "fedapa-seed0"


@real_processes
def test_four_hospitals_over_tls_have_the_bits_of_silo_run(tmp_path: Path, fedapa: Call) -> None:
    names = ["amber", "birch", "cedar", "dune"]
    write_hospitals(tmp_path)
    for k, name in enumerate(names):
        write_hospital(tmp_path / f"{name}.csv", 60 + 8 * k, k)
    text = (tmp_path / "silo.toml").read_text()
    listed = ", ".join(f'"{name}.csv"' for name in names)
    (tmp_path / "silo.toml").write_text(text.replace('"north.csv", "south.csv"', listed))
    silo = simulated(fedapa, tmp_path)
    configs = {name: own_config(tmp_path, name, silo / "schema.json") for name in names}
    run = federate(tmp_path, configs, 3, text.partition("[model]")[2])
    assert_same_bits(silo, run, tmp_path, names)


@real_processes
@pytest.mark.skipif(not is_present("heart-disease"), reason="no heart-disease files in the data folder")
def test_the_four_hospitals_of_the_heart_disease_files_too(tmp_path: Path, fedapa: Call) -> None:
    words = ("--method", "fedapa", "--seeds", 1, "--set", "run.rounds=5", *ENGINE)
    assert fedapa("silo", "run", "heart-disease", "--out", "silo", *words).code == 0
    told = described(Sites(source="heart-disease"))
    configs = {}
    for name, file in told.files.items():
        content = {
            "files": {name: file},
            "header": list(told.header),
            "label": told.label,
            "categories": list(told.categories),
            "classes": {k: list(v) for k, v in told.classes.items()},
            "missing_values": {k: list(v) for k, v in told.missing_values.items()},
            "schema_file": str(tmp_path / "silo" / "schema.json"),
        }
        configs[name] = tmp_path / f"{name}.toml"
        configs[name].write_text(tomli_w.dumps({"sites": content}))
    rest = presets.text("heart-disease").partition("[model]")[2]
    run = federate(tmp_path, configs, 5, rest)
    assert_same_bits(tmp_path / "silo", run, tmp_path, list(configs))
