"""fedapa plan CONFIG"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from fedapa.cli import ui

if TYPE_CHECKING:
    from fedapa.methods.privacy import Account


@click.command(short_help="Check a config and say what it will cost")
@click.argument("config")
@ui.config_options
@click.option("--no-timing", is_flag=True, help="Skip the two warm-up rounds behind the time estimate.")
@ui.format_option
def command(
    config: str,
    methods: str | None,
    seeds: int | None,
    changes: tuple[str, ...],
    data_dir: str | None,
    no_timing: bool,
    form: str,
) -> None:
    """Check CONFIG without running it: clients, bytes per client and round, time, memory, disk.

    The time is estimated from two warm-up rounds of every method.
    """
    import json

    from fedapa.cli import common
    from fedapa.config.experiment import attack_of, load_data
    from fedapa.data.inspect import table
    from fedapa.methods.privacy import Account, told

    wanted = common.read(config, methods, seeds, changes, data_dir)
    data = load_data(wanted, wanted.seeds[0])
    with ui.progress() as bar:
        one = bar.add_task("planning", total=len(wanted.methods), note="")
        rows, accounts, doubts = list[dict[str, Any]](), dict[str, Account](), list[str]()
        for name in wanted.methods:
            bar.update(one, note=name)
            row, account, doubt = _row(wanted, name, not no_timing)
            rows.append(row)
            accounts |= {} if account is None else {name: account}
            doubts += [f"{name}: {line}" for line in doubt]
            bar.advance(one)
    if accounts:
        rows = [row | {"epsilon": a.short() if (a := accounts.get(row["method"])) else None} for row in rows]
    clients, attack = table(data), attack_of(wanted, len(data.clients), wanted.seeds[0])
    if attack is not None:
        clients = [{**row, "attack": attack.kind if i in attack.clients else ""} for i, row in enumerate(clients)]
    if form == "json":
        found: dict[str, Any] = {"clients": clients, "methods": rows, "fingerprint": data.fingerprint}
        found |= {} if attack is None else {"attack": attack._asdict()}
        found |= {"privacy": told(accounts)} if accounts else {}
        click.echo(json.dumps(found | ({"warnings": doubts} if accounts or doubts else {}), indent=2))
        return
    ui.show(clients, form, title=f"{data.name}, seed {wanted.seeds[0]}, partition {data.fingerprint}")
    ui.show(rows, form, title=f"{wanted.run.rounds} rounds, seeds {', '.join(map(str, wanted.seeds))}")
    for line in told(accounts):
        click.echo(f"privacy: {line}")
    for line in doubts:
        ui.say(f"warning: {line}")
    if not no_timing:
        total = sum(row["hours"] for row in rows)
        ui.say(f"about {_clock(total * 3600)} for everything, estimated from two rounds of each method")


def _row(wanted: Any, name: str, timing: bool) -> tuple[dict[str, Any], Account | None, list[str]]:
    """The cost of a method, its privacy account, and reasons why it may learn nothing."""
    from fedapa.config.experiment import assemble, single
    from fedapa.core.tree import count_bytes
    from fedapa.methods.wrappers import account_of
    from fedapa.simulation import doubts, wire_bytes

    method, task, data, plan = assemble(single(wanted, name, wanted.seeds[0]))
    sample = data.clients[0].train.x[0]
    down, up = wire_bytes(method, task, sample)
    server, client = method.init(task, 0)
    states = count_bytes(server) + task.clients * (count_bytes(client) + 4 * (task.P + task.Q))
    row: dict[str, Any] = {
        "method": name,
        "down KiB": round(down / 1024, 1),
        "up KiB": round(up / 1024, 1),
        "KiB/client/round": round((down + up) / 1024, 1),
        "state MB": round(states / 1e6, 1),
        "disk MB/run": round(2 * states / 1e6 + 0.001 * task.clients * plan.rounds * 0.1 + 0.1, 1),
        "engine": task.engine,
    }
    if timing:
        seconds = _seconds_per_round(method, task, data, plan)
        row |= {
            "s/round": round(seconds, 2),
            "hours": round(seconds * plan.rounds * len(wanted.seeds) / 3600, 3),
            "memory MB": _peak_memory(),
        }
    return row, account_of(method, plan.rounds, simulated=True), doubts(method, task, sample)


def _peak_memory() -> int:
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _seconds_per_round(method: Any, task: Any, data: Any, plan: Any) -> float:
    from dataclasses import replace

    from fedapa.simulation import simulate

    ends: list[float] = []
    short = replace(plan, rounds=min(2, plan.rounds))
    begin = time.perf_counter()
    simulate(method, task, data, short, progress=lambda log: ends.append(time.perf_counter()))
    return ends[-1] - (ends[-2] if len(ends) > 1 else begin)


def _clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
