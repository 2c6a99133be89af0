"""fedapa audit FOLDER"""

from __future__ import annotations

from pathlib import Path

import click

from fedapa.cli import ui
from fedapa.errors import InputError, RunError


@click.command(short_help="Verify and show the audit log of a coordinator or a site")
@click.argument("folder", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option("--expect", metavar="HASH", help="A hash noted earlier: its line must still be in the log.")
@click.option("--last", type=click.IntRange(0), default=20, show_default=True, help="Lines to show.")
@ui.format_option
def command(folder: Path, expect: str | None, last: int, form: str) -> None:
    """Check that no line of FOLDER's audit log was changed, removed or inserted, and show the last ones.

    FOLDER is a coordinator's folder or a site's kit. Keep the printed hash somewhere else: with
    --expect, it shows later that the log up to there is unchanged. Of a run's folder, the
    checksums in run.db are verified instead.
    """
    from fedapa.federation import audit_log

    if (folder / "run.db").is_file():
        _verify_run(folder, form)
        return
    head = audit_log.verify(folder, expect)
    rows = audit_log.read(folder)[-last:] if last else []
    if form == "json":
        ui.dump({"lines": head.number, "hash": head.hash, "last": rows})
        return
    for row in rows:
        rest = {key: value for key, value in row.items() if key not in ("number", "at", "event", "before", "hash")}
        click.echo(f"{row['number']:6d} {row['at']} {row['event']} {_words(rest)}".rstrip())
    click.echo(f"{head.number} lines, chain valid; the last has the hash {head.hash}")


def _verify_run(folder: Path, form: str) -> None:
    from fedapa.store import run_db

    with run_db.reading(folder / "run.db") as db:
        damaged, rounds = run_db.damaged_rounds(db), len(run_db.round_seconds(db))
    if damaged is None:
        raise InputError(f"{folder / 'run.db'} has no checksums", "an older version wrote it")
    if damaged:
        hint = "restore it from a copy: it was edited, or the disk is failing"
        raise RunError(f"{folder / 'run.db'} holds other numbers of round {damaged[0] + 1} than were written", hint)
    if form == "json":
        ui.dump({"rounds": rounds, "damaged": damaged})
    else:
        click.echo(f"{rounds} rounds, all as they were written")


def _words(facts: dict[str, object]) -> str:
    from fedapa.federation.messages import plain

    return " ".join(f"{key}={plain(value)}" for key, value in facts.items())
