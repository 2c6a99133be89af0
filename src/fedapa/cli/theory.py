"""fedapa theory"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedapa.cli import ui

if TYPE_CHECKING:
    from fedapa.theory import Measured

SHOWN = 10  # rounds in the table; JSON has all of them
HEADINGS = {
    "round": "round",
    "change": "change of the loss",
    "corrected": "corrected bound",
    "printed": "Theorem 1, printed",
    "mixing": "by mixing",
    "corrected_mixing": "corrected",
    "printed_mixing": "printed",
    "share": "others' share",
}


@click.command(short_help="Measure the convergence analysis on a small smooth problem")
@click.option(
    "--problem",
    type=click.Choice(["logistic", "tanh"]),
    default="logistic",
    show_default=True,
    help="Logistic regression, or one hidden layer.",
)
@click.option("--clients", type=click.IntRange(2, 64), default=4, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 1000), default=30, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=4, show_default=True, help="Runs to take means over.")
@click.option(
    "--eta",
    "etas",
    type=click.FloatRange(0),
    multiple=True,
    default=(0.01, 1e-6),
    show_default=True,
    help="Step size of the weights; may be given again.",
)
@click.option(
    "--sign",
    type=click.Choice(["descend", "printed"]),
    default="descend",
    show_default=True,
    help="Direction of Eq. 7.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for theory.svg, .pdf, .png, .json."
)
@ui.format_option
def command(problem: str, etas: tuple[float, ...], repeats: int, out: Path | None, form: str, **options: Any) -> None:
    """Set the measured one-round change of the loss against the bound of the paper's Theorem 1 and the corrected one.

    Real FedAPA, real rounds; every assumption of the theorem holds, with L1 and L2 proved, sigma² and the largest norm
    measured. docs/theory.md says where the printed proof does not cover the algorithm, and proves what does. Exit code
    1 if the corrected bound fails in any round of any client.
    """
    from fedapa.cli.common import check_writable
    from fedapa.errors import RunError
    from fedapa.theory import PROBLEMS, measure

    if out is not None:
        check_writable(out)
    with ui.progress() as bar:
        task = bar.add_task("repeats", total=len(etas) * repeats, note="")
        found = [
            measure(PROBLEMS[problem], eta, repeats=repeats, progress=lambda: bar.advance(task), **options)
            for eta in etas
        ]
    if out is not None:
        _keep(out, found)
    _show(found, form)
    if broken := sum(one.broken for one in found):
        raise RunError(f"the corrected bound fails in {broken} visits", "this is a bug: please report it")


def _report(found: Sequence[Measured]) -> list[dict[str, Any]]:
    return [{**one.summary(), "by_round": one.by_round()} for one in found]


def _show(found: Sequence[Measured], form: str) -> None:
    if form == "json":
        ui.dump(_report(found))
        return
    for one in found:
        facts, rounds = one.summary(), one.by_round()
        every = -(-len(rounds) // SHOWN)
        chosen = [row for row in rounds if (row["round"] - 1) % every == 0 or row is rounds[-1]]
        ui.show([_readable(row) for row in chosen], form, HEADINGS, f"{facts['problem']}, eta = {facts['eta']:g}")
        click.echo(_sentences(facts))


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    cells = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()}
    return {**cells, "printed": f"{cells['printed']} broken" if row["printed_broken"] else cells["printed"]}


def _sentences(facts: dict[str, Any]) -> str:
    lowered = ", ".join(f"{name} {share:.0%}" for name, share in facts["proxy_lowered"].items())
    return (
        f"L1 {facts['L1']:.3g} proved, {facts['L1_seen']:.3g} seen; L2 {facts['L2']:.3g} proved, {facts['L2_seen']:.3g}"
        f" seen; sigma² {facts['variance']:.3g}; Max {facts['max_norm']:.3g}\n"
        f"corrected bound: fails in {facts['corrected_broken']} of {facts['visits']} visits\n"
        f"Theorem 1 as printed: fails in {facts['printed_broken']} of {facts['rounds']} rounds\n"
        f"proxy loss of the weights lowered in: {lowered} of the visits\n"
    )


def _keep(out: Path, found: Sequence[Measured]) -> None:
    from fedapa.store.checkpoint import write_json
    from fedapa.store.run_folder import make_folder
    from fedapa.theory.figure import draw

    make_folder(out)
    write_json(out / "theory.json", {"found": _report(found)})
    ui.say(f"kept in {', '.join(map(str, [*draw(found, out), out / 'theory.json']))}")
