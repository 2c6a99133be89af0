"""fedapa submit RUNS"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedapa.cli import ui

if TYPE_CHECKING:
    from fedapa.analysis.method_rows import MethodRow


@click.command(short_help="Check runs and add them to a leaderboard")
@click.argument("runs", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--board", required=True, metavar="CONFIG", help="The scenarios of the board, for example experiments/board.toml."
)
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of results that the runs are added to; without it they are only checked.",
)
@click.option("--by", default="", metavar="NAME", help="Who hands them in; shown beside the row.")
@click.option("--replay", type=click.IntRange(0), default=0, show_default=True, help="Play so many of the runs again.")
@ui.format_option
def command(runs: Path, board: str, to: Path | None, by: str, replay: int, form: str) -> None:
    """Check the runs of a folder, as `fedapa sweep` makes it, and add them to a file of results.

    Checked are: data, model, rounds and participation as the board has them, the allocation of every seed, at least
    three allocations and the first ones of the board, every round in run.db, summaries that follow from the clients'
    scores, and the laws where a method is not shipped. Other settings of training are allowed and shown as the recipe.
    """
    from fedapa.analysis import collected, comparison, result_sets, submission
    from fedapa.config.grid import load_scenarios
    from fedapa.errors import InputError

    found = result_sets.load(runs)
    checked = submission.check(found, load_scenarios(board))
    faults = checked.faults or submission.replay(found, replay)
    if faults:
        listed = "".join(f"\n  {fault}" for fault in faults)
        raise InputError(f"{len(faults)} faults:{listed}", "mend them and submit again; nothing was added")
    rows = [row | {"by": by, "recipe": checked.recipes.get(row["label"], {})} for row in result_sets.as_dicts(found)]
    if to is not None:
        result_sets.write_file(to, collected.merged(collected.read(to) if to.is_file() else [], rows))
    ui.show([_shown(row) for row in comparison.table(found)], form)
    ui.say(f"added {len(found)} runs to {to}" if to else f"{len(found)} runs are sound; --to FILE adds them")


def _shown(row: MethodRow) -> dict[str, Any]:
    found = {"scenario": row.scenario, "method": row.method, "allocations": row.allocations}
    return found | {row.score.name: round(row.headline.last, row.score.digits)}
