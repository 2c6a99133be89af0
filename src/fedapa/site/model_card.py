"""MODEL_CARD.md: what a person at the site should know before trusting the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedapa.analysis import statistics
from fedapa.analysis.statistics import Interval
from fedapa.data.schema import Schema
from fedapa.data.site_description import RISK
from fedapa.federation import manifest
from fedapa.methods.method import Method
from fedapa.methods.wrappers import account_of
from fedapa.site.measures import Measure
from fedapa.site.silo_scores import ALONE, CLASSES, PLAIN, TUNED, Scored, reference, shown, table

MOST_SITES = 12  # that are listed one by one
UNEVEN = 0.1  # share of the even weight by which one must differ before the weights are listed
WORDS = {
    "θ": "the parameters of the feature extractor",
    "φ": "the parameters of the last layer",
    "ω": "all parameters of the model",
    "n": "the number of train rows",
}


class Facts(NamedTuple):
    """The content of a model card, read from a run."""

    site: str
    method: str
    title: str
    stays: str
    up: str
    rounds: int
    trained_on: Sequence[int]  # rows of every class; of numbers, of all
    tested_on: Sequence[int]
    own: Mapping[str, Interval]  # every measure of this very model on its test rows
    weights: Mapping[str, float]  # with which the server mixes other sites' models for this one; empty: none
    sites: Sequence[str]
    privacy: Sequence[str] = ()  # what a wrapper adds
    settings: str = ""  # of the training behind all scores
    sent: bool = True  # something left the site for it
    verdict: str = ""  # whether joining helped, on this very split
    flaw: str = ""  # why the model is of no use here
    measures: Sequence[Measure] = CLASSES
    details: Sequence[str] = ()  # threshold, calibration and subgroups, as paragraphs
    simulated: bool = False  # on one machine: nothing left
    by_split: Mapping[str, Sequence[float]] = {}  # the weights in every split, this model's included; empty: one


MEANING = {
    "accuracy": "share of right answers",
    "auc": "how often a row of a class gets a higher probability of it than another row; 0.5 is guessing",
    "average precision": "how pure the rows ranked first are; by guessing, the share of the class",
    "recall": "share of the rows of the rare class that are found",
    "brier": "mean squared error of the probabilities; 0 is best",
    "RMSE": "root of the mean squared error, in the unit of the target; 0 is best",
    "MAE": "mean absolute error, in the unit of the target; 0 is best",
    "R²": "1 is perfect, 0 as good as always saying the mean of the test rows, below 0 worse",
    "concordance": "of two rows, how often the one with the earlier event has the higher risk; 0.5 is guessing",
}


def write_card(facts: Facts, schema: Schema, scored: Sequence[Scored]) -> str:
    parts = [
        f"# Model of {facts.site}",
        f"**Of no use as it is: {facts.flaw}.** It was delivered on demand." if facts.flaw else "",
        _purpose(facts, schema),
        f"**Verdict: {facts.verdict}.**" if facts.verdict else "",
        _scores(facts, scored),
        *facts.details,
        _weights(facts),
        _rows(facts, schema),
        _privacy(facts),
        _limits(),
        _all_that_left(facts),
        _columns(schema),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _purpose(facts: Facts, schema: Schema) -> str:
    names = [name for name in facts.sites if name != facts.site]
    more = f" and {len(names) - MOST_SITES} more" if len(names) > MOST_SITES else ""
    others = ", ".join(names[:MOST_SITES]) + more
    what = ", ".join(schema.class_names) or "a number"
    if schema.label.startswith(RISK):
        what = "0.7 more is twice the risk at any time; compare rows of this site only"
    return (
        f"Predicts `{schema.label}` ({what}). Trained by {facts.title} in {facts.rounds}"
        f" rounds with {others or 'nobody else'}; personalized for {facts.site} and meant for use there.\n\n"
        "Use: `fedapa predict site-model/ new.csv`."
    )


def _rows(facts: Facts, schema: Schema) -> str:
    lines = ["## Rows", "", f"| {'class' if schema.classes else 'rows'} | train rows | test rows |", "|---|---|---|"]
    rows = zip(schema.class_names or ("all",), facts.trained_on, facts.tested_on, strict=True)
    return "\n".join([*lines, *(f"| {cell(name)} | {train} | {test} |" for name, train, test in rows)])


def _columns(schema: Schema) -> str:
    if not schema.columns:
        return f"## Inputs\n\nSamples of shape {list(schema.shape)}."
    lines = ["## Columns", "", f"{len(schema.columns)} columns become {len(schema.inputs)} inputs:", ""]
    for column in schema.columns:
        if column.kind == "number":
            missing = "; missing values are flagged" if column.indicator else ""
            lines.append(f"- {column.name}: number, mean {_brief(column.mean)}, scale {_brief(column.scale)}{missing}")
        else:
            lines.append(f"- {column.name}: one of {', '.join(column.levels)}")
    return "\n".join(lines)


def _brief(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def _scores(facts: Facts, scored: Sequence[Scored]) -> str:
    every = table([s for s in scored if s.site == facts.site], facts.measures)  # bootstraps take time
    names = {"local": "alone (local)", TUNED: "alone, network as held-out rows want it", PLAIN: "alone, plain model"}
    names |= {facts.method: f"with the federation ({facts.method})"} if facts.method != "local" else {}
    rows = [row for row in every if row["site"] == facts.site and row["method"] in names]
    titles = [measure.title for measure in facts.measures]
    lines = ["## Score on rows never trained on", ""]
    if rows:
        splits = rows[0]["splits"]
        lines += [_over(splits, facts), "", f"| trained | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
        for row in rows:
            name = names[row["method"]]
            cells = [shown(measure, row[measure.name]) for measure in facts.measures]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        rival = reference(scored)
        judge = facts.measures[0]
        gain = next((row[f"{judge.name} gain"] for row in rows if row["method"] == facts.method), None)
        if facts.method != "local" and gain is not None and facts.verdict:
            lines += ["", _fairness(rival, facts)]
        elif facts.method != "local" and gain is not None:
            how = "" if judge.sign > 0 else " (above 0: less of it)"
            beside = " over the better of the two tuned ways alone" if rival == ALONE else ""
            said = f"Gain in {judge.title} by joining{beside}{how}: {shown(judge, gain, signed=True)}."
            lines += ["", f"**{_verdict(gain)}** {said}", "", _fairness(rival, facts)]
        lines += ["", *_meanings(facts.measures), ""]
    if not facts.own:
        return "## Score on rows never trained on\n\nNot known: the rows of the run are no longer there."
    own = ", ".join(score_text(measure, facts.own[measure.name]) for measure in facts.measures)
    tested = sum(facts.tested_on)
    enough = tested >= statistics.FEWEST_ROWS
    exact = any(measure.is_share for measure in facts.measures)
    how = "95 % intervals: exact for the accuracy, else by bootstrap" if exact else "95 % bootstrap intervals"
    how = how if enough else "too few for an interval"
    lines.append(f"This very model on its {tested} test row{'s' if tested != 1 else ''} ({how}): {own}.")
    return "\n".join(lines)


def _meanings(measures: Sequence[Measure]) -> list[str]:
    """What every score says, for those who do not work with them."""
    return [f"- {measure.title}: {MEANING[measure.name]}." for measure in measures if measure.name in MEANING]


def _fairness(rival: str, facts: Facts) -> str:
    if rival == ALONE:
        return (
            f"Joined and local: {facts.settings}. The two tuned ways alone, and which of them is compared with, were"
            " chosen on rows held out from the train rows; they stay at the site."
        )
    return (
        f"Both trained equally long ({facts.settings}): training alone for longer or shorter may score"
        " otherwise, so try that before you believe in a gain."
    )


def score_text(measure: Measure, interval: Interval) -> str:
    title, percent, _ = measure.title.partition(" %")
    return f"{title} {shown(measure, interval)}{percent}"


def _over(splits: int, facts: Facts) -> str:
    if not any(measure.is_share for measure in facts.measures):
        count = "1 split" if splits == 1 else f"Mean over {splits} splits"
        return f"{count}{', 95 % confidence interval' if splits >= statistics.FEWEST else ''}."
    if splits >= statistics.FEWEST:
        few = "where few answers are wrong, that of the accuracy is the exact one of a single test set"
        return f"Mean over {splits} splits, 95 % confidence interval; {few}."
    count = "1 split" if splits == 1 else f"Mean over {splits} splits"
    return f"{count}; the interval of the accuracy is the exact one of a single test set, others have none."


def _verdict(gain: Interval) -> str:
    if gain.low is None or gain.high is None:
        return "The splits are too few or too alike to tell whether joining helped."
    if gain.low > 0:
        return "Joining helped under these settings."
    return "Joining hurt under these settings." if gain.high < 0 else "The data do not show whether joining helped."


def _weights(facts: Facts) -> str:
    if not facts.weights:
        return ""
    others = {name: weight for name, weight in facts.weights.items() if name != facts.site}
    own, even = facts.weights.get(facts.site, 0.0), sum(others.values()) / max(len(others), 1)
    lines = [
        "## Whose models were mixed in",
        "",
        f"For this site the server mixes the sites' feature extractors (all layers but the last). {own:.1%} of the"
        " mixture is this site's own.",
    ]
    if len(others) < 2:
        return "\n".join(lines)
    splits = min((len(found) for found in facts.by_split.values()), default=1)
    if splits < statistics.FEWEST:
        uneven = max(abs(weight - even) for weight in others.values()) >= UNEVEN * even
        listed, how = others if uneven else {}, "The weights of the others, from one run"
        none = f"The others count about equally ({even:.1%} each): no site stands out."
    else:
        listed = {name: others[name] for name in _beyond_chance(facts)}
        how = f"Over {splits} splits, these weights differ from an even {even:.1%} by more than chance. They"
        none = f"Over {splits} splits, no other site's weight differs from an even {even:.1%} by more than chance."
    if not listed:
        return "\n".join([*lines, none])
    lines += [f"{how} say whose models were used most, not who helped:", "", "| site | weight |", "|---|---|"]
    ordered = sorted(listed.items(), key=lambda pair: -pair[1])
    lines += [f"| {cell(name)} | {weight:.3f} |" for name, weight in ordered[:MOST_SITES]]
    if rest := ordered[MOST_SITES:]:
        lines += ["", f"The {len(rest)} others have {rest[0][1]:.3f} or less each."]
    return "\n".join(lines)


def _beyond_chance(facts: Facts) -> list[str]:
    """Other sites whose weight differs from the even one: an interval over the splits, corrected for all of them."""
    names = [name for name in facts.by_split if name != facts.site]
    shares = np.array([facts.by_split[name] for name in names])  # [sites, splits]
    overlap, level = sum(facts.tested_on) / max(sum(facts.trained_on), 1), 1 - 0.05 / len(names)
    gaps = [statistics.interval(row, overlap=overlap, level=level) for row in shares - shares.mean(0)]
    return [
        n
        for n, g in zip(names, gaps, strict=True)
        if g.low is not None and g.high is not None and not g.low <= 0 <= g.high
    ]


def cell(text: str) -> str:
    """A text as a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def told() -> list[tuple[str, list[str]]]:
    """What a site of a real federation tells beside its tensors, and when."""
    words = {"once": "once per run", "every round": "in every round", "while joined": "while the site was joined"}
    return [(words[when], list(dict.fromkeys(fields.values()))) for when, fields in manifest.said().items()]


def _privacy(facts: Facts) -> str:
    if not facts.sent:
        return "## Privacy\n\n- Nothing left the site for this model."
    lines = ["## Privacy", ""]
    if facts.simulated:
        lines += [
            "This run was a simulation on one machine. What is said here to have left would leave a site of a real"
            " federation.",
            "",
        ]
    lines += [
        f"- Left the site in every round: {in_words(facts.up)}. Stayed: the rows{_and(facts.stays)}."
        if facts.up != "–"
        else "- No tensor left the site.",
        "- Also left: counts, scores, hashes and times. The end of this card lists all of them.",
        "- The audit log, the states and this folder stay at the site.",
    ]
    if not facts.privacy:
        lines.append(
            "- Parameters can leak facts about the rows they were trained on (membership, sometimes more). Nothing here"
            " hides them from the server."
        )
    lines += [
        *(f"- {line}" for line in facts.privacy),
        "- The scaling in preprocessing.json holds means and standard deviations of columns: treat the folder as"
        " confidential as those.",
    ]
    return "\n".join(lines)


def _all_that_left(facts: Facts) -> str:
    if not facts.sent:
        return ""
    lines = ["## All that left beside the model"]
    for when, what in told():
        lines += ["", f"{when[0].upper()}{when[1:]}:", "", *(f"- {one}" for one in what)]
    return "\n".join(lines)


def _and(stays: str) -> str:
    return "" if stays == "–" else f" and the {in_words(stays)}"


def in_words(symbols: str) -> str:
    """What the symbols of the catalogue stand for."""
    symbols = re.sub(r"\bhead\b", "last layer (head)", symbols)
    return re.sub("[θφωn](?![a-zA-Z])", lambda found: WORDS[found[0]] if _stands_alone(found) else found[0], symbols)


def _stands_alone(found: re.Match[str]) -> bool:
    return found.start() == 0 or not found.string[found.start() - 1].isalpha()


def _limits() -> str:
    return (
        "## Limits\n\nA score on past rows of this site says nothing about other sites or later times. Not a medical"
        " device. Not checked for fairness between groups, beyond the scores by columns named in `sites.subgroups`."
    )


def privacy_of(method: Method, rounds: int) -> list[str]:
    """What a method says about the protection that it adds; models are delivered from simulations."""
    account = account_of(method, rounds, simulated=True)
    return [] if account is None else account.lines()
