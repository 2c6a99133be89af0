"""fedapa compare DIR"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui


@click.command(short_help="Compare the runs of a folder")
@click.argument("folder", metavar="[FOLDER]", type=click.Path(path_type=Path), required=False)
@click.option("--against", default="local", metavar="METHOD", help="The method that gains are counted against.")
@click.option("--clients", is_flag=True, help="Show the gain of every client.")
@ui.comparison_option
def command(folder: Path | None, against: str, clients: bool, form: str) -> None:
    """Compare the runs of FOLDER (default: the latest under ./runs), finished or still going, or of a results.json.

    Accuracy is pooled over all test samples, before and after local training. A star marks the one that the method's
    paper reports. ± is the standard deviation over allocations. "gain/equal/lose" counts clients against local training
    on the same allocation. "vs local" is their mean gain in points, with the p of a paired t-test over allocations,
    adjusted over the methods of the table (Holm). Clients of one allocation are not independent, so they are counted,
    not tested. Fewer than three allocations have no interval and no p. A method is "not distinguishable" from the
    highest if the same test, times the number of rivals, does not reject at 5 %. KiB is what one client receives and
    sends in one round. With several scenarios, methods that are in all of them are ranked, and Friedman's test shows
    whether the ranks could be chance. --format json adds confidence intervals, every client, and the commit, engine,
    processor and config hash of every run.

    Runs are compared at the last round that both have evaluated. Unfinished runs do not count beside finished runs of
    the same method.

    With malicious clients ([attack]), gains count honest clients only. "honest %" is their mean accuracy. "by attack"
    is how much that differs from the same clients' accuracy in the run of FOLDER without an attack. "weight on
    malicious %" is the weight that the mixtures of honest clients give to malicious ones.

    Where groups were planted (rules such as pathological or rotated-groups), "groups (ARI)" is how well a method found
    them in the last round, by its clusters or by its weights: the adjusted Rand index, 1 for the same groups, 0 for
    chance.
    """
    from fedapa.cli import common

    show = common.print_clients if clients else common.print_comparison
    folder = folder or common.newest_out()
    runs = show(folder, form, against)
    if form == "table":
        ui.say(f"made with {common.made_with(runs)}")
