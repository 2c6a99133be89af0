"""From gathered runs to one HTML page: words and numbers here, their order and looks in page.html and page.css."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedapa.analysis import standings
from fedapa.analysis.method_rows import Gain, MethodRow
from fedapa.analysis.run_reader import Gathered, Run, Scenario, gather, label_counts, title_of
from fedapa.analysis.statistics import FEWEST
from fedapa.core.scores import Score
from fedapa.methods.catalogue import METHODS
from fedapa.methods.papers import PAPERS
from fedapa.report import drawing, figures, paper
from fedapa.report.drawing import signed
from fedapa.report.drawn import Job, Picture, draw_all
from fedapa.store.atomic_io import PUBLIC, make_folder, write_atomically

if TYPE_CHECKING:
    from fedapa.analysis.statistics import Ranks

Step = Callable[[str, int, int], None]  # what was drawn, how many so far, of how many
NONE = "–"
RANKS = "ranks"  # the figure over all scenarios
MOST_NAMES = 60  # clients whose groups are told by name


class Plot(NamedTuple):
    """A figure of a scenario: how it is drawn and what its caption says."""

    name: str
    draw: Callable[[Scenario], figures.Drawn]
    title: str
    caption: str


PLOTS = (
    Plot(
        "curves", figures.convergence, "Convergence",
        "Test {score} round by round, of the model that each method is evaluated by, with the last value beside its "
        "name; means over seeds (band: least to most), in the rounds that all of them have. Where some methods end far "
        "below the best, the upper panel shows the others alone.",
    ),
    Plot(
        "phases", figures.phases, "Before and after local training",
        "One panel per method, best first: what arrived at the clients (dashed) and what they made of it (solid); "
        "Local behind them in grey.",
    ),
    Plot(
        "losses", figures.losses, "Train and test loss",
        "One panel per method, best first: the loss of the batches that clients trained on, each before its step and "
        "with the method's own terms other than a pull towards an anchor (dashed), and the test loss of the evaluated "
        "model (solid).",
    ),
    Plot(
        "gains", figures.gains, "Who gains over Local, who loses",
        "One dot per client and seed: how much better its {score} is with the method than alone, in the last round "
        "that both have, same allocation. The bar is the mean over clients, the numbers count winners and "
        "losers.{scale}",
    ),
    Plot(
        "who", figures.who, "Client by client",
        "Every client of {focus}, with the number of its train samples; of many clients, how their gains are spread.",
    ),
    Plot(
        "weights", figures.weights, "Who learns from whom",
        "{watched}: row i is the mixture that client i receives, column j the client that it comes from; the diagonal "
        "is left out, its mean is in the title.{alike}",
    ),
    Plot(
        "course", figures.course, "Weights over the rounds",
        "{watched}: the weight of a client's own model (mean, and range over clients){correlated}.",
    ),
    Plot(
        "collaborators", figures.collaborators, "With how many, and how fast that changes",
        "First run of every method that shows its weights. Effective number of others in a client's mixture, 1 / Σ b² "
        "with b the weights of the others made to sum to 1, mean over clients; and the share of all weight that went "
        "from one client to another since the round before. With malicious clients, the weight that honest ones give "
        "them.",
    ),
    Plot(
        "groups", figures.found_groups, "Groups found over the rounds",
        "Adjusted Rand index between the planted groups and those of every method that has weights or clusters: 1 for "
        "the same groups, 0 for chance. By weights, two clients are joined if each gives the other more than half of "
        "an even share of what it gives to others; groups are what hangs together. Means over seeds.",
    ),
    Plot(
        "partition", figures.partition, "Who holds what",
        "Train samples per client{by_class}{allocation}.",
    ),
    Plot(
        "bytes", figures.bytes_score, "Bytes against {score}",
        "What one client receives and sends in one round, and the {score} of the last round.",
    ),
    Plot(
        "time", figures.time_split, "Where the time goes",
        "Seconds of the clock per round on the machine named below. Clients' time is shared out by what they did; "
        "checkpoints are written beside the next round and are not in it. Runs side by side slow each other down.",
    ),
)  # fmt: skip


# What captions add where clients have classes.
LABELS_ALIKE = (
    " Last panel: the share of labels that two clients have in common. Clients are clustered by their labels, the same "
    "order everywhere."
)
LABELS_CORRELATED = (
    ", and Spearman's rank correlation between the weights of the others and the labels in common: above 0, similar "
    "clients get more weight"
)


class Shown(NamedTuple):
    """A figure on the page, or the line that stands in its place."""

    name: str
    title: str
    caption: str
    svg: str
    missing: str


@dataclass(frozen=True)
class Section:
    """One scenario on the page."""

    key: str
    scenario: Scenario
    tiles: list[tuple[str, str, str]]  # what, value, remark
    verdict: list[str]
    scores: list[dict[str, Any]]
    gains: list[dict[str, Any]]
    costs: list[dict[str, Any]]
    has_paper: bool
    has_seeds: bool
    deviations: list[str]
    facts: list[tuple[str, str]]
    settings: list[tuple[str, str]]
    ties: list[dict[str, Any]]
    plots: dict[str, Shown]

    @property
    def gain_notes(self) -> list[str]:
        """Why gains have no interval and no p, each reason once."""
        notes = dict.fromkeys(row["note"] for row in self.gains if row["note"])
        return [f"No interval and no p: {note}" for note in notes]

    @property
    def score(self) -> Score:
        return self.scenario.score

    @property
    def first(self) -> str:
        return first_of(self.score)

    @property
    def has_planted(self) -> bool:
        return any(run.result.groups_found for run in self.scenario.runs)

    @property
    def has_malicious(self) -> bool:
        return any(run.result.attackers for run in self.scenario.runs)


def write(
    folder: Path, out: Path, figure_folder: Path | None = None, step: Step = lambda what, done, total: None
) -> list[Path]:
    """Write the page, and its figures as files if a folder for them is given; the paths of all that was written."""
    found = gather(folder)
    make_folder(out.parent)
    files: list[Path] = []
    if figure_folder is not None:
        make_folder(figure_folder)
    text = render(found, folder.absolute().name, figure_folder, files, step)
    write_atomically(out, text.encode(), PUBLIC)
    return [out, *files]


def render(found: Gathered, name: str, figure_folder: Path | None, files: list[Path], step: Step) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    look = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    ranks = _ranks(found.scenarios)
    pictures = _Pictures(found.scenarios, ranks, figure_folder, step)
    files += pictures.files
    sections = [_section(k, scenario, pictures) for k, scenario in enumerate(found.scenarios)]
    runs = [run for scenario in found.scenarios for run in scenario.runs]
    return look.get_template("page.html").render(
        name=name,
        made=time.strftime("%Y-%m-%d %H:%M"),
        colours=drawing.COLOURS,
        sections=sections,
        overview=_overview(found.scenarios, ranks, pictures),
        counts=_counts(found),
        troubles=found.troubles,
        runs=[_run_row(run) for run in runs],
        versions=_versions(runs),
        citations=_citations(runs),
        paper=PAPERS[paper.tables()["paper"]],
        css=look.get_template("page.css").render(colours=drawing.COLOURS),
    )


class _Pictures:
    """All figures of a page by name; drawn at once, so that several cores can share the work."""

    def __init__(self, scenarios: Sequence[Scenario], ranks: Ranks | None, folder: Path | None, step: Step) -> None:
        jobs = [
            Job(f"{_key(k, scenario)}-{plot.name}", partial(plot.draw, scenario))
            for k, scenario in enumerate(scenarios)
            for plot in PLOTS
        ]
        jobs += [Job(RANKS, partial(figures.mean_ranks, ranks))] if ranks is not None else []
        self.files: list[Path] = []
        self._found: dict[str, Picture] = {}
        for job, picture in zip(jobs, draw_all(jobs, folder), strict=True):
            self._found[job.name] = picture
            self.files += picture.files
            step(job.name, len(self._found), len(jobs))

    def show(self, name: str, title: str, caption: str) -> Shown:
        svg, missing, _ = self._found[name]
        return Shown(name, title, caption, drawing.inline(svg, name, f"{title}. {caption}") if svg else "", missing)


# ----------------------------------------------------------------------------------------------------- one scenario


def _key(k: int, scenario: Scenario) -> str:
    """What its part of the page and its figures are called."""
    return f"s{k + 1}-{re.sub(r'[^a-z0-9]+', '-', scenario.title.lower()).strip('-')}"[:60]


def _section(k: int, scenario: Scenario, pictures: _Pictures) -> Section:
    key = _key(k, scenario)
    rows = _ranked(scenario)
    printed = {row.method: _printed(scenario, row.method) for row in rows}
    watched, seeds = figures.watched(scenario), sorted({run.result.seed for run in scenario.runs})
    has_classes = label_counts(scenario.first.clients) is not None
    words = {
        "alike": LABELS_ALIKE if has_classes else "",
        "correlated": LABELS_CORRELATED if has_classes else "",
        "by_class": " and class, area is number; of many clients, how many of them they have" if has_classes else "",
        "focus": title_of(figures.focus(scenario)),
        "watched": f"{title_of(watched.label)}, seed {watched.result.seed}" if watched else "",
        "score": scenario.score.name,
        "scale": " Linear up to 10 points, logarithmic beyond." if scenario.score.is_share else "",
        "allocation": f", allocation of seed {scenario.first.result.seed}" if len(seeds) > 1 else "",
    }
    plots = {
        plot.name: pictures.show(f"{key}-{plot.name}", _fill(plot.title, words), _fill(plot.caption, words))
        for plot in PLOTS
    }
    has_paper = any(p.accuracy is not None for p in printed.values())
    return Section(
        key, scenario, _tiles(scenario, rows, printed), _verdict(scenario, rows),
        [_score_row(row, _rank(row, rows), printed[row.method]) for row in rows],
        [_gain_row(row) for row in rows],
        [_cost_row(row, scenario, printed[row.method]) for row in rows],
        has_paper, any(row.allocations > 1 for row in rows),
        paper.deviations(scenario.first.config) if has_paper else [],
        _facts(scenario, seeds), _settings(scenario),
        [_tie_row(tie) for tie in figures.ties(scenario)], plots,
    )  # fmt: skip


def _fill(text: str, words: dict[str, str]) -> str:
    """Names are put in as they are, whatever brackets they hold."""
    return re.sub(r"\{(\w+)\}", lambda found: words[found[1]], text)


def _ranked(scenario: Scenario) -> list[MethodRow]:
    """Best first; methods that are at an earlier round than others come after those."""
    return sorted(scenario.rows, key=lambda row: (-row.round, figures.place(scenario, row.method)))


def _rank(row: MethodRow, rows: Sequence[MethodRow]) -> str:
    """Its place among the methods at the same round; none for those at an earlier one."""
    return str(rows.index(row) + 1) if row.round == rows[0].round else NONE


def _printed(scenario: Scenario, label: str) -> paper.Printed:
    run = scenario.of(label)[0]
    return paper.printed(run.config, run.settings)


def _tiles(
    scenario: Scenario, rows: Sequence[MethodRow], printed: dict[str, paper.Printed]
) -> list[tuple[str, str, str]]:
    label = figures.focus(scenario)
    row = next(row for row in rows if row.method == label)
    best, rank, score = rows[0], _rank(row, rows), scenario.score
    shown = f"{score.text(best.headline.last)} in round {best.round}"
    place = f"round {row.round}: not ranked" if rank == NONE else f"rank {rank} of {len(rows)}, {_standing(row)}"
    tiles = [
        (first_of(score), title_of(best.method), shown),
        (title_of(label), score.text(row.headline.last), place),
    ]
    if (gain := row.gain) is not None:
        better, equal, worse = gain.clients
        counts = f"{better} clients gain, {equal} equal, {worse} lose"
        if better + equal + worse > len(scenario.first.clients):
            counts += ", over all allocations"
        where = "" if gain.round == row.rounds_planned else f", round {gain.round}"
        remark = f"{score.points}; {counts}{sure(gain.p_adjusted)}{where}"
        tiles.append(("against Local", signed(gain.points, score.digits), remark))
    told = printed[label].accuracy
    if told is not None and np.isfinite(row.headline.best):
        gap = row.headline.best - told
        tiles.append(("against the paper", signed(gap), f"best round {score.number(told + gap)}, printed {told:.2f}"))
    return tiles


def _verdict(scenario: Scenario, rows: Sequence[MethodRow]) -> list[str]:
    """What the numbers say, the unpleasant included."""
    told, score, value = [], scenario.score, {r.method: figures.last(scenario, r.method) for r in rows}
    if line := standings.who_wins(rows, title_of):
        told.append(line)
    local = next((row for row in rows if row.method == "local"), None)
    if local is None:
        told.append("Local is not among these runs: nobody can say who gains by taking part.")
    elif len(rows) > 1:
        alone, beside = value["local"], [row.method for row in rows if row.round == local.round]
        worse = [title_of(name) for name in beside if score.sign * value[name] < score.sign * alone]
        side = "below" if score.better == "higher" else "above"
        told.append(
            f"{side.capitalize()} Local ({score.text(alone)}): {', '.join(worse)}."
            if worse
            else f"No method is {side} Local ({score.text(alone)})."
        )
    counts = {row.allocations for row in rows}
    if max(counts) < FEWEST:
        told.append(f"Fewer than {FEWEST} allocations: no intervals, no tests; gaps of a few points may be chance.")
    elif len(counts) > 1:
        told.append("Methods have different numbers of allocations; their means are over different ones.")
    return told


def first_of(score: Score) -> str:
    """What the best is called: of errors it is the lowest."""
    return "highest" if score.better == "higher" else "lowest"


def _standing(row: MethodRow) -> str:
    first, verdict = first_of(row.score), row.standing.verdict
    return {"best": f"the {first}", "behind": f"behind the {first}"}.get(verdict, verdict)


def percent(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) and np.isfinite(value) else NONE


def sure(p: float | None) -> str:
    return "" if p is None else f", p {p:.3f}" if p >= 0.001 else ", p <\u202f0.001"


def _score_row(row: MethodRow, rank: str, printed: paper.Printed) -> dict[str, Any]:
    best, low, high = row.headline.best, row.headline.low, row.headline.high
    known = printed.accuracy is not None and np.isfinite(best)
    return {
        **_name(row),
        "rank": rank,
        **{phase: _with_spread(row, phase) for phase in ("before", "after")},
        "evaluated": row.evaluated,
        "standing": _standing(row),
        "interval": NONE if low is None or high is None or not np.isfinite(low) else _range(low, high, row.score),
        "best": row.score.number(best),
        "paper": percent(printed.accuracy),
        "gap": signed(best - printed.accuracy) if known and printed.accuracy is not None else NONE,
        "sign": 0 if not known or printed.accuracy is None else int(np.sign(round(best - printed.accuracy, 2))),
    }


def _range(low: float, high: float, score: Score) -> str:
    digits = 1 if score.is_share else score.digits
    return f"{low:.{digits}f} to {high:.{digits}f}"


def _name(row: MethodRow) -> dict[str, Any]:
    remark = "" if row.rounds_done == row.rounds_planned else f"{row.rounds} rounds"
    return {
        "rank": 0,
        "label": row.method,
        "title": title_of(row.method),
        "allocations": row.allocations,
        "remark": remark,
    }


def _with_spread(row: MethodRow, phase: str) -> str:
    found, score = row.phase(phase), row.score
    tail = "" if found.sd is None or not np.isfinite(found.sd) else f" ± {score.number(found.sd)}"
    return score.number(found.last) + tail


def _gain_row(row: MethodRow) -> dict[str, Any]:
    served = {"worst": row.score.number(row.worst_client), "tenth": row.score.number(row.worst_tenth)}
    return {**_name(row), **_gained(row.gain, row.score), "note": row.gain_note, **served}


def _gained(gain: Gain | None, score: Score) -> dict[str, Any]:
    if gain is None:
        return dict.fromkeys(("better", "equal", "worse", "points", "interval", "p", "round"), NONE) | {"sign": 0}
    ends = [NONE if end is None else signed(end, score.digits) for end in (gain.low, gain.high)]
    return {
        **dict(zip(("better", "equal", "worse"), gain.clients, strict=True)),
        "points": signed(gain.points, score.digits),
        "sign": int(np.sign(round(gain.points, score.digits))),
        "interval": NONE if gain.low is None else " to ".join(ends),
        "p": sure(gain.p_adjusted).removeprefix(", p ") or NONE,
        "round": gain.round or NONE,
    }


def _tie_row(tie: figures.Ties) -> dict[str, Any]:
    sizes = [len(members) for members in tie.groups]
    weight = tie.run.result.attacker_weight
    return {
        "label": tie.run.label,
        "title": title_of(tie.run.label),
        "round": tie.round,
        "own": _weight(tie.own),
        "partners": f"{tie.partners.mean():.1f} ({tie.partners.min():.1f} to {tie.partners.max():.1f})",
        "moved": NONE if tie.moved is None else f"{_weight(100 * tie.moved)} %",
        "malicious": f"{100 * weight[-1]:.1f} %" if weight else NONE,
        "groups": "; ".join(", ".join(members) for members in tie.groups) if sum(sizes) <= MOST_NAMES else
        f"{len(sizes)} groups of {min(sizes)} to {max(sizes)} clients",
        "alone": len(tie.run.clients) - sum(sizes),
    }  # fmt: skip


def _weight(value: float) -> str:
    """Two digits; a power of ten where a run diverged."""
    return f"{value:.2f}" if abs(value) < 1e4 else f"{value:.0e}"


def _cost_row(row: MethodRow, scenario: Scenario, printed: paper.Printed) -> dict[str, Any]:
    runs = scenario.of(row.method)
    return {
        **_name(row),
        "kib": f"{row.kib:,.1f}",
        "paper_kib": NONE if printed.kib is None else f"{printed.kib:,.0f}",
        "mib": f"{np.mean([run.mib for run in runs]):,.1f}",
        "seconds": f"{np.mean([run.spent.whole for run in runs]):.2f}",
        "paper_seconds": NONE if printed.seconds_per_round is None else f"{printed.seconds_per_round:.0f}",
        "whole": _duration(row.seconds),
    }


def _duration(seconds: float) -> str:
    if not np.isfinite(seconds):
        return NONE
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 1 else f"{minutes:.1f} min" if minutes < 60 else f"{minutes / 60:.1f} h"


def _facts(scenario: Scenario, seeds: Sequence[int]) -> list[tuple[str, str]]:
    """The config that all runs of a scenario share, as key and value."""
    config = scenario.first.config
    found = [
        (f"{table}.{key}", _plain(value))
        for table in ("data", "model", "objective", "training", "run", "attack")
        for key, value in (config.get(table) or {}).items()
        if key != "data_dir"
    ]
    prints = sorted({run.result.partition for run in scenario.runs})
    return [*found, ("seeds", ", ".join(map(str, seeds))), ("allocations (fingerprints)", ", ".join(prints))]


def _plain(value: Any) -> str:
    return " to ".join(map(str, value)) if isinstance(value, list) else str(value)


def _settings(scenario: Scenario) -> list[tuple[str, str]]:
    firsts = [(row.method, scenario.of(row.method)[0]) for row in scenario.rows]
    return [(title_of(label), run.about.get("method") or NONE) for label, run in firsts]


# ---------------------------------------------------------------------------------------------------- the whole page


class Overview(NamedTuple):
    """All scenarios side by side."""

    titles: list[str]
    rows: list[tuple[str, list[str], str]]  # method, scores, mean rank
    p: str
    plot: Shown | None
    score: str  # what the numbers are


def _overview(scenarios: Sequence[Scenario], ranks: Ranks | None, pictures: _Pictures) -> Overview | None:
    if len(scenarios) < 2:
        return None
    labels = list(dict.fromkeys(row.method for scenario in scenarios for row in scenario.rows))
    mean = ranks.mean_rank if ranks else {}
    labels.sort(key=lambda label: mean.get(label, np.inf))
    cells = {(scenario.title, row.method): row for scenario in scenarios for row in scenario.rows}
    rows = [
        (
            title_of(label),
            [_cell(cells.get((scenario.title, label))) for scenario in scenarios],
            percent(mean.get(label)),
        )
        for label in labels
    ]
    caption = (
        "By the last round of the model that each method is evaluated by, of the methods that are in every scenario; "
        f"means over {ranks.allocations if ranks else 0} of the allocations in every cell."
    )
    if ranks is not None and ranks.difference is not None:
        caption += f" A bar at the right joins methods whose ranks differ by less than {ranks.difference:.1f}: they are"
        caption += " not told apart (Nemenyi, 5 %)."
    plot = pictures.show(RANKS, "Mean ranks", caption) if ranks else None
    p = "" if ranks is None or ranks.p is None else sure(ranks.p).removeprefix(", ")
    names = " and ".join(dict.fromkeys(scenario.score.heading for scenario in scenarios))
    return Overview([scenario.title for scenario in scenarios], rows, p, plot, names[0].upper() + names[1:])


def _ranks(scenarios: Sequence[Scenario]) -> Ranks | None:
    rows = [row for scenario in scenarios for row in scenario.rows if np.isfinite(figures.last(scenario, row.method))]
    return standings.ranks(rows)


def _cell(row: MethodRow | None) -> str:
    return NONE if row is None else _with_spread(row, row.evaluated)


def _counts(found: Gathered) -> list[str]:
    """How many runs there are, by how they stand."""
    states = [run.result.status for scenario in found.scenarios for run in scenario.runs]
    states += [trouble.status for trouble in found.troubles]
    words = {"running": "running or cut off"}
    return [f"{states.count(state)} {words.get(state, state)}" for state in dict.fromkeys(sorted(states))]


def _run_row(run: Run) -> dict[str, Any]:
    result = run.result
    return {
        "folder": str(result.folder),
        "scenario": result.scenario,
        "title": title_of(run.label),
        "seed": result.seed,
        "status": "running or cut off" if result.status == "running" else result.status,
        "rounds": f"{result.rounds_done}/{result.rounds}",
        "seconds": _duration(result.seconds),
        "engine": result.provenance.engine,
        "commit": result.provenance.commit,
        "config": result.provenance.config,
        "reason": run.about.get("reason", ""),
    }


def _versions(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Every version and machine behind the numbers; several where runs differ."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        env = dict(run.environment)
        dates = str(env.pop("date", ""))[:10]
        packages = env.pop("packages", {})
        told = {"date": dates, **env, **(packages if isinstance(packages, dict) else {}), **_code(run)}
        for key, value in told.items():
            if value != "":
                found.setdefault(key, {})[str(value)] = None
    return [(key, ", ".join(sorted(values))) for key, values in found.items()]


def _code(run: Run) -> dict[str, Any]:
    found = run.result.provenance
    numbers = f"{found.numerics} (revision {found.revision} of {run.label})" if found.revision else found.numerics
    return {"commit": found.commit, "processor": found.processor, "numerics version": numbers}


def _citations(runs: Iterable[Run]) -> list[tuple[str, str, str]]:
    """(methods, reference, BibTeX) of every paper behind these runs, and of the one whose numbers are shown."""
    used: dict[str, list[str]] = {}
    for run in runs:
        name = paper.base_of(run.config) or run.label
        if name in METHODS and METHODS[name].paper:
            titles = used.setdefault(METHODS[name].paper, [])
            if METHODS[name].title not in titles:
                titles.append(METHODS[name].title)
    used.setdefault(paper.tables()["paper"], [])
    ordered = sorted(used.items(), key=lambda pair: PAPERS[pair[0]].year)
    return [(", ".join(titles), _reference(key), PAPERS[key].bibtex(key)) for key, titles in ordered]


def _reference(key: str) -> str:
    """A BibTeX entry in words: no braces, no escapes."""
    entry = PAPERS[key]
    authors = entry.authors.replace(" and ", ", ").replace('{\\"u}', "ü")
    return re.sub(r"[{}]", "", f"{authors}: {entry.title}. {entry.venue}, {entry.year}.")
