"""Where the numbers of a run come from: code, engine, processor, config. Every run writes it into its run.db."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedapa.training.task import Task

UNKNOWN = "unknown"
BETWEEN = "; "  # separates different sessions of one run
PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Provenance:
    """The provenance of one run; ``unknown`` for runs older than this record."""

    numerics: int = 1
    version: str = UNKNOWN  # of fedapa
    commit: str = UNKNOWN  # of the source, "+changes" where files under src/ differ from it
    engine: str = UNKNOWN  # torch, vmap, native-avx2 or native-portable; last digits depend on it
    processor: str = UNKNOWN
    torch: str = UNKNOWN
    config: str = UNKNOWN  # hash of every setting that changes numbers, but for the seed
    revision: int = 0  # of the method's own numbers

    @property
    def numbers(self) -> tuple[int, int]:
        """The same for two runs of one method whose numbers were made alike; runs of two methods share the version."""
        return self.numerics, self.revision


def current(task: Task) -> dict[str, str]:
    """The provenance that a session writes into run.db."""
    import torch

    return {
        "version": package_version("fedapa"),
        "commit": commit(),
        "library": _library(task),
        "processor": processor(),
        "torch": torch.__version__,
    }


def over_sessions(earlier: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The combined provenance of several sessions of a run: differing values are all listed."""
    return {key: _with(earlier.get(key, ""), value) for key, value in now.items()}


def _with(earlier: str, now: str) -> str:
    known = earlier.split(BETWEEN) if earlier else []
    return BETWEEN.join(known if now in known else [*known, now])


def read(about: Mapping[str, str]) -> Provenance:
    """Read from a run.db; older ones hold less."""
    engine, library = about.get("engine", UNKNOWN), about.get("library", "")
    known = {key: about.get(key, UNKNOWN) for key in ("version", "commit", "processor", "torch", "config")}
    return Provenance(numerics(about), engine=library or engine, revision=revision(about), **known)


def from_dict(row: Mapping[str, Any]) -> Provenance:
    """Read from a results file; older ones do not have it."""
    known = asdict(Provenance())
    return Provenance(**{key: row.get(key, value) for key, value in known.items()})


def by_numerics(names: Iterable[tuple[str, int]]) -> str:
    """One line with the numerics versions and their runs; empty if there is only one version."""
    found: dict[int, list[str]] = {}
    for name, numerics in names:
        if name not in found.setdefault(numerics, []):
            found[numerics].append(name)
    if len(found) < 2:
        return ""
    listed = "; ".join(f"version {numerics}: {', '.join(found[numerics])}" for numerics in sorted(found))
    return f"runs of different numerics versions are not paired with each other ({listed})"


def by_revision(names: Iterable[tuple[str, tuple[int, int]]]) -> str:
    """One line with the methods whose runs have several revisions of one numerics version; else empty."""
    found: dict[tuple[str, int], set[int]] = {}
    for name, (numerics, revision) in names:
        found.setdefault((name, numerics), set()).add(revision)
    mixed = {name: revisions for (name, _), revisions in found.items() if len(revisions) > 1}
    listed = "; ".join(f"{name}: {' and '.join(map(str, sorted(mixed[name])))}" for name in mixed)
    return f"runs of different revisions of a method's numbers are in one mean ({listed})" if listed else ""


def digest(settings: Mapping[str, Any]) -> str:
    """A short hash of settings, whatever the order of their names."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def numerics(about: Mapping[str, str]) -> int:
    """Of a run.db that was begun; runs from before it was kept have version 1."""
    return int(about.get("numerics", 1))


def revision(about: Mapping[str, str]) -> int:
    """Of the method's own numbers; runs from before it was kept have revision 0."""
    return int(about.get("revision", 0))


# ------------------------------------------------------------------------------------------------ code and machine


@cache
def package_version(package: str) -> str:
    try:
        return installed(package)
    except PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """The commit that this code runs from; of an installed package its version; unknown without git."""
    return commit_of(PACKAGE)


@cache
def commit_of(package: Path) -> str:
    root = package.parents[1]
    if package.parent.name != "src" or not (root / ".git").exists():  # not a checkout: another's commit would mislead
        version = package_version(package.name)
        return UNKNOWN if version == "not installed" else f"v{version}"
    head, changed = _git(root, "rev-parse", "--short=12", "HEAD"), _git(root, "status", "--porcelain", "--", "src")
    if not head or changed is None:
        return UNKNOWN
    return f"{head}+changes" if changed else head


def _git(root: Path, *words: str) -> str | None:
    """The output of git; None if it fails. GIT_DIR, which a hook sets, would name another repository."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], env=clean, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _library(task: Task) -> str:
    """The engine and its library, since last digits differ between libraries."""
    from fedapa.training.engines.native import available

    return task.engine if task.kernel is None else f"{task.engine}-{available()[1].partition(':')[0]}"


def processor() -> str:
    """The processor's name, and the instructions that PyTorch uses on it."""
    import torch

    return f"{processor_name()}, {torch.backends.cpu.get_cpu_capability()}"


def processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or UNKNOWN
