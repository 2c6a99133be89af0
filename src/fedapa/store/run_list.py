"""Where runs are, by the files that a run folder has; reading them needs no torch."""

from __future__ import annotations

from pathlib import Path

from fedapa.store.run_settings import CONFIG


def runs_under(folder: Path) -> list[Path]:
    """The run folders at, right below or two levels below a folder (a sweep's), in the order of their names."""
    if _is_run(folder):
        return [folder]
    return sorted(path for level in ("*", "*/*") for path in folder.glob(level) if _is_run(path))


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (CONFIG, "run.db"))
