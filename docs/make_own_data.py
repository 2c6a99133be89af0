"""Write docs/own-data-results.md from experiments/results/own-data.json: python docs/make_own_data.py

`python docs/make_own_data.py NAME=FOLDER ...` first stores the numbers of `fedapa silo run site.toml --out FOLDER`.
No number on the page is typed by hand.
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
INTRO = """# Own data: who gains, who does not

Made by `python docs/make_own_data.py` from `experiments/results/own-data.json`. `examples/own_data.py` makes the files,
`fedapa data inspect` proposes the settings, `fedapa silo run site.toml --method local,fedavg,fedper,fedapa,fedapa-exact
--seeds N` gives the numbers. Runs are small: few splits, one length of training.

Scores are means over the sites. Gains are over *alone*: at every site the better of the tuned network and the plain
model of scikit-learn, chosen on held-out rows; above 0 the method is better. Intervals are 95 % intervals over the
splits, widened for shared rows. A time split has the same test rows in every split: its means have none, and its sites
are counted by bootstrap intervals of their test rows. Counts of sites are not corrected for many sites: of 65
without any effect, a few show one.
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
    return "\n".join([INTRO, *(_section(name, stored[name]) for name in TITLES if name in stored)])


def _section(name: str, found: Mapping[str, Any]) -> str:
    score = found["primary"]
    lines = [f"## {TITLES[name]}", "", f"{found['rounds']} rounds, {_count(found['splits'], 'split')}.", ""]
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
    gap = f"{joined[best] - plain:+.3g}"
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
        return f"{value['mean']:{sign}.4g}"
    return f"{value['mean']:{sign}.3f} ({value['low']:{sign}.3f} to {value['high']:{sign}.3f})"


def _named(score: str) -> str:
    return score.upper() if score == "auc" else score


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def main(words: Sequence[str]) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    for word in words:
        name, _, folder = word.partition("=")
        stored[name] = collected(Path(folder))
    STORED.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(stored), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
