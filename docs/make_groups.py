"""Write docs/groups.md, docs/groups.svg and the table of docs/beyond.md: python docs/make_groups.py

`fedapa sweep experiments/groups.toml` (and groups-rules.toml, schedule.toml, malicious.toml) makes the runs,
experiments/collect.py the files. No number on the page is typed by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedapa.analysis import comparison, result_sets, standings, statistics
from fedapa.analysis.method_rows import MethodRow
from fedapa.analysis.run_results import RunResult
from fedapa.analysis.statistics import FEWEST
from fedapa.config.grid import load_scenarios

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parent / "experiments"
BEGIN, END = "<!-- table: python docs/make_groups.py -->", "<!-- end of table -->"
OURS, NONE = "fedapa-exact", "–"
KNOWING = ("oracle", "ifca-true", "ifca-true-e")  # they are told the groups, or how many there are

BEYOND = {"cifar10-pathological-20": "2 classes per client", "cifar10-dirichlet-20": "Dirichlet 0.1"}

RIVALS = """CIFAR-10, 20 clients, 50 rounds, {most} allocations; accuracy in the last round, of the model that
each method's paper evaluates, and of the same method with a running mean. *Ahead*: points by which FedAPA-exact is
ahead, paired by allocation, with the 95 % interval; *n. d.*: not distinguishable at 5 %, by Holm over the column."""

FASHION = """Fashion-MNIST, {most} allocations with the 95 % interval, made under an older numerics version;
*exact-steadier* is with `+ema`."""

INTRO = """# Groups: who finds them, who uses them, who is misled

Which methods find hidden groups of clients, what that is worth in accuracy, and whom a malicious client misleads.

Made by `python docs/make_groups.py` from `experiments/groups.toml`, `groups-rules.toml`, `schedule.toml` and
`malicious.toml` and their results. Small runs: CIFAR-10, LeNet-5, {train} train samples a client, {rounds} rounds,
batch {batch}. Accuracies are far below those of [results.md](results.md) and differences larger. {made}

Structures of 20 clients: *planted*, five groups of four with two classes each; *uneven*, groups of 7, 5, 3, 3 and 2;
*overlapping*, groups in a ring that share a class with their neighbours; *nested*, groups two by two with one class in
common; *rotated* and *permuted*, four groups with all classes, whose images are turned or whose classes have other
names; *outlier*, one client with classes of its own; *dirichlet* (0.1) and *random* (two random classes each), no
groups.

*oracle* knows the groups and mixes evenly inside them, *even* mixes all evenly, both with private heads; *ifca-true*
knows how many groups there are. *-e*: heads are private, as in FedAPA. pFedGraph runs without its local pull, CFL
splits from round 6 on."""

ACCURACY = """## Accuracy

Last round, the model that each method's paper evaluates, pooled over all test samples, mean over allocations (their
number in brackets where it is not {most}) with the 95 % interval from three allocations on."""

FOUND = """## Groups found

Adjusted Rand index with the planted groups in the last round: 1 the same, 0 chance. By a method's clusters, or by its
weights: two clients are joined if each gives the other more than half of an even share of what it gives to others.

![adjusted Rand index over the rounds](groups.svg)"""

GOAL = """## The goal, structure by structure

FedAPA-exact's default should be within chance of the oracle (of even mixing, where there are no groups), not below
Local, and not below any method that is not told the groups, by more than chance. Points are paired by allocation;
fewer than three allocations cannot tell."""

RULES = """## Candidates for the default rule

Allocations {seeds}, which no other table uses: accuracy on a fifth of every client's train set that nobody trained on,
of the model as it arrives, mean of the last evaluated rounds and over allocations. Test data are not looked at."""

SCHEDULE = """## A running mean, or a rate that falls?

`experiments/schedule.toml`, {most} allocations: the same methods at a constant rate and at one that falls to zero over
the rounds as a cosine, each as it is and with `+ema`. The last column is the falling rate alone against the running
mean alone, in points, paired by allocation, with its 95 % interval."""

MALICIOUS = """## Malicious clients

The structure *planted*, with 2 of 20 clients malicious. *none* is the mean accuracy of all clients; the other columns
show how much the attack changes the mean of the honest ones, in points, mean over allocations."""


def page() -> str:
    scenarios, runs = load_scenarios(str(EXPERIMENTS / "groups.toml")), _runs("groups")
    parts = [_intro(scenarios, runs)]
    if runs:
        parts += [_accuracy(scenarios, runs), _found(scenarios, runs), _goal(scenarios, runs)]
    parts += [_rules(), _schedule(), _malicious()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _runs(name: str) -> list[RunResult]:
    path = EXPERIMENTS / "results" / f"{name}.json"
    return [run for run in result_sets.load(path) if run.status == "finished"] if path.is_file() else []


def _intro(scenarios: dict[str, Any], runs: Sequence[RunResult]) -> str:
    config = next(iter(scenarios.values()))
    wanted = sum(len(one.methods) * len(one.seeds) for one in scenarios.values())
    train = round(50_000 * config.data.train_share / config.data.clients)
    made = f"{len(runs)} of {wanted} runs are made so far; {NONE} marks what is not."
    return INTRO.format(train=train, rounds=config.run.rounds, batch=config.training.batch, made=made)


def _table(scenarios: Sequence[str], methods: Sequence[str], cells: dict[tuple[str, str], str]) -> list[str]:
    lines = [_line("method", *scenarios), "|" + "---|" * (len(scenarios) + 1)]
    shown = [method for method in methods if any((name, method) in cells for name in scenarios)]
    return lines + [_line(method, *(cells.get((name, method), NONE) for name in scenarios)) for method in shown]


def _line(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _columns(scenarios: dict[str, Any], runs: Sequence[RunResult]) -> list[str]:
    return [name for name in scenarios if any(run.scenario == name for run in runs)]


def _accuracy(scenarios: dict[str, Any], runs: Sequence[RunResult]) -> str:
    rows = {(row.scenario, row.method): row for row in comparison.table(runs)}
    most = max(row.allocations for row in rows.values())
    cells = {key: _value(row, most) for key, row in rows.items()}
    names = _columns(scenarios, runs)
    said = f"{most} allocation{'s' if most > 1 else ''}"
    return "\n".join([ACCURACY.format(most=said), "", *_table(names, scenarios[names[0]].methods, cells)])


def _value(row: MethodRow, most: int) -> str:
    few = "" if row.allocations == most else f" ({row.allocations})"
    spread = "" if row.headline.low is None else f" [{row.headline.low:.1f}, {row.headline.high:.1f}]"
    return f"{row.headline.last:.2f}{spread}{few}"


def _found(scenarios: dict[str, Any], runs: Sequence[RunResult]) -> str:
    rows = [row for row in comparison.table(runs) if row.groups_found is not None]
    cells = {(row.scenario, row.method): f"{row.groups_found:.2f}" for row in rows}
    names = [name for name in _columns(scenarios, runs) if any(key[0] == name for key in cells)]
    return "\n".join([FOUND, "", *_table(names, scenarios[names[0]].methods, cells)])


def _goal(scenarios: dict[str, Any], runs: Sequence[RunResult]) -> str:
    lines = [GOAL, ""]
    for name in _columns(scenarios, runs):
        mine = [run for run in runs if run.scenario == name]
        if any(run.label == OURS for run in mine):
            lines.append(f"- **{name}**: {_verdict(mine)}")
    return "\n".join(lines)


def _verdict(runs: Sequence[RunResult]) -> str:
    value = {run.label: [one.headline.last for one in runs if one.label == run.label] for run in runs}
    rivals = [name for name in value if not name.startswith(("exact-", OURS, "even")) and name not in KNOWING]
    best = max((name for name in rivals if name != "local"), key=lambda name: np.mean(value[name]), default=None)
    against = [name for name in ("oracle", "local", best) if name in value]
    gaps = {name: _ahead(runs, str(name)) for name in against}
    said = ", ".join(f"{points:+.2f} vs {name}{sure}" for name, (points, sure, _) in gaps.items())
    verdicts = [verdict for _, _, verdict in gaps.values()]
    whole = "not met" if "behind" in verdicts else "cannot be told yet" if "few" in verdicts else "met"
    return f"{said}: {whole}."


def _ahead(runs: Sequence[RunResult], rival: str) -> tuple[float, str, str]:
    """Points ahead of a rival, pooled accuracies paired by allocation, its interval, and what that says."""
    gaps = _paired(runs, OURS, rival)
    if not gaps:
        return float("nan"), " (never on one allocation)", "few"
    spread = statistics.interval(gaps, (-100.0, 100.0))
    if len(gaps) < FEWEST or spread.low is None or spread.high is None:
        return float(np.mean(gaps)), f" ({len(gaps)} allocation{'s' if len(gaps) > 1 else ''})", "few"
    return spread.mean, f" [{spread.low:+.2f}, {spread.high:+.2f}]", "behind" if spread.high < 0 else "within"


def _paired(runs: Sequence[RunResult], own: str, rival: str) -> list[float]:
    """Points by which one label is ahead of another, on every allocation that both were run on."""
    mine, theirs = ({run.partition: run.headline.last for run in runs if run.label == name} for name in (own, rival))
    return [mine[key] - theirs[key] for key in mine if key in theirs]


def _rules() -> str:
    scenarios, runs = load_scenarios(str(EXPERIMENTS / "groups-rules.toml")), _runs("groups-rules")
    if not runs:
        return ""
    rows = [row for row in comparison.table(runs) if row.before.held is not None]
    most = max(row.allocations for row in rows)
    cells = {
        (row.scenario, row.method): f"{row.before.held:.2f}"
        + (f" ({row.allocations})" if row.allocations < most else "")
        for row in rows
    }
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    names = _columns(scenarios, runs)
    return "\n".join([RULES.format(seeds=seeds), "", *_table(names, scenarios[names[0]].methods, cells)])


def _schedule() -> str:
    runs = _runs("schedule")
    if not runs:
        return ""
    value = {(run.scenario, run.label.replace("-ema", "+ema"), run.partition): run.headline.last for run in runs}
    allocations = sorted({run.partition for run in runs})
    parts = [SCHEDULE.format(most=len({run.seed for run in runs}))]
    for structure in ("planted", "dirichlet"):
        lines = [_line(structure, "constant", "constant, +ema", "cosine", "cosine, +ema", "cosine vs +ema")]
        lines.append("|" + "---|" * 6)
        for method in dict.fromkeys(label.removesuffix("+ema") for _, label, _ in value):
            cells = [(f"{structure}-{rate}", method + mean) for rate in ("constant", "cosine") for mean in ("", "+ema")]
            found = [[value[(*cell, a)] for a in allocations if (*cell, a) in value] for cell in cells]
            shared = [a for a in allocations if (*cells[1], a) in value and (*cells[2], a) in value]
            gap = _points([value[(*cells[2], a)] - value[(*cells[1], a)] for a in shared])
            lines.append(_line(method, *(f"{np.mean(values):.2f}" if values else NONE for values in found), gap))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _points(gaps: Sequence[float]) -> str:
    """The mean of paired differences, with its interval where there are enough of them."""
    if not gaps:
        return NONE
    spread = statistics.interval(gaps, (-100.0, 100.0))
    sure = "" if spread.low is None or spread.high is None else f" [{spread.low:+.2f}, {spread.high:+.2f}]"
    return f"{spread.mean:+.2f}{sure}"


def _malicious() -> str:
    scenarios, runs = load_scenarios(str(EXPERIMENTS / "malicious.toml")), _runs("malicious")
    if not runs:
        return ""
    rows = comparison.table(runs)
    clean = next(name for name, config in scenarios.items() if config.attack is None)
    cells = {
        (r.scenario, r.method): f"{r.attacked.points:+.2f}"
        for r in rows
        if r.attacked and r.attacked.points is not None
    }
    means = {
        run.label: [one.headline.summary.mean for one in runs if one.label == run.label and one.scenario == clean]
        for run in runs
    }
    cells |= {(clean, label): f"{np.mean(values):.2f}" for label, values in means.items() if values}
    names = _columns(scenarios, runs)
    return "\n".join([MALICIOUS, "", *_table(names, scenarios[clean].methods, cells)])


def figure(path: Path) -> None:
    """Groups found over the rounds: one panel per structure, one line per method, mean over allocations."""
    from fedapa.data.inspect import save_figure
    from fedapa.report import drawing

    scenarios, runs = load_scenarios(str(EXPERIMENTS / "groups.toml")), [r for r in _runs("groups") if r.groups_found]
    names = _columns(scenarios, runs)
    labels = [
        m for m in scenarios[names[0]].methods if any(run.label == m for run in runs) and m not in ("oracle", "even")
    ]
    shown = drawing.new(1.6 * -(-len(names) // 3) + 0.9)
    panels = shown.subplots(-(-len(names) // 3), 3, sharex=True, sharey=True, squeeze=False).ravel()
    colours = dict(zip(labels, (f"C{k % 10}" for k in range(len(labels))), strict=True))
    for axes, name in zip(panels, names, strict=False):
        for k, label in enumerate(labels):
            courses = [run.groups_found for run in runs if (run.scenario, run.label) == (name, label)]
            if courses:
                mean = np.mean([course[: min(map(len, courses))] for course in courses], axis=0)
                style = "-" if k < 10 else "--"
                axes.plot(range(1, len(mean) + 1), mean, color=colours[label], linestyle=style, linewidth=1.3)
        axes.set_title(name, fontsize=8, loc="left")
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    panels[0].set_ylim(-0.1, 1.05)
    shown.supxlabel("round", fontsize=8)
    shown.supylabel("adjusted Rand index", fontsize=8)
    from matplotlib.lines import Line2D

    keys = [Line2D([], [], color=colours[label], linestyle="-" if k < 10 else "--") for k, label in enumerate(labels)]
    shown.legend(keys, labels, loc="outside upper center", ncols=4, fontsize=7)
    save_figure(shown, path)


def beyond(text: str) -> str:
    """docs/beyond.md with its tables made anew from the results of recipes.toml and beyond.toml."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{_beyond_tables()}\n{END}{tail}"


def _beyond_tables() -> str:
    """CIFAR-10 with every rival's running mean; Fashion-MNIST as it was run before."""
    scenarios, runs = load_scenarios(str(EXPERIMENTS / "recipes.toml")), _runs("recipes")
    methods = [label for label in next(iter(scenarios.values())).methods if "+" not in label and "@" not in label]
    lines = [RIVALS.format(most=len({run.seed for run in runs}))]
    for name, title in BEYOND.items():
        lines += ["", _line(title, "as it is", f"{OURS} ahead", "with `+ema`", f"{OURS}+ema ahead"), "|" + "---|" * 5]
        mine = [run for run in runs if run.scenario == name]
        beside = [_led(mine, methods, ending) for ending in ("", "+ema")]
        lines += [_line(label, *(cell for column in beside for cell in column[label])) for label in methods]
    return "\n".join([*lines, "", *_fashion()])


def _led(runs: Sequence[RunResult], methods: Sequence[str], ending: str) -> dict[str, tuple[str, str]]:
    """Every method's accuracy, and by how many points ours is ahead, paired by allocation; Holm over the methods."""
    rivals = [x for x in methods if x != OURS]
    gaps = {x: _paired(runs, OURS + ending, x + ending) for x in rivals}
    adjusted = statistics.holm([statistics.paired_p(points) for points in gaps.values()])
    chance = {x for x, p in zip(rivals, adjusted, strict=True) if p is not None and p >= standings.LEVEL}
    told = {OURS: NONE} | {x: _points(gaps[x]) + " n. d." * (x in chance) for x in rivals}
    mean = {x: np.mean([run.headline.last for run in runs if run.label == x + ending]) for x in methods}
    return {x: (f"{mean[x]:.2f}", told[x]) for x in methods}


def _fashion() -> list[str]:
    scenarios, runs = load_scenarios(str(EXPERIMENTS / "beyond.toml")), _runs("beyond")
    names = [name for name in _columns(scenarios, runs) if name.startswith("fmnist")]
    rows = [row for row in comparison.table(runs) if row.scenario in names]
    most = max(row.allocations for row in rows)
    cells = {(row.scenario, row.method): _value(row, most) for row in rows}
    return [FASHION.format(most=most), "", *_table(names, scenarios[names[0]].methods, cells)]


if __name__ == "__main__":
    (HERE / "beyond.md").write_text(beyond((HERE / "beyond.md").read_text(encoding="utf-8")), encoding="utf-8")
    (HERE / "groups.md").write_text(page(), encoding="utf-8")
    if any(run.groups_found for run in _runs("groups")):
        figure(HERE / "groups.svg")
