"""Where a sweep is played: --on WORD."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedapa.core.threads import available_cores
from fedapa.errors import InputError, did_you_mean
from fedapa.sweep import pool
from fedapa.sweep.dispatch import Dispatch, Place
from fedapa.sweep.pool import Event, Runs

Play = Callable[[Sequence[Runs], Callable[[Event], None]], None]
KINDS = ("here", "ray", "slurm", "ssh")
HINT = f"choose {', '.join(KINDS)}; see `fedapa sweep --help`"


def player(on: str, jobs: int | None, out: Path) -> Play:
    """Plays runs there, ``jobs`` at a time."""
    kind, words, settings = parse(on)
    if kind == "here":
        return lambda items, report: pool.play(items, jobs or available_cores(), report)

    def play(items: Sequence[Runs], report: Callable[[Event], None]) -> None:
        if runs := [path for item in items for path in item]:
            Dispatch(_places(kind, words, settings, jobs, out, len(runs)), runs).play(report)

    return play


def _places(
    kind: str, words: list[str], settings: dict[str, str], jobs: int | None, out: Path, runs: int
) -> Sequence[Place]:
    if kind == "ray":
        from fedapa.sweep.places import ray_cluster

        return ray_cluster.places(words[0] if words else "", jobs)
    if kind == "slurm":
        from fedapa.sweep.places import slurm_queue

        return slurm_queue.places(out / ".slurm", settings, jobs, runs)
    from fedapa.sweep.places import ssh_hosts

    return ssh_hosts.places(words, settings, jobs)


def parse(on: str) -> tuple[str, list[str], dict[str, str]]:
    """The kind of place, its words and its settings."""
    kind, _, rest = on.partition(":")
    if kind not in KINDS:
        raise InputError(f"--on {on!r} is no place", did_you_mean(kind, KINDS, HINT))
    if kind == "ray":
        return kind, [on if rest.startswith("//") else rest] if rest else [], {}
    parts = [part for part in rest.split(",") if part]
    words = [part for part in parts if "=" not in part]
    settings = dict(part.split("=", 1) for part in parts if "=" in part)
    if kind == "here" and parts:
        raise InputError(f"--on {on!r}: here takes no words", HINT)
    if kind == "slurm" and words:
        raise InputError(
            f"--on {on!r}: {words[0]!r} is not KEY=VALUE", "for example slurm:partition=cpu,timeout_min=600"
        )
    if kind == "ssh" and not words:
        raise InputError(f"--on {on!r} names no host", "for example ssh:anna*4,ben")
    return kind, words, settings
