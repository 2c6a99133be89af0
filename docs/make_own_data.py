"""Write docs/own-data-results.md from experiments/results/own-data.json: python docs/make_own_data.py

`python docs/make_own_data.py NAME=FOLDER ...` first stores the numbers of `fedapa silo run site.toml --out FOLDER`, and
with `federation=FOLDER` those of `python experiments/own_data_federation.py FOLDER`. No number on the page is typed by
hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STORED = HERE.parent / "experiments" / "results" / "own-data.json"
PAGE = HERE / "own-data-results.md"
TITLES = {
    "schools": "Schools: numbers, 65 sites",
    "caravan": "Caravan: a rare class, 9 sites",
    "housing": "Texas housing: time, 46 sites",
}
NO_GAIN = ("alone",)
FEDERATION = "federation"
INTRO = """# Own data: who gains, who does not

Three real data sets as files of sites, from `fedapa data inspect` to a verdict: how many sites gain by joining,
against the best that each can do alone.

Made by `python docs/make_own_data.py` from `experiments/results/own-data.json`. `examples/own_data.py` makes the files,
`fedapa data inspect` proposes the settings, `fedapa silo run site.toml --method local,fedavg,fedper,fedapa,fedapa-exact
--seeds N` gives the numbers. Runs are small: few splits, one length of training.

Scores are means over the sites. Gains are over *alone*: at every site the better of the tuned network and the plain
model of scikit-learn, chosen on held-out rows; above 0 the method is better. Intervals are 95 % intervals over the
splits, widened for shared rows. A time split has the same test rows in every split: its means have none, and its sites
are counted by bootstrap intervals of their test rows. Counts of sites are not corrected for many sites: of 65
without any effect, a few show one.
"""

OVER_FLOWER = """## Over real Flower federations

`python experiments/own_data_federation.py FOLDER` does all of it. The four sites with the most rows of every set
inspect their own files and propose a schema. They accept the config that the coordinator makes of the four proposals
(the columns that all have), and join over TLS, each with processes of its own. All methods are run. Everybody leaves,
the coordinator stops, and every site's models are made from its kit alone.

The first table of a set is as above: the same config in simulation, on three splits. The second table is of the
federation. Its last column is the largest difference to the simulation of split 0, of two things: every score of a site
and a round that the coordinator was told, and the score of every site's model, by `predict` on its held-out file.
"""


def collected(folder: Path) -> dict[str, Any]:
    """What the page needs of a silo run."""
    silo = json.loads((folder / "silo.json").read_text(encoding="utf-8"))
    run = next(path for path in sorted(folder.iterdir()) if path.name.startswith("fedapa-seed"))
    seeds = {row["seed"] for row in silo["runs"]}
    return {
        "primary": silo["primary"],
        "splits": len(seeds),
        "rounds": _rounds(run),
        "overall": silo["overall"],
        "notes": [note for note in silo["notes"] if " beside " not in note],
    }


def _rounds(run: Path) -> int:
    from fedapa.config.experiment import read_config

    return read_config(run).run.rounds


def page(stored: Mapping[str, Any]) -> str:
    parts = [INTRO, *(_section(TITLES[name], stored[name]) for name in TITLES if name in stored)]
    if federation := stored.get(FEDERATION):
        parts += [OVER_FLOWER, *(_over_flower(name, federation[name]) for name in TITLES if name in federation)]
    return "\n".join(parts)


def _over_flower(name: str, found: Mapping[str, Any]) -> str:
    """The simulation's table of the same four sites, and how far the federation and the models are from it."""
    text = _section(f"{TITLES[name].partition(':')[0]} at four sites", found, "###")
    score = _named(found["primary"])
    lines = [text, f"Over Flower, split 0, {found['seconds'] / 60:.0f} minutes for all methods on a busy machine:", ""]
    lines += [f"| | {score} of the models at {', '.join(found['sites'])} | largest difference |", "|---|---|---|"]
    for row in found["methods"]:
        shown = "; ".join(_number(row["delivered"][site]) for site in found["sites"])
        far = max(row["difference"], row["delivered difference"])
        lines.append(f"| {row['method']} | {shown} | {far:.0e} |" if far else f"| {row['method']} | {shown} | 0 |")
    count = sum(row["numbers"] for row in found["methods"])
    told = f"{count} scores were told by the sites during the runs."
    return "\n".join([*lines, "", told, ""])


def _section(title: str, found: Mapping[str, Any], level: str = "##") -> str:
    score = found["primary"]
    lines = [f"{level} {title}", "", f"{found['rounds']} rounds, {_count(found['splits'], 'split')}.", ""]
    lines += [f"| | {_named(score)} | gain over alone | sites: gain / lose / cannot be told |", "|---|---|---|---|"]
    for row in found["overall"]:
        is_rival = row["method"] in NO_GAIN
        gain = "" if is_rival else _shown(row[f"{score} gain"], "+")
        sites = "" if is_rival else f"{row['gain']} / {row['lose']} / {row['unclear']}"
        lines.append(f"| {row['method']} | {_shown(row[score])} | {gain} | {sites} |")
    return "\n".join([*lines, "", *_remarks(found["overall"], score), *(f"- {note}." for note in found["notes"]), ""])


def _remarks(rows: Sequence[Mapping[str, Any]], score: str) -> list[str]:
    """A choice on few held-out rows can be worse than the plain model everywhere: gains over it then flatter."""
    gains = {row["method"]: row[f"{score} gain"]["mean"] for row in rows if row["method"] not in NO_GAIN}
    plain = gains.pop("plain model")
    joined = {name: gain for name, gain in gains.items() if not name.startswith("local")}
    best = max(joined, key=lambda name: joined[name])
    gap = _number(joined[best] - plain, "+") if abs(joined[best] - plain) >= 1000 else f"{joined[best] - plain:+.3g}"
    said = (
        f"- Best joined method by the mean: {best}, {gap} beside the plain model at every site (difference of means)."
    )
    if plain > 0:
        said += " The plain model everywhere is better than the choice on held-out rows, so gains over *alone* flatter."
    return [said]


def _shown(value: Mapping[str, float | None] | None, sign: str = "") -> str:
    if value is None:
        return "–"
    if value["low"] is None:
        return _number(value["mean"], sign)
    return f"{value['mean']:{sign}.3f} ({value['low']:{sign}.3f} to {value['high']:{sign}.3f})"


def _number(value: float, sign: str = "") -> str:
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign}.4g}"


def _named(score: str) -> str:
    return score.upper() if score == "auc" else score


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def main(words: Sequence[str]) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    for word in words:
        name, _, folder = word.partition("=")
        if name == FEDERATION:
            paths = {one: Path(folder) / f"{one}.json" for one in TITLES}
            found = {one: json.loads(path.read_text("utf-8")) for one, path in paths.items() if path.is_file()}
            stored[name] = {**stored.get(name, {}), **found}  # a set at a time
        else:
            stored[name] = collected(Path(folder))
    STORED.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(stored), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
