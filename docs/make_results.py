"""Write docs/results.md, docs/results/*.md and the table of the README: python docs/make_results.py

They come from experiments/*.toml and experiments/results/*.json. `fedapa sweep` makes the runs and
experiments/collect.py the files. No number on a page is typed by hand.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from fedapa.analysis import comparison, result_sets, run_results, standings
from fedapa.analysis.method_rows import MethodRow
from fedapa.analysis.statistics import FEWEST, holm, interval, paired_p
from fedapa.config.experiment import run_names, single
from fedapa.config.grid import load_scenarios
from fedapa.config.load import settings_of
from fedapa.config.sections import Config
from fedapa.core.hyper_parameters import plain
from fedapa.methods.catalogue import make, taken_apart
from fedapa.report import paper
from fedapa.store.run_settings import flat
from fedapa.version import NUMERICS

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parent / "experiments"
Rows = list[MethodRow]
DECISION = "decisions/0009-numerics-version.md"
ABLATIONS = {
    "table3": "Table 3: what the parts of FedAPA contribute",
    "table4": "Table 4: the self-weight",
    "ablations": "Ours: sign, schedule, released code, self-weight as a share",
    "recipes": "Ours: both recipes of ten methods, with and without a running mean",
}

AGAIN = "fedapa-reference"  # FedAPA a second time, as the released code has it
OURS = ("fedapa-exact", "exact-steadier")
NOT_RUN = ": not run yet."
FAR = 3.0  # points from the printed number that call for a second look
GOAL = 1.5  # points that FedAPA-exact should be ahead where there are groups
NATURAL = {"hospitals": "Ours: four hospitals", "airlines": "Ours: fifteen airlines"}

INTRO = """# Results

Who is ahead of training alone and by how much, what of the FedAPA paper was reproduced and what not, each with the page
that has all its numbers. Made by `python docs/make_results.py` from `experiments/*.toml` and
`experiments/results/*.json`. Every file under `experiments/` begins with the command that runs it; another machine or
engine changes the last digits.

{made}
"""

READING = """## How to read the tables

*before* is the accuracy of what a client received (of the model that it keeps, with FedPHP,
Ditto and a running mean), *after* that of the same model after local training, both in the last of 50 rounds, pooled
over all test samples, in percent; ± is the standard deviation over allocations and the brackets are the 95 %
confidence interval of the mean (Student's t over allocations, cut off at 0 and 100). A star marks the model that the
method's paper evaluates; *best* is that model's best round, which is what the released code of FedAPA reports (chosen
on the test data, so it flatters everybody), and *paper* the number that the FedAPA paper prints for it. *vs Local* is
the mean gain of a client over training alone on the same allocation, in points, with its 95 % interval and the p of a
paired t-test over allocations (p, not the interval, is adjusted by Holm over the methods of one table); then how many
clients gain / stay equal / lose. *Worst tenth* is the mean accuracy of the worst-served tenth of the clients.

The allocation is the unit of every interval and test. Clients of one allocation are not independent, so they are
counted, not tested. Fewer than three allocations have no interval and no p. *Not distinguishable* from the highest is
every method that the paired t-test against it, with p times the number of rivals, does not reject at 5 %. Three
allocations tell little: among {methods} methods a gap must then be {three:.0f} of its standard errors to be told from
chance, with five allocations {five:.0f}.
"""

# Detail pages: file, title, what the reader gets.
DETAILS = {
    "table1": ("Table 1", "Every method of the paper's Table 1 in every column, beside the printed numbers."),
    "recipes": ("Recipes", "Ten methods trained by one recipe and by their authors' own, with a running mean or not."),
    "ablations": ("Ablations", "What the parts of FedAPA contribute: the paper's Tables 3 and 4, and ours."),
    "cost": ("Time and bytes", "What a round costs with every method: the paper's Table 2."),
    "exact": ("FedAPA-exact", "FedAPA-exact against the others, which of its rules was chosen and how."),
    "malicious": ("Malicious clients", "What honest clients lose where others are malicious."),
    "natural": ("Hospitals and airlines", "Data that was not split by a rule: four hospitals, fifteen airlines."),
}
README_BLOCK = ("<!-- table: python docs/make_results.py -->\n", "<!-- end of table -->")
SHOWN = "recipes"  # the experiment of the README's table: every method by one recipe, most allocations


RULES = """Allocation {seed}, which no other table uses: accuracy on a share of {share:g} of every client's train set
that nobody trained on, before / after local training, mean of the last five rounds. Test accuracy is not looked at
here. The rows from `exact-without-ridge` to `exact-solve-alone`, and `exact-fixed`, which is without the cut, are the
ablation: they take one part away, or leave one alone. What every row is, the file says:
`experiments/beyond-rules.toml`."""

# What the first version of the numbers (Table 1 of that time, marked with a dagger) did otherwise, by method.
MENDED = {
    "local": "nothing but the names of its random streams",
    "fedavg": "momentum starts afresh at every visit",
    "fedper": "momentum starts afresh at every visit",
    "fedphp": "momentum starts afresh at every visit; its memory reckons with the visits that the run gives",
    "fedpac": "momentum starts afresh at every visit",
    "fedala": "its share of samples is drawn at random, before it was a block of rows sorted by class; fresh momentum",
    "dbe": "κ is scaled from 512 features to 84, and momentum no longer moves the bias; fresh momentum",
    "fedapa": "nothing but the names of its random streams",
    "fedapa-exact": "nothing but the names of its random streams",
}

RECIPES = """*common* is the recipe of the FedAPA paper for everybody (rate 0.01, momentum 0.9, batches of 64, two
epochs), *authors'* what the method's own paper or code says (`fedapa ls recipes`), in the same 50 rounds. A star marks
the model that the method's paper evaluates. *Running mean* is `METHOD+ema`: the mean of the models that a client has
trained, of which 0.9 stays from visit to visit; the federation is the same. *Version 1* is the number of the first
Table 1, with its allocations in brackets. FedAPA as its authors run it is fedapa-reference. Local and FedAPA-exact have
no other recipe."""

DIFFERENCES = """Differences in points of the accuracies above, with the 95 % interval and the p of a paired t-test over
allocations (adjusted by Holm over a column). A running mean is held against the model after local
training, which is what it averages; a recipe by the model that the method's paper evaluates."""

AHEAD = """*fedapa-exact* is the default, *exact-steadier* the same with a running mean of the client's models in use
(`fedapa-exact+ema`). *ahead* is how much more a client has with it than with that method on the same allocation, mean
in points, with its interval and the p of a paired t-test over allocations (adjusted by Holm over the methods of the
table), then how many clients have more / as much / less. The goal was to be level with the best of the others in
every column, and {goal:g} points ahead where clients come in groups (a fixed number of classes each). It is judged by
the accuracy that the tables show, pooled over all test samples, on allocations that both were run on.
*Distinguishable* says whether the adjusted p is below 5 %."""

MALICIOUS = """{title}, {rounds} rounds, {seeds} allocation. *no attack* is the mean accuracy of all clients. The other
columns show how much so many malicious clients change the mean of the honest ones, in points (–: not run yet). The
attacks: [beyond.md](../beyond.md)."""

BESIDE = """Best round of the model that the method's paper evaluates, minus the printed number, in points. Where that
is more than {far:g} points, the same for the other model (after local training, or before it) stands in brackets."""

WEIGHTS = """Weight that the mixtures of honest clients give to malicious ones, in percent, in rounds {rounds}. An
even share is {even}."""

SPLITS = """{rounds} rounds; splits into train and test: {splits}. Several splits share rows, which intervals and tests
allow for (Nadeau and Bengio, 2003). `fedapa silo run` also has the AUC of every site."""

WHY = """
## What was not reproduced, and what we know about it

- **FedAvg is lower than printed** in most columns. The paper leaves open how long, with whom and with which momentum
  it ran, and does not publish its allocations, which differ by several points. {fedavg}
- **pFedLA's printed numbers lie between our two.** As it arrives the mixture, heads and all, fits nobody well; after
  local training it is above the printed number. Its authors published no code, other people's code scores the mixture
  as it arrives, and the paper does not say what it scored.
- **DBE is lower than printed**, most with many classes; in most columns it still rises when the rounds end. {dbe}
- **FedPHP, and on CIFAR-100 FedPAC, are higher than printed.** Public code of both departs from their papers
  ([methods.md](methods.md) says where); which code the paper used is not known.
- **FedAPA gains less over Local than the paper's numbers suggest.** The paper has no Local row. Its own ablation with
  the self-weight at 1, which keeps most of a client's own model, prints {alone:.2f}, close to our Local. The
  learned weights end nearly uniform: all models share a large common part, so a step moves all weights of a row
  together.
- **The self-weight.** {self_weight}
- **Simple things are strong.** Local training, FedAvg with fine-tuning and FedPer are missing from the paper's table
  and are level with or ahead of several methods in it, here as in other comparisons.
- **Before or after?** FedAvg's paper evaluates the shared model, which is what the low numbers of FedAvg are; the same
  model after one round of local training (fedavg-ft) ranks far above it. A table that does not say which one it shows
  cannot be compared with another.
"""


def pages() -> dict[str, str]:
    """Every page by its path under docs."""
    files = {path.stem: path for path in sorted(EXPERIMENTS.glob("*.toml"))}
    found = {f"results/{name}.md": _detail(name, lines) for name, lines in _details(files).items()}
    return {"results.md": _findings(files), **found}


def _details(files: dict[str, Path]) -> dict[str, list[str]]:
    ablations = [line for name in ("table3", "table4", "ablations") for line in _ablation(files[name], ABLATIONS[name])]
    return {
        "table1": _table1(files["table1"]),
        "recipes": [*_recipes(files), *_ablation(files["recipes"], ABLATIONS["recipes"])],
        "ablations": ablations,
        "cost": _table2(files["table2"]),
        "exact": [*_beyond(files["beyond"]), *_rules(files["beyond-rules"])],
        "malicious": _poisoned(files["poisoned"]),
        "natural": [line for name, title in NATURAL.items() for line in _natural(files[name], title)],
    }


def _detail(name: str, lines: Sequence[str]) -> str:
    title, gets = DETAILS[name]
    reading = "[how to read the tables](../results.md#how-to-read-the-tables)"
    return (
        "\n".join([f"# {title}", "", f"{gets} Findings: [results](../results.md); {reading}.", "", *lines]).rstrip()
        + "\n"
    )


def _findings(files: dict[str, Path]) -> str:
    """One page: the table of the README, a line per column and experiment, what was not reproduced."""
    details = [f"- [{title}](results/{name}.md): {gets}" for name, (title, gets) in DETAILS.items()]
    details.append("- [The data behind all of it](results-data.md): every run, round and client as three tables.")
    parts = [INTRO.format(made=_made()), "## CIFAR-10, every method by one recipe", "", *readme_table(), ""]
    parts += _columns(files["table1"])
    parts += ["## Beyond the paper", "", *_told_exact(files["beyond"]), *_told_natural(files), ""]
    parts += [_why(files).strip(), "", "## All numbers", "", *details, "", _reading(files["table1"]).strip(), ""]
    return "\n".join(parts)


def _columns(experiment: Path) -> list[str]:
    """A line per column of Table 1: who is highest, and how FedAPA stands to it and to Local."""
    scenarios = load_scenarios(str(experiment))
    rows = comparison.table(result_sets.from_dicts(_kept(experiment)))
    lines = [
        "## The paper's Table 1 again",
        "",
        *_head("column", "allocations", "highest", "Local", "FedAPA", "its place", "FedAPA vs Local"),
    ]
    for name, config in scenarios.items():
        mine = sorted((row for row in rows if row.scenario == name), key=lambda row: -_value(row))
        found = {row.method: row for row in mine}
        if {"local", "fedapa"} <= found.keys():
            own, place = found["fedapa"], f"{[row.method for row in mine].index('fedapa') + 1} of {len(mine)}"
            values = f"{mine[0].method} {_value(mine[0]):.2f}", f"{_value(found['local']):.2f}", f"{_value(own):.2f}"
            lines.append(_line(_title(config), own.allocations, *values, place, _gain(own)))
    return [*lines, "", "Every method of every column: [Table 1](results/table1.md).", ""]


def _told_exact(experiment: Path) -> list[str]:
    """In how many columns FedAPA-exact reaches its goal, by the means."""
    said = [line for line in _beyond(experiment) if line.startswith(tuple(f"- {own}," for own in OURS))]
    lines = []
    for own in OURS:
        mine = [line for line in said if line.startswith(f"- {own},") and "goal" in line]
        met, told = sum("goal met" in line for line in mine), sum("; distinguishable" in line for line in mine)
        lines.append(
            f"- **{own}** reaches its goal, level with the best of the others or {GOAL:g} points ahead among groups, "
            f"in {met} of {len(mine)} columns by the means; {told} of these differences are distinguishable "
            "([all columns](results/exact.md))."
        )
    return lines


def _told_natural(files: dict[str, Path]) -> list[str]:
    lines = []
    for name, title in NATURAL.items():
        what = title.removeprefix("Ours: ").capitalize()
        if rows := _natural_rows(files[name]):
            lines.append(f"- **{what}**: {standings.who_wins(rows)} ([table](results/natural.md))")
    return lines


def readme_table() -> list[str]:
    """CIFAR-10 with every method by one recipe: accuracy and gain over Local, by how classes are allocated."""
    experiment = EXPERIMENTS / f"{SHOWN}.toml"
    scenarios = load_scenarios(str(experiment))
    rows = comparison.table(result_sets.from_dicts(_kept(experiment)))
    found = {(row.scenario, row.method): row for row in rows}
    names = [name for name in next(iter(scenarios.values())).methods if not set(name) & set("+@")]
    titles = [_title(config).removeprefix("CIFAR-10, ").partition(",")[0] for config in scenarios.values()]
    lines = _head("CIFAR-10, 20 clients", *(word for title in titles for word in (title, "vs Local")))
    for name in names:
        mine = [found.get((scenario, name)) for scenario in scenarios]
        lines.append(_line(name, *(cell for row in mine for cell in _shown(row, "headline"))))
        if name == "fedavg":
            lines.append(_line("the same, fine-tuned", *(cell for row in mine for cell in _shown(row, "after"))))
    counts = sorted({row.allocations for row in rows if row.method in names})
    runs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    gains = [row.gain for row in rows if row.method in names and row.method != "local" and row.gain is not None]
    sure = sum(gain.p_adjusted is not None and gain.p_adjusted < standings.LEVEL < gain.points for gain in gains)
    rounds = next(iter(scenarios.values())).run.rounds
    return [*lines, "", TABLE.format(runs=runs, rounds=rounds, sure=sure, gains=len(gains))]


TABLE = """Accuracy in percent, ± standard deviation over {runs} allocations, {rounds} rounds of LeNet-5, of the model
that each method's paper evaluates; *vs Local*: mean gain of a client over training alone, in points, then how many
clients gain / stay equal / lose. {sure} of these {gains} differences are gains that a paired t-test over allocations,
adjusted by Holm, tells from chance at 5 %."""


def _shown(row: MethodRow | None, phase: str) -> tuple[str, str]:
    if row is None:
        return "–", "–"
    value = row.headline if phase == "headline" else row.phase(phase)
    spread = "" if value.sd is None else f" ± {value.sd:.1f}"
    told = "" if row.gain is None or row.method == "local" or phase != "headline" else _short(row)
    return f"{value.last:.1f}{spread}", told


def _short(row: MethodRow) -> str:
    assert row.gain is not None
    return f"{row.gain.points:+.1f} ({'/'.join(map(str, row.gain.clients))})"


def with_table(readme: str) -> str:
    """The README with the table of today between its two marks."""
    first, last = README_BLOCK
    before, _, rest = readme.partition(first)
    _, mark, after = rest.partition(last)
    assert mark, "the README has lost the marks around its table"
    return before + first + "\n".join(readme_table()) + "\n" + last + after


def _reading(experiment: Path) -> str:
    methods = max(len(config.methods) for config in load_scenarios(str(experiment)).values())
    three, five = (stats.t.isf(standings.LEVEL / 2 / (methods - 1), count - 1) for count in (3, 5))
    return READING.format(methods=methods, three=three, five=five)


# ------------------------------------------------------------------------------------------------------------ reading


def _kept(experiment: Path) -> list[dict[str, Any]]:
    return _file(experiment, "runs")


def _failed(experiment: Path) -> list[dict[str, Any]]:
    return _file(experiment, "failed")


def _file(experiment: Path, part: str) -> list[dict[str, Any]]:
    path = EXPERIMENTS / "results" / f"{experiment.stem}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")).get(part, []) if path.is_file() else []
    return found


def _all_kept() -> list[dict[str, Any]]:
    return [run for path in EXPERIMENTS.glob("*.toml") for run in _kept(path)]


def _made() -> str:
    kept = _all_kept()
    dates = sorted(run["environment"]["date"][:10] for run in kept)
    versions = {(run["environment"]["python"], run["environment"]["packages"]["torch"]) for run in kept}
    said = ", ".join(f"Python {python} and PyTorch {torch}" for python, torch in sorted(versions))
    return f"{len(kept)} runs, made from {dates[0]} to {dates[-1]} with {said}. {_numerics(kept)}"


def _numerics(kept: Sequence[dict[str, Any]]) -> str:
    """Which versions of the numbers the page shows, and what a dagger means where there are several."""
    found = Counter(run.provenance.numerics for run in result_sets.from_dicts(kept))
    if len(found) < 2:
        said = f"All have numerics version {next(iter(found))}"
        return f"{said}, the code {NUMERICS} ([why]({DECISION}))."
    said = ", ".join(f"{count} version {numerics}" for numerics, count in sorted(found.items()))
    return (
        f"Their numerics versions: {said} ([why]({DECISION})). A dagger marks rows of an older version than "
        f"{max(found)}; no test pairs them with newer ones."
    )


@cache
def _newest() -> int:
    """The newest version of the numbers on the page."""
    return max((run.provenance.numerics for run in result_sets.from_dicts(_all_kept())), default=NUMERICS)


def _name(row: MethodRow) -> str:
    """A method, with a dagger where its numbers are of an older version than others on the page."""
    return row.method if row.numerics == str(_newest()) else f"{row.method} †"


def _name_of(method: str, rows: Rows) -> str:
    """The same for a line that shows several rows of a method."""
    return next((_name(row) for row in rows if row.method == method and _name(row) != method), method)


def _printed(config: Config, method: str) -> paper.Printed:
    base, settings = settings_of(config, method)
    one = single(config, method, config.seeds[0]).model_dump(mode="json", exclude_none=True)
    return paper.printed(one, flat(plain(make(base, **settings))))


# ------------------------------------------------------------------------------------------------------------- tables


def _table1(experiment: Path) -> list[str]:
    scenarios = load_scenarios(str(experiment))
    rows = comparison.table(result_sets.from_dicts(_kept(experiment)))
    whole = {name: [row for row in rows if row.scenario == name] for name in scenarios}
    found = {name: mine for name, mine in whole.items() if mine}
    lines = ["## Table 1: who wins", "", *_summary(scenarios, found), ""]
    for name, mine in found.items():
        lines += [f"### {_title(scenarios[name])}", "", *_folded("all methods", _accuracies(scenarios[name], mine)), ""]
    return lines + _ranks(_ranked(scenarios, rows)) + _beside(scenarios, found) + _missing(scenarios, whole)


def _ranked(scenarios: dict[str, Config], rows: Rows) -> dict[str, Rows]:
    """The columns that have every method of the paper, all by one version of numbers."""
    found = {}
    for name, config in scenarios.items():
        mine = [row for row in rows if row.scenario == name]
        printed = {method for method in config.methods if _printed(config, method).accuracy is not None}
        if printed - {AGAIN} <= {row.method for row in mine} and len({row.numerics for row in mine}) == 1:
            found[name] = mine
    return found


def _summary(scenarios: dict[str, Config], found: dict[str, Rows]) -> list[str]:
    """One line per column: the best, FedAPA's place, and whether joining paid."""
    lines = []
    for name, rows in found.items():
        order = sorted(rows, key=lambda row: -_value(row))
        own = next((row for row in rows if row.method == "fedapa"), None)
        lead = f"- {_title(scenarios[name])}: {standings.who_wins(rows)}"
        if own is not None:
            place = [row.method for row in order].index("fedapa") + 1
            lead += f" FedAPA is number {place} of {len(order)} with {_value(own):.2f}, {_gain(own)} vs Local."
        lines.append(lead)
    return ["In the last round, by the model that each method's paper evaluates:", "", *lines]


def _few(rows: Rows) -> list[str]:
    """A line below a table that has neither intervals nor tests."""
    most = max((row.allocations for row in rows), default=0)
    return [] if most >= FEWEST else ["", f"{_allocations(most)}: no intervals, no tests."]


def _accuracies(config: Config, rows: Rows) -> list[str]:
    lines = _head("method", "allocations", "before", "after", "best", "paper", "vs Local", "worst tenth")
    for row in rows:
        printed = _printed(config, row.method).accuracy
        shown = "–" if printed is None else f"{printed:.2f}"
        both = _phase(row, "before"), _phase(row, "after")
        rest = f"{_best(row):.2f}", shown, _gain(row), f"{row.worst_tenth:.1f}"
        lines.append(_line(_name(row), row.allocations, *both, *rest))
    return [*lines, *_few(rows)]


def _ranks(found: dict[str, Rows]) -> list[str]:
    ranks = standings.ranks([row for rows in found.values() for row in rows])
    if ranks is None:
        return []
    order = sorted(ranks.mean_rank.items(), key=lambda pair: pair[1])
    said = ", ".join(f"{name} {rank:.1f}" for name, rank in order)
    chance = "" if ranks.p is None else f" Friedman's test: p {_p(ranks.p)}."
    each = f"{_allocations(ranks.allocations)} in every cell"
    lead = f"Over the {len(found)} columns with all methods of the paper and one version of numbers, {each}, 1 is best"
    lines = ["### Mean ranks", "", f"{lead}: {said}.{chance}", ""]
    if ranks.difference is None:
        return lines
    told = f"a bar joins methods whose mean ranks differ by less than {ranks.difference:.1f}, the critical difference"
    return [*lines, f"![mean ranks; {told}](ranks.svg)", "", f"In the figure {told} of Nemenyi's test at 5 %.", ""]


def figure(path: Path) -> None:
    """The critical-difference diagram of the columns that are ranked."""
    from fedapa.report import drawing, figures

    experiment = EXPERIMENTS / "table1.toml"
    rows = comparison.table(result_sets.from_dicts(_kept(experiment)))
    columns = _ranked(load_scenarios(str(experiment)), rows)
    ranks = standings.ranks([row for mine in columns.values() for row in mine])
    if ranks is not None:
        path.write_text(drawing.as_svg(figures.mean_ranks(ranks), path.stem), encoding="utf-8")


def _beside(scenarios: dict[str, Config], found: dict[str, Rows]) -> list[str]:
    """How far every number is from the printed one, all columns at a glance."""
    rows = {(row.method, name): row for name, mine in found.items() for row in mine}
    lines = ["### Beside the printed numbers", "", BESIDE.format(far=FAR), ""]
    lines += _head("method", *(_title(scenarios[name]) for name in found))
    for method in dict.fromkeys(method for method, _ in rows):
        cells = [_distance(scenarios[name], rows.get((method, name))) for name in found]
        if any(cells):
            lines.append(_line(method, *(cell or "–" for cell in cells)))
    return [*lines, ""]


def _distance(config: Config, row: MethodRow | None) -> str:
    """Our best round minus the printed number, and that of the other model where the two are far apart."""
    printed = None if row is None else _printed(config, row.method).accuracy
    if row is None or printed is None:
        return ""
    gap = _best(row) - printed
    other = row.phase("after" if row.evaluated == "before" else "before").best - printed
    return f"{gap:+.1f}" if abs(gap) <= FAR else f"{gap:+.1f} ({other:+.1f})"


def _missing(scenarios: dict[str, Config], whole: dict[str, Rows]) -> list[str]:
    """What the file names and nobody has run yet."""
    lines = []
    for name, config in scenarios.items():
        done = sum(row.seeds for row in whole[name])
        if (all_runs := len(run_names(config))) > done:
            lines.append(f"- {_title(config)}: {done} of {all_runs} runs")
    if not lines:
        return []
    how = "The same command goes on with what is missing; `--only` chooses."
    return ["### Not run yet", "", f"{how} Columns and allocations without a run:", "", *lines, ""]


def _ablation(experiment: Path, title: str) -> list[str]:
    lines = [f"## {title}", ""]
    found = comparison.table(result_sets.from_dicts(_kept(experiment)), "fedapa")
    for name, config in load_scenarios(str(experiment)).items():
        rows = [row for row in found if row.scenario == name]
        if not rows:
            lines += [f"{_title(config)}: not run yet.", ""]
            continue
        lines += [f"{_title(config)}; *vs FedAPA* as *vs Local* above.", ""]
        lines += _head("variant", "allocations", "before", "after", "best", "paper", "vs FedAPA")
        for row in sorted(rows, key=lambda row: config.methods.index(row.method)):
            printed = _printed(config, row.method).accuracy
            shown = "–" if printed is None else f"{printed:.2f}"
            both = _phase(row, "before"), _phase(row, "after")
            lines.append(_line(_name(row), row.allocations, *both, f"{_best(row):.2f}", shown, _gain(row)))
        lines += [*_few(rows), ""]
        missing = [method for method in config.methods if method not in {row.method for row in rows}]
        told = [_failure(experiment, name, method, _printed(config, method).accuracy) for method in missing]
        lines += [line for failed in told if not failed.endswith(NOT_RUN) for line in (failed, "")]
        if waiting := [line.removesuffix(NOT_RUN) for line in told if line.endswith(NOT_RUN)]:
            lines += [f"Not run yet: {', '.join(waiting)}.", ""]
    return lines


def _recipes(files: dict[str, Path]) -> list[str]:
    """What the recipe, a running mean and the mended methods change, by scenario."""
    lines = ["## What the recipe and a running mean change", "", RECIPES, ""]
    runs = result_sets.from_dicts(_kept(files["recipes"]))
    for name, config in load_scenarios(str(files["recipes"])).items():
        mine = [run for run in runs if run.scenario == name]
        names = [method for method in config.methods if method in MENDED]
        found = {row.method: row for row in comparison.table(mine)}
        lines += [f"### {_title(config)}", "", *_told_recipes(names, mine)]
        lines += _head("method", "version 1 †", "before", "after", "running mean", "authors'", "running mean")
        for method in names:
            lines.append(_line(method, _once(files, name, method), *_variants(method, found)))
        lines += ["", DIFFERENCES, "", *_head("method", *QUESTIONS)]
        answers = [_answers(ask, names, mine) for ask in QUESTIONS.values()]
        lines += [_line(method, *(str(answer.get(method, "–")) for answer in answers)) for method in names]
        lines.append("")
    lines += ["### What was mended since version 1", "", *(f"- {name}: {why}." for name, why in MENDED.items()), ""]
    return lines


def _variants(method: str, found: Mapping[str, MethodRow]) -> list[str]:
    """The cells of a method: both models of the common recipe, and one of each other variant."""
    both = [_short_phase(found.get(method), name) for name in ("before", "after")]
    rest = [found.get(_variant(method, ending)) for ending in ("+ema", "@authors", "@authors+ema")]
    return both + ["–" if row is None else _short_phase(row, row.evaluated) for row in rest]


def _short_phase(row: MethodRow | None, name: str) -> str:
    if row is None:
        return "–"
    star, phase = "*" if row.evaluated == name else "", row.phase(name)
    return f"{phase.last:.2f}{star}" + ("" if phase.sd is None else f" ± {phase.sd:.2f}")


def _once(files: dict[str, Path], scenario: str, method: str) -> str:
    """The number of the first version, where it was run."""
    for name in ("table1", "beyond"):
        runs = result_sets.from_dicts(_kept(files[name]))
        first = [r for r in runs if (r.scenario, r.label, r.provenance.numerics) == (scenario, method, 1)]
        if first:
            row = comparison.table(first)[0]
            return f"{_value(row):.2f} ({row.allocations})"
    return "–"


class Question(NamedTuple):
    """A variant held against another one, by the ends of their names; of which model, if not of the evaluated one."""

    variant: str
    rival: str
    phase: str | None = None


class Answer(NamedTuple):
    """A difference in points, its 95 % interval, and p adjusted over all methods of the question."""

    points: float
    low: float | None
    high: float | None
    p: float | None

    def __str__(self) -> str:
        sure = "" if self.p is None else f" [{self.low:+.2f}, {self.high:+.2f}] (p {_p(self.p)})"
        return f"{self.points:+.2f}{sure}"


QUESTIONS = {
    "running mean, common recipe": Question("+ema", "", "after"),
    "authors' recipe against common": Question("@authors", ""),
    "running mean, authors' recipe": Question("@authors+ema", "@authors", "after"),
}


def _answers(ask: Question, names: Sequence[str], runs: Sequence[run_results.RunResult]) -> dict[str, Answer]:
    """By how much a method's variant is above another variant of it, by allocation; Holm over the methods."""
    gaps = {name: _gaps(_variant(name, ask.variant), _variant(name, ask.rival), ask.phase, runs) for name in names}
    gaps = {name: points for name, points in gaps.items() if points}
    adjusted = holm([paired_p(points) for points in gaps.values()])
    spreads = [interval(points, (-100.0, 100.0)) for points in gaps.values()]
    return {
        name: Answer(spread.mean, spread.low, spread.high, p)
        for name, spread, p in zip(gaps, spreads, adjusted, strict=True)
    }


def _gaps(own: str, rival: str, phase: str | None, runs: Sequence[run_results.RunResult]) -> list[float]:
    """The difference on every allocation that both were run on."""
    found: dict[str, dict[str, float]] = {own: {}, rival: {}}
    for run in runs:
        if run.label in found:
            shown = run.headline if phase is None else run.after if phase == "after" else run.before
            found[run.label][run.partition] = shown.last
    return [value - found[rival][where] for where, value in found[own].items() if where in found[rival]]


def _variant(method: str, ending: str) -> str:
    """The name of a variant; FedAPA by its authors' recipe is a method of its own."""
    base, wrapper = (AGAIN, ending.removeprefix("@authors")) if ending.startswith("@authors") else (method, ending)
    return f"{base}{wrapper}" if method == "fedapa" else f"{method}{ending}"


def _told_recipes(names: Sequence[str], runs: Sequence[run_results.RunResult]) -> list[str]:
    """A line per question: how many methods it raises, and which differences are told from chance."""
    lines = []
    for question, ask in QUESTIONS.items():
        if not (found := _answers(ask, names, runs)):
            continue
        sure = {name: one for name, one in found.items() if one.p is not None and one.p < standings.LEVEL}
        said = ", ".join(f"{name} {one.points:+.2f}" for name, one in sure.items()) or "none"
        mean = sum(one.points for one in found.values()) / len(found)
        lines.append(
            f"- {question[0].upper()}{question[1:]}: {sum(one.points > 0 for one in found.values())} of {len(found)} "
            f"methods rise, by {mean:+.2f} points on average; told from chance: {said}."
        )
    return [*lines, ""] if lines else []


def _failure(experiment: Path, scenario: str, method: str, printed: float | None) -> str:
    """How far a variant without a finished run came, and why it ended."""
    runs = [run for run in _failed(experiment) if (run["scenario"], run["label"]) == (scenario, method)]
    if not runs:
        return method + NOT_RUN
    ends = "; ".join(f"after {run['rounds_done']} rounds, best {run['best']:.2f}, {run['reason']}" for run in runs)
    beside = "" if printed is None else f" The paper prints {printed:.2f}."
    return f"{method} failed on every allocation: {ends}.{beside}"


def _table2(experiment: Path) -> list[str]:
    (config,) = load_scenarios(str(experiment)).values()
    rows = comparison.table(result_sets.from_dicts(_kept(experiment)))
    lines = ["## Table 2: time and bytes", ""]
    if not rows:
        return [*lines, "Not run yet.", ""]
    base = next(row.seconds for row in rows if row.method == "fedavg")
    whole = _printed(config, "fedavg").seconds_per_round
    assert whole is not None
    lines += [
        f"{_title(config)}, {config.run.rounds} rounds, one run at a time. Times are ratios to FedAvg "
        f"({base / config.run.rounds:.2f} s a round here, {whole:.0f} s in the paper, whose hardware is another).",
        "",
        *_head("method", "KiB per client and round", "paper", "time / FedAvg's", "paper"),
    ]
    for row in rows:
        printed = _printed(config, row.method)
        kib = "–" if printed.kib is None else f"{printed.kib:.0f}"
        time = "–" if printed.seconds_per_round is None else f"{printed.seconds_per_round / whole:.2f}"
        lines.append(_line(_name(row), f"{row.kib:.1f}", kib, f"{row.seconds / base:.2f}", time))
    return [*lines, ""]


def _why(files: dict[str, Path]) -> str:
    """The reasons, with the numbers of the experiments that looked for them."""
    alone = _printed(next(iter(load_scenarios(str(files["table4"])).values())), "mu-1").accuracy
    return WHY.format(
        alone=alone, fedavg=_fedavg(files), dbe=_dbe(files["dbe-gap"]), self_weight=_self_weight(files["table4"])
    )


def _fedavg(files: dict[str, Path]) -> str:
    """How far below the printed number, and what one change at a time gives, on the allocations that both have."""
    gap = load_scenarios(str(files["fedavg-gap"]))
    column, config = next(iter(load_scenarios(str(files["recipes"])).items()))
    printed = _printed(config, "fedavg").accuracy
    runs = result_sets.from_dicts(_kept(files["recipes"]))
    mine = {run.seed: run.before for run in runs if (run.scenario, run.label) == (column, "fedavg")}
    ours = {seed: phase.last for seed, phase in mine.items()}
    best, spread = interval([phase.best for phase in mine.values()]), interval(list(ours.values()))
    said = (
        f"CIFAR-10, Dirichlet 0.1, 20 clients, {len(ours)} allocations: {spread.mean:.1f} ± {spread.sd or 0:.1f} in "
        f"the last round, {best.mean:.1f} in the best one, {printed:.2f} printed."
    )
    found: dict[str, list[float]] = {name: [] for name in gap}
    for run in result_sets.from_dicts(_kept(files["fedavg-gap"])):
        found[run.scenario].append(run.before.last - ours[run.seed])
    if not all(found.values()):
        return f"{said} What that changes was not tried yet."
    adjusted = holm([paired_p(gaps) for gaps in found.values()])
    told = [
        f"{name.replace('-', ' ')} {Answer(one.mean, one.low, one.high, p)}"
        for (name, gaps), p in zip(found.items(), adjusted, strict=True)
        for one in [interval(gaps, (-100.0, 100.0))]
    ]
    return f"{said} One change at a time, in points above that, by allocation: {'; '.join(told)}."


def _dbe(experiment: Path) -> str:
    """What the pull of the means costs or gives, in every column where both were run."""
    found = {(run["scenario"], run["label"]): run["before"]["best"] for run in _kept(experiment)}
    said = [
        f"{_title(config)} {found[name, 'dbe-without-pull']:.1f} instead of {found[name, 'dbe']:.1f}"
        for name, config in load_scenarios(str(experiment)).items()
        if {(name, "dbe"), (name, "dbe-without-pull")} <= found.keys()
    ]
    if not said:
        return "Whether the strength of its pull is the reason was not tried yet."
    return f"Without the pull of the means, which is the default of its authors' program: {'; '.join(said)}."


def _self_weight(experiment: Path) -> str:
    """Which row of Table 4 is best here, and which in the paper."""
    (config,) = load_scenarios(str(experiment)).values()
    rows = comparison.table(result_sets.from_dicts(_kept(experiment)), "fedapa")
    if {row.method for row in rows} != set(config.methods):
        return "Table 4 is not complete yet."
    printed = {name: _printed(config, name).accuracy or 0.0 for name in config.methods}
    theirs, ours = max(printed, key=lambda name: printed[name]), max(rows, key=_value)
    if theirs == ours.method:
        return f"{theirs} is highest in Table 4, here and in the paper."
    return (
        f"In the paper's Table 4 {theirs} is best, {printed[theirs] - printed[ours.method]:.2f} points ahead of "
        f"{ours.method}; here {ours.method} is highest, {_gain(ours)} vs FedAPA."
    )


def _beyond(experiment: Path) -> list[str]:
    """FedAPA-exact, as it is and with a running mean, against what it must beat, and whether the goal is met."""
    lines = ["## Ours: FedAPA-exact against the others", ""]
    runs = result_sets.from_dicts(_kept(experiment))
    found = {}
    for name, config in load_scenarios(str(experiment)).items():
        mine = [run for run in runs if run.scenario == name]
        if OURS[0] in {run.label for run in mine}:
            found[name] = config, mine
    if not found:
        return [*lines, "Not run yet.", ""]
    lines += [AHEAD.format(goal=GOAL), ""]
    lines += [_reached(own, config, mine) for own in OURS for config, mine in found.values()]
    for config, mine in found.values():
        lines += ["", f"### {_title(config)}: FedAPA-exact", ""]
        lines += _head("method", "allocations", "before", "after", "best", "worst tenth", *(f"{o} ahead" for o in OURS))
        ahead, rows = {own: _ahead(own, mine) for own in OURS}, comparison.table(mine)
        for row in rows:
            both = _phase(row, "before"), _phase(row, "after")
            rest = f"{_best(row):.2f}", f"{row.worst_tenth:.1f}"
            gains = [_gain(ahead[own].get(row.method)) for own in OURS]
            lines.append(_line(_name(row), row.allocations, *both, *rest, *gains))
        lines += _few(rows)
    return [*lines, ""]


def _ahead(own: str, runs: list[run_results.RunResult]) -> dict[str, MethodRow]:
    """Our row with gains over every other method, on the allocations that both were run on; Holm over all of them."""
    rivals = [label for label in dict.fromkeys(run.label for run in runs) if label != own]
    tables = {rival: comparison.table([run for run in runs if run.label in (own, rival)], rival) for rival in rivals}
    rows = {rival: row for rival, table in tables.items() for row in table if row.method == own}
    adjusted = holm([row.p for row in rows.values()])
    return {rival: comparison.with_p(row, p) for (rival, row), p in zip(rows.items(), adjusted, strict=True)}


def _reached(own: str, config: Config, runs: list[run_results.RunResult]) -> str:
    """One line: our method, the best of those run on the same allocations, and whether the goal is met."""
    seeds = {label: {run.seed for run in runs if run.label == label} for label in config.methods}
    if not seeds[own]:
        return f"- {own}, {_title(config)}: not run yet."
    shared = [run for run in runs if run.seed in seeds[own] and seeds[run.label] >= seeds[own]]
    newest = max(run.provenance.numerics for run in shared if run.label == own)
    shared = [run for run in shared if run.provenance.numerics == newest]
    rows = {row.method: row for row in comparison.table(shared)}
    said = f"- {own}, {_title(config)}, {_allocations(len(seeds[own]))}: {_value(rows[own]):.2f}"
    best = max((row for name, row in rows.items() if name not in OURS), key=_value, default=None)
    if best is None:
        return said + "; no other method was run on all of them."
    ahead = _value(rows[own]) - _value(best)
    wanted = GOAL if config.data.classes_per_client is not None else 0.0
    met = "met" if ahead >= wanted else "**not met**"
    paired = _ahead(own, shared)[best.method]
    told = f", highest of the others {best.method} with {_value(best):.2f}; per client {_gain(paired)}"
    return f"{said}{told}: by the means, goal {met}; {_distinct(paired)}."


def _distinct(row: MethodRow) -> str:
    p = None if row.gain is None else row.gain.p_adjusted
    if p is None:
        return f"not tested ({row.gain_note})" if row.gain_note else "equal"
    return "distinguishable" if p < standings.LEVEL else "not distinguishable"


def _allocations(count: int) -> str:
    return "1 allocation" if count == 1 else f"{count} allocations"


def _rules(experiment: Path) -> list[str]:
    """Every rule of FedAPA-exact, and the one that held-out train data choose; test data choose nothing."""
    scenarios = load_scenarios(str(experiment))
    rows = comparison.table(result_sets.from_dicts(_kept(experiment)), "fedapa")
    lines = ["## Ours: which rule for FedAPA-exact, and what its parts do", ""]
    if not rows:
        return [*lines, "Not run yet.", ""]
    held = {(row.scenario, row.method): (row.before.held, row.after.held) for row in rows}
    config = next(iter(scenarios.values()))
    lines += [
        RULES.format(seed=config.seeds[0], share=config.data.validation),
        "",
        *_head("rule", *(_title(one) for one in scenarios.values()), "mean"),
    ]
    means = {}
    for method in config.methods:
        values = [held.get((name, method)) for name in scenarios]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            means[method] = tuple(sum(phase) / len(known) for phase in zip(*known, strict=True))
        lines.append(_line(_name_of(method, rows), *(_both(value) for value in [*values, means.get(method)])))
    return [*lines, "", _chosen(config, means), ""]


def _both(pair: tuple[float, ...] | None) -> str:
    return "–" if pair is None else " / ".join(f"{value:.2f}" for value in pair)


def _chosen(config: Config, means: dict[str, tuple[float, ...]]) -> str:
    """The rule of FedAPA-exact with the highest mean, and when its model is best; rules need every column."""
    rules = [name for name in config.methods if taken_apart(settings_of(config, name)[0]).method == OURS[0]]
    there = [name for name in rules if name in means]
    missing = [name for name in rules if name not in means]
    if not there:
        return "No rule was run in every column yet."
    best = max(there, key=lambda name: max(means[name]))
    named = {"before": "the model as it arrives", "after": "the model after local training"}
    when = named["before" if means[best][0] > means[best][1] else "after"]
    if "ema" in taken_apart(settings_of(config, best)[0]).wrappers:
        when = "the running mean of a client's models"
    said = f"Held-out data choose **{best}**, {when}; the default is {OURS[0]}, {named[make(OURS[0]).evaluated]}."
    return said + (f" Without a run in every column: {', '.join(missing)}." if missing else "")


def _poisoned(experiment: Path) -> list[str]:
    """What honest clients lose where others are malicious, and how much weight those get."""
    scenarios = load_scenarios(str(experiment))
    runs = result_sets.from_dicts(_kept(experiment))
    lines = ["## Ours: malicious clients", ""]
    if not runs:
        return [*lines, "Not run yet.", ""]
    attacks = {name: config.attack for name, config in scenarios.items() if config.attack is not None}
    clean = next(name for name, config in scenarios.items() if config.attack is None)
    config, columns = scenarios[clean], [f"{a.kind} {a.clients}" for a in attacks.values()]
    found = {(row.scenario, row.method): row for row in comparison.table(runs)}
    alone = {run.label: run.headline.summary.mean for run in runs if run.scenario == clean}
    lines += [
        MALICIOUS.format(title=_title(config), rounds=config.run.rounds, seeds=len(config.seeds)),
        "",
        *_head("method", "no attack", *columns),
    ]
    for method in config.methods:
        costs = [_cost(found.get((name, method))) for name in attacks]
        mine = [row for (_, label), row in found.items() if label == method]
        lines.append(_line(_name_of(method, mine), f"{alone[method]:.2f}" if method in alone else "–", *costs))
    lines += ["", *_malicious_weight(config, attacks, runs)]
    return [*lines, ""]


def _malicious_weight(config: Config, attacks: dict[str, Any], runs: list[run_results.RunResult]) -> list[str]:
    shown = sorted({min(round_, config.run.rounds) for round_ in (5, 10, config.run.rounds)})
    found = {(run.scenario, run.label): run.attacker_weight for run in runs if run.attacker_weight}
    counts = sorted({attack.clients for attack in attacks.values()})
    even = ", ".join(f"{100 * count / config.data.clients:.0f} for {count}" for count in counts)
    lines = [
        WEIGHTS.format(rounds=", ".join(map(str, shown)), even=even),
        "",
        *_head("method", *(f"{a.kind} {a.clients}" for a in attacks.values())),
    ]
    for method in config.methods:
        mine = [found.get((name, method)) for name in attacks]
        if any(mine):
            cells = ["–" if one is None else " → ".join(f"{100 * one[t - 1]:.1f}" for t in shown) for one in mine]
            lines.append(_line(method, *cells))
    return lines


def _natural_rows(experiment: Path) -> Rows:
    """Splits share rows: the overlap widens intervals and tests."""
    (config,) = load_scenarios(str(experiment)).values()
    assert config.sites is not None
    overlap = config.sites.test / (1 - config.sites.test)
    return comparison.table([replace(run, overlap=overlap) for run in result_sets.from_dicts(_kept(experiment))])


def _natural(experiment: Path, title: str) -> list[str]:
    (config,) = load_scenarios(str(experiment)).values()
    rows = _natural_rows(experiment)
    lines = [f"## {title}", ""]
    if not rows:
        return [*lines, "Not run yet.", ""]
    lines += [
        SPLITS.format(rounds=config.run.rounds, splits=max(row.allocations for row in rows)),
        "",
        *_head("method", "splits", "before", "after", "vs Local", "worst tenth"),
    ]
    for row in rows:
        both = _phase(row, "before"), _phase(row, "after")
        lines.append(_line(_name(row), row.allocations, *both, _gain(row), f"{row.worst_tenth:.1f}"))
    few = max(row.allocations for row in rows) < FEWEST
    return [*lines, "", *([standings.who_wins(rows), ""] if not few else ["1 split: no intervals, no tests.", ""])]


# -------------------------------------------------------------------------------------------------------------- cells


def _cost(row: MethodRow | None) -> str:
    """The points that malicious clients cost the honest ones."""
    points = None if row is None or row.attacked is None else row.attacked.points
    return "–" if points is None else f"{points:+.2f}"


def _title(config: Config) -> str:
    data = config.data
    rule = f"Dirichlet {data.alpha:g}" if data.alpha is not None else f"{data.classes_per_client} classes per client"
    names = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "fmnist": "Fashion-MNIST"}
    return f"{names.get(data.source, data.source)}, {rule}, {data.clients} clients"


def _value(row: MethodRow) -> float:
    return row.headline.last


def _best(row: MethodRow) -> float:
    return row.headline.best


def _phase(row: MethodRow, name: str) -> str:
    star, phase = "*" if row.evaluated == name else "", row.phase(name)
    spread = "" if phase.sd is None else f" ± {phase.sd:.2f}"
    spread += "" if phase.low is None else f" [{phase.low:.1f}, {phase.high:.1f}]"
    return f"{phase.last:.2f}{star}{spread}"


def _gain(row: MethodRow | None) -> str:
    if row is None or (gain := row.gain) is None:
        return "–"
    told = Answer(gain.points, gain.low, gain.high, gain.p_adjusted)
    return f"{told} {'/'.join(map(str, gain.clients))}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _folded(summary: str, lines: Sequence[str]) -> list[str]:
    """A long table that a reader opens."""
    return ['<details markdown="1">', f"<summary>{summary}</summary>", "", *lines, "", "</details>"]


def _head(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('*', chr(92) + '*') for cell in cells)} |"


def main(arguments: Sequence[str]) -> None:
    (HERE / "results").mkdir(exist_ok=True)
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
    figure(HERE / "results" / "ranks.svg")
    readme = HERE.parent / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
