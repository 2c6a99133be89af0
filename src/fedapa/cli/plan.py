"""fedapa plan CONFIG"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fedapa.cli import ui

if TYPE_CHECKING:
    from fedapa.config.experiment import Parts
    from fedapa.config.sections import Config
    from fedapa.methods.privacy import Account
    from fedapa.sweep.estimate import Sizes
    from fedapa.training.task import Task

SHOWN = 50  # clients in a table
LEAST = 0.05  # seconds: less of the limit than this is not worth a measurement


@click.command(short_help="Check a config and say what it will cost")
@click.argument("config")
@ui.config_options
@click.option(
    "--limit", type=click.FloatRange(0), default=10.0, show_default=True, help="Seconds for the time estimate."
)
@click.option("--no-timing", is_flag=True, help="Train nothing, and say nothing about time.")
@ui.format_option
def command(
    config: str,
    methods: str | None,
    seeds: int | None,
    changes: tuple[str, ...],
    data_dir: str | None,
    limit: float,
    no_timing: bool,
    form: str,
) -> None:
    """Check CONFIG without running it: clients, bytes per client and round, time, memory, disk.

    The time is estimated from a few batches of one client, within --limit seconds for all methods together. Bytes and
    memory follow from shapes: nothing is allocated for them.
    """
    from fedapa.cli import common
    from fedapa.config.experiment import attack_of, load_data
    from fedapa.data.inspect import table
    from fedapa.methods.privacy import told

    wanted = common.read(config, methods, seeds, changes, data_dir)
    data = load_data(wanted, wanted.seeds[0])
    rows, accounts, doubts = _planned(wanted, 0.0 if no_timing else limit)
    if accounts:
        rows = [row | {"epsilon": a.short() if (a := accounts.get(row["method"])) else None} for row in rows]
    clients, attack = table(data), attack_of(wanted, len(data.clients), wanted.seeds[0])
    if attack is not None:
        clients = [{**row, "attack": attack.kind if i in attack.clients else ""} for i, row in enumerate(clients)]
    if form == "json":
        found: dict[str, Any] = {"clients": clients, "methods": rows, "fingerprint": data.fingerprint}
        found |= {} if attack is None else {"attack": attack._asdict()}
        found |= {"privacy": told(accounts)} if accounts else {}
        ui.dump(found | ({"warnings": doubts} if accounts or doubts else {}))
        return
    ui.show(clients[:SHOWN], form, title=f"{data.name}, seed {wanted.seeds[0]}, partition {data.fingerprint}")
    if len(clients) > SHOWN:
        click.echo(f"and {len(clients) - SHOWN:,} more clients; --format json has all")
    ui.show(rows, form, title=f"{wanted.run.rounds} rounds, seeds {', '.join(map(str, wanted.seeds))}")
    for line in told(accounts):
        click.echo(f"privacy: {line}")
    for line in doubts:
        ui.say(f"warning: {line}")
    if not no_timing:
        total = sum(row["hours"] for row in rows)
        ui.say(f"about {_clock(total * 3600)} for everything, estimated from a few batches of one client")


def _planned(wanted: Config, limit: float) -> tuple[list[dict[str, Any]], dict[str, Account], list[str]]:
    """The cost of every method, its privacy account, and reasons why it may learn nothing."""
    from fedapa.methods.wrappers import account_of
    from fedapa.simulation import doubts

    rows: list[dict[str, Any]] = []
    accounts: dict[str, Account] = {}
    warnings: list[str] = []
    known: tuple[float, float] | None = None  # seconds of a round and the relative cost of a method that was timed
    with ui.progress() as bar:
        one = bar.add_task("planning", total=len(wanted.methods), note="")
        for k, (name, parts) in enumerate(_all_parts(wanted)):
            bar.update(one, note=name)
            began = time.perf_counter()
            row = _sizes(name, parts)
            if limit > 0:
                seconds = _seconds(parts, limit / (len(wanted.methods) - k), wanted.run.workers, known)
                known, limit = (seconds, parts.method.relative_cost), max(limit - (time.perf_counter() - began), 1e-9)
                hours = seconds * parts.plan.rounds * len(wanted.seeds) / 3600
                row |= {"s/round": round(seconds, 2), "hours": round(hours, 3)}
            rows.append(row)
            account = account_of(parts.method, parts.plan.rounds, simulated=True)
            accounts |= {} if account is None else {name: account}
            sample = parts.data.clients[0].train.x[0]
            warnings += [f"{name}: {line}" for line in doubts(parts.method, parts.task, sample)]
            bar.advance(one)
    return rows, accounts, warnings


def _all_parts(wanted: Config) -> Iterator[tuple[str, Parts]]:
    """The parts of every method's run on the first seed; the model, which may be large, is built once."""
    from dataclasses import replace

    from fedapa.config.experiment import assemble, attack_of, load_data, method_from, single
    from fedapa.config.load import training_of
    from fedapa.methods.malicious import attacked

    first, seed = wanted.methods[0], wanted.seeds[0]
    parts = assemble(single(wanted, first, seed))
    attack = attack_of(wanted, parts.task.clients, seed)
    for name in wanted.methods:
        method, data = method_from(wanted, name), load_data(wanted, seed)
        if attack is not None:
            method, data = attacked(method, data, attack)
        task = replace(parts.task, training=training_of(wanted, name))
        yield name, parts._replace(method=method, task=task, data=data)


def _sizes(name: str, parts: Parts) -> dict[str, Any]:
    from fedapa.sweep import estimate
    from fedapa.training.engines.choice import engine_note

    method, task, data, plan = parts
    found = estimate.sizes(method, task, data.clients[0].train.x[0])
    held_out = any(client.validation is not None for client in data.clients)
    return {
        "method": name,
        "down KiB": round(found.down / 1024, 1),
        "up KiB": round(found.up / 1024, 1),
        "KiB/client/round": round((found.down + found.up) / 1024, 1),
        "state MB": round(estimate.states(found, task) / 1e6, 1),
        "disk MB/run": round(estimate.disk(found, task, plan, held_out) / 1e6, 1),
        "memory MB": _memory(found, task),
        "engine": engine_note(task),
        "recipe": task.training.told(),
    }


def _seconds(parts: Parts, budget: float, workers: int, known: tuple[float, float] | None) -> float:
    """Of a round; once the budget is spent, from the method before and what both say that they cost beside Local."""
    from fedapa.core.threads import available_cores
    from fedapa.sweep import estimate

    method, task, data, plan = parts
    if known is not None and budget < LEAST:
        return known[0] * method.relative_cost / known[1]
    found = estimate.seconds(method, task, data, budget)
    return estimate.per_round(found, float(task.sizes.sum()), task.clients, plan, workers or available_cores())


def _memory(found: Sizes, task: Task) -> int:
    """What this process has now, data and libraries, and what the run will make."""
    import resource  # not on Windows

    from fedapa.core.threads import available_cores
    from fedapa.sweep import estimate

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return round((used + estimate.memory(found, task, available_cores())) / 1e6)


def _clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
