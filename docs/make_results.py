"""Write docs/results.md from experiments/*.toml and experiments/results/*.json: python docs/make_results.py

`fedapa sweep` makes the runs and experiments/collect.py the files. No number on the page is typed by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapa.config.experiment import run_names, single
from fedapa.config.grid import load_scenarios
from fedapa.config.load import settings_of
from fedapa.config.schema import Config
from fedapa.methods.catalogue import make
from fedapa.report import paper
from fedapa.run import results

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parent / "experiments"
Rows = list[dict[str, Any]]
ABLATIONS = {
    "table3": "Table 3: what the parts of FedAPA contribute",
    "table4": "Table 4: the self-weight",
    "ablations": "Ours: sign, schedule, released code, self-weight as a share",
}

INTRO = """# Results

Made by `python docs/make_results.py` from `experiments/*.toml` and `experiments/results/*.json`. Every file under
`experiments/` begins with the command that runs it; another machine or engine changes the last digits.

{made}

How to read the tables. *before* is the accuracy of what a client received, *after* that of the same model after local
training, both in the last of 50 rounds, pooled over all test samples, in percent; ± is the standard deviation over
allocations and the brackets are the 95 % confidence interval of the mean (Student's t). A star marks the model that
the method's paper evaluates; *best* is that model's best round, which is what the released code of FedAPA reports
(chosen on the test data, so it flatters everybody), and *paper* the number that the FedAPA paper prints for it. *vs
Local* is the mean gain of a client over training alone on the same allocation, in points, with the p of a paired
Wilcoxon test over all clients and allocations, then how many clients gain / stay equal / lose; *worst tenth* the mean
accuracy of the worst-served tenth of the clients.
"""

WHY = """
## What was not reproduced, and what we know about it

- **FedAvg is lower than printed.** The paper leaves open how long, with whom and with which momentum it ran, and does
  not publish its allocations, which differ by several points. {fedavg}
- **FedAPA gains less over Local than the paper's numbers suggest.** The paper has no Local row. Its own ablation with
  the self-weight at 1, which keeps most of a client's own model, prints {alone:.2f}, close to our Local. The learned weights
  end nearly uniform: all models share a large common part, so a step moves all weights of a row together.
- **Simple things are strong.** Local training, FedAvg with fine-tuning and FedPer are missing from the paper's table
  and are level with or ahead of several methods in it, here as in other comparisons.
- **Before or after?** FedAvg's paper evaluates the shared model, which is what the low numbers of FedAvg are; the same
  model after one round of local training is among the best. A table that does not say which one it shows cannot be
  compared with another.
"""


def page() -> str:
    files = {path.stem: path for path in sorted(EXPERIMENTS.glob("*.toml"))}
    parts = [INTRO.format(made=_made()), *_table1(files["table1"])]
    for name, title in ABLATIONS.items():
        parts += _ablation(files[name], title)
    return "\n".join([*parts, *_table2(files["table2"]), _why(files).strip(), ""])


# ------------------------------------------------------------------------------------------------------------ reading


def _kept(experiment: Path) -> list[dict[str, Any]]:
    path = EXPERIMENTS / "results" / f"{experiment.stem}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else []
    return found


def _made() -> str:
    kept = [run for path in EXPERIMENTS.glob("*.toml") for run in _kept(path)]
    dates = sorted(run["environment"]["date"][:10] for run in kept)
    versions = {(run["environment"]["python"], run["environment"]["packages"]["torch"]) for run in kept}
    said = ", ".join(f"Python {python} and PyTorch {torch}" for python, torch in sorted(versions))
    return f"{len(kept)} runs, made from {dates[0]} to {dates[-1]} with {said}."


def _printed(config: Config, method: str) -> paper.Printed:
    base, settings = settings_of(config, method)
    one = single(config, method, config.seeds[0]).model_dump(mode="json", exclude_none=True)
    return paper.printed(one, repr(make(base, **settings)))


# ------------------------------------------------------------------------------------------------------------- tables


def _table1(experiment: Path) -> list[str]:
    scenarios = load_scenarios(str(experiment))
    rows = results.table(results.from_dicts(_kept(experiment)))
    whole = {name: [row for row in rows if row["scenario"] == name] for name in scenarios}
    found = {name: mine for name, mine in whole.items() if mine}
    lines = ["## Table 1: who wins", "", *_summary(scenarios, found), ""]
    for name, mine in found.items():
        lines += [f"### {_title(scenarios[name])}", "", *_accuracies(scenarios[name], mine), ""]
    return lines + _ranks(found) + _missing(scenarios, whole)


def _summary(scenarios: dict[str, Config], found: dict[str, Rows]) -> list[str]:
    """One line per column: the best, FedAPA's place, and whether joining paid."""
    lines = []
    for name, rows in found.items():
        order = sorted(rows, key=lambda row: -_value(row))
        own = next((row for row in rows if row["method"] == "fedapa"), None)
        best, most = order[0], max(row["seeds"] for row in rows)
        few = "" if best["seeds"] == most else f" (on {best['seeds']} of {most} allocations)"
        lead = f"- {_title(scenarios[name])}: best is **{best['method']}** with {_value(best):.2f}{few}"
        if own is not None:
            place = [row["method"] for row in order].index("fedapa") + 1
            lead += f"; FedAPA is number {place} of {len(order)} with {_value(own):.2f}, {_gain(own)} vs Local"
        lines.append(lead + ".")
    return ["In the last round, by the model that each method's paper evaluates:", "", *lines]


def _accuracies(config: Config, rows: Rows) -> list[str]:
    lines = _head("method", "allocations", "before", "after", "best", "paper", "vs Local", "worst tenth")
    for row in rows:
        printed = _printed(config, row["method"]).accuracy
        shown = "–" if printed is None else f"{printed:.2f}"
        both = _phase(row, "before"), _phase(row, "after")
        rest = f"{_best(row):.2f}", shown, _gain(row), f"{row['worst_tenth']:.1f}"
        lines.append(_line(row["method"], row["seeds"], *both, *rest))
    return lines


def _ranks(found: dict[str, Rows]) -> list[str]:
    ranks = results.ranks([row for rows in found.values() for row in rows])
    if ranks is None:
        return []
    order = sorted(ranks.mean_rank.items(), key=lambda pair: pair[1])
    said = ", ".join(f"{name} {rank:.1f}" for name, rank in order)
    chance = "" if ranks.p is None else f" Friedman's test: p {_p(ranks.p)}."
    return ["### Mean ranks", "", f"Over the {len(found)} columns above, 1 is best: {said}.{chance}", ""]


def _missing(scenarios: dict[str, Config], whole: dict[str, Rows]) -> list[str]:
    """What the file names and nobody has run yet."""
    lines = []
    for name, config in scenarios.items():
        done = sum(row["seeds"] for row in whole[name])
        if (all_runs := len(run_names(config))) > done:
            lines.append(f"- {_title(config)}: {done} of {all_runs} runs")
    if not lines:
        return []
    how = "The same command goes on with what is missing; `--only` chooses."
    return ["### Not run yet", "", f"{how} Columns and allocations without a run:", "", *lines, ""]


def _ablation(experiment: Path, title: str) -> list[str]:
    lines = [f"## {title}", ""]
    for name, config in load_scenarios(str(experiment)).items():
        rows = results.table(results.from_dicts(_kept(experiment)), "fedapa")
        rows = [row for row in rows if row["scenario"] == name]
        if not rows:
            return [*lines, "Not run yet.", ""]
        lines += [f"{_title(config)}; *vs FedAPA* as *vs Local* above.", ""]
        lines += _head("variant", "allocations", "before", "after", "best", "paper", "vs FedAPA")
        for row in sorted(rows, key=lambda row: config.methods.index(row["method"])):
            printed = _printed(config, row["method"]).accuracy
            shown = "–" if printed is None else f"{printed:.2f}"
            both = _phase(row, "before"), _phase(row, "after")
            lines.append(_line(row["method"], row["seeds"], *both, f"{_best(row):.2f}", shown, _gain(row)))
        lines.append("")
        failed = [method for method in config.methods if method not in {row["method"] for row in rows}]
        if failed:
            lines += [f"No finished run: {', '.join(failed)}.", ""]
    return lines


def _table2(experiment: Path) -> list[str]:
    (config,) = load_scenarios(str(experiment)).values()
    rows = results.table(results.from_dicts(_kept(experiment)))
    lines = ["## Table 2: time and bytes", ""]
    if not rows:
        return [*lines, "Not run yet.", ""]
    base = next(row["seconds"] for row in rows if row["method"] == "fedavg")
    whole = _printed(config, "fedavg").seconds_per_round
    assert whole is not None
    lines += [
        f"{_title(config)}, {config.run.rounds} rounds, one run at a time. Times are ratios to FedAvg "
        f"({base / config.run.rounds:.2f} s a round here, {whole:.0f} s in the paper, whose hardware is another).",
        "",
        *_head("method", "KiB per client and round", "paper", "time / FedAvg's", "paper"),
    ]
    for row in rows:
        printed = _printed(config, row["method"])
        kib = "–" if printed.kib is None else f"{printed.kib:.0f}"
        time = "–" if printed.seconds_per_round is None else f"{printed.seconds_per_round / whole:.2f}"
        lines.append(_line(row["method"], f"{row['kib']:.1f}", kib, f"{row['seconds'] / base:.2f}", time))
    return [*lines, ""]


def _why(files: dict[str, Path]) -> str:
    """The reasons, with the numbers of the experiments that looked for them."""
    alone = _printed(next(iter(load_scenarios(str(files["table4"])).values())), "mu-1").accuracy
    column = next(iter(load_scenarios(str(files["table1"]))))
    ours = {run["seed"]: run for run in _kept(files["table1"]) if (run["scenario"], run["label"]) == (column, "fedavg")}
    tried = {run["scenario"].replace("-", " "): run for run in _kept(files["fedavg-gap"])}
    said = ", ".join(f"{name} {run['before']['best']:.1f}" for name, run in tried.items())
    fedavg = f"One change at a time on allocation 0 (best round, {ours[0]['before']['best']:.1f} as configured): {said}."
    return WHY.format(alone=alone, fedavg=fedavg if tried else "What that changes was not tried yet.")


# -------------------------------------------------------------------------------------------------------------- cells


def _title(config: Config) -> str:
    data = config.data
    rule = f"Dirichlet {data.alpha:g}" if data.alpha is not None else f"{data.classes_per_client} classes per client"
    names = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fmnist": "Fashion-MNIST"}
    return f"{names.get(data.source, data.source)}, {rule}, {data.clients} clients"


def _value(row: dict[str, Any]) -> float:
    return float(row[f"{row['evaluated']}_last"])


def _best(row: dict[str, Any]) -> float:
    return float(row[f"{row['evaluated']}_best"])


def _phase(row: dict[str, Any], phase: str) -> str:
    star = "*" if row["evaluated"] == phase else ""
    sd, low, high = (row[f"{phase}_{key}"] for key in ("sd", "low", "high"))
    spread = "" if sd is None else f" ± {sd:.2f} [{low:.1f}, {high:.1f}]"
    return f"{row[f'{phase}_last']:.2f}{star}{spread}"


def _gain(row: dict[str, Any]) -> str:
    if row["gain"] is None:
        return "–"
    sure = "" if row["gain_p"] is None else f" (p {_p(row['gain_p'])})"
    return f"{row['gain_points']:+.2f}{sure} {'/'.join(map(str, row['gain']))}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _head(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('*', chr(92) + '*') for cell in cells)} |"


def main(arguments: Sequence[str]) -> None:
    (HERE / "results.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
