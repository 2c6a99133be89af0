"""What a site decides for itself: its data, the models it allows, and limits on what a run may ask of it.

A kit comes from the coordinator, so nothing in its folder may widen what a site does. These settings are beside that
folder, in a file that only `fedapa site join` at the site writes.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedapa.errors import InputError
from fedapa.federation.kit import CA, KEY, KIT
from fedapa.federation.messages import Refused
from fedapa.store.atomic_io import write_atomically
from fedapa.training.settings import Training

if TYPE_CHECKING:  # a supervisor needs no torch
    from fedapa.federation.site_store import Store

M = TypeVar("M", bound=BaseModel)
MACHINE = Path("/etc/machine-id")  # confidential by its own rules, so a hash of it is kept
CHANGE = "the site can change its limits: fedapa site join KIT --limit NAME=VALUE"
IN_A_KIT = {KIT, KEY, CA, "site.pub", "wire.json"}  # wire.json can only forbid


class SiteLimits(BaseModel):
    """Bounds on training. With weights, rate and batches of its choice, a coordinator reads rows off an upload: the
    smaller the batch and the larger the rate, the more of them. Honest training stays far within the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    min_rows: int = Field(20, ge=1, description="fewest train rows with which this site takes part")
    min_batch: int = Field(8, ge=1, description="smallest batch")
    max_lr: float = Field(1.0, gt=0, description="largest learning rate")
    max_steps: int = Field(10_000, ge=1, description="most steps of one training")
    max_target: float = Field(
        5.0, gt=0, description="largest root mean square of its train targets as a run scales them"
    )
    max_scored: int = Field(5, ge=1, description="most different requests of one round whose models are scored here")
    max_runs: int = Field(
        200, ge=1, description="most runs whose states are here; `fedapa site prune` removes old ones"
    )
    max_questions: int = Field(400, ge=1, description="most different configs that this site's rows are ever read for")

    def check(self, training: Training, rows: int) -> None:
        """Refuse a recipe before anything is trained; ``Limited`` holds the methods' own rates and steps to it, too."""
        steps, rate = training.epochs * math.ceil(rows / training.batch), training.highest_rate
        for is_bad, said in (
            (rows < self.min_rows, f"this site takes part with at least {self.min_rows} train rows and has fewer"),
            (training.batch < self.min_batch, too("small", "training.batch", training.batch, self.min_batch)),
            (rate > self.max_lr, too("large", "training.lr", rate, self.max_lr)),
            (steps > self.max_steps, too("large", "training.epochs", training.epochs, f"{self.max_steps} steps")),
        ):
            if is_bad:
                raise Refused(said, CHANGE)

    def check_runs(self, store: Store, run: str) -> None:
        """Refuse one run more: every run asks anew, with weights of its choice, and leaves states on this disk."""
        if not store.place(run).exists() and len(store.runs()) >= self.max_runs:
            raise Refused(f"this site keeps the states of {self.max_runs} runs, its limit max_runs", CHANGE)


def too(what: str, key: str, value: float, limit: object) -> str:
    return f"{key} = {value} is too {what} for this site, whose limit is {limit}"


class SiteSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    data: str = Field("", description="a config at the site whose [data] or [sites] counts, instead of the run's")
    share: int | None = Field(None, ge=0, description="which share of the data, instead of the kit's")
    models: list[str] = Field(default_factory=list, description="file.py:NAME or package.module:NAME that runs may use")
    methods: list[str] = Field(default_factory=list, description="file.py:Class at this site that runs may use")
    seeds: list[int] = Field(
        default_factory=list, description="by which runs may split its rows; empty: the first that is asked for"
    )
    limits: SiteLimits = SiteLimits()
    deliver: bool = Field(True, description="make site-model/ when a run has ended")
    machine: str = Field("", description="mark of the machine where `site join` wrote this")

    def with_limits(self, changes: Iterable[str]) -> SiteSettings:
        """The same with ``name=value`` limits."""
        pairs = dict(_pair(change) for change in changes)
        limits = _validated(SiteLimits, {**self.limits.model_dump(), **pairs}, "--limit")
        return self.model_copy(update={"limits": limits})


def own_copy(wanted: str, allowed: Iterable[str]) -> str | None:
    """The allowed code that a run's name for it means; None where there is none.

    A run names a file by its path at the coordinator. The site's own copy has the same file name, and lives elsewhere.
    """
    if wanted in (allowed := list(allowed)):
        return wanted
    place, _, name = wanted.rpartition(":")
    alike = [one for one in allowed if place.endswith(".py") and _file_and_name(one) == (Path(place).name, name)]
    return alike[0] if len(alike) == 1 else None


def _file_and_name(code: str) -> tuple[str, str]:
    place, _, name = code.rpartition(":")
    return Path(place).name, name


def settings_path(kit: Path) -> Path:
    kit = kit.absolute()
    return kit.parent / f"{kit.resolve().name if kit.name in ('', '.', '..') else kit.name}.settings.toml"


def read_settings(kit: Path) -> SiteSettings:
    """The site's own; defaults where it has written none."""
    path = settings_path(kit)
    if not path.exists():
        return SiteSettings()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "make it readable for this user") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}", "delete it and join again with --data and --limit") from None
    return _validated(SiteSettings, found, str(path))


def write_settings(kit: Path, settings: SiteSettings) -> None:
    marked = settings.model_copy(update={"machine": _machine()})
    write_atomically(settings_path(kit), tomli_w.dumps(marked.model_dump(exclude_none=True)).encode())


def _machine() -> str:
    """Tells this machine from others; nobody elsewhere can know it. Empty where the system has no number of its own."""
    try:
        number = MACHINE.read_bytes().strip()
    except OSError:
        return ""
    return hashlib.sha256(b"fedapa site settings " + number).hexdigest()[:32] if number else ""


def check_new_kit(kit: Path) -> None:
    """A kit that this site joins with for the first time holds what a kit holds. States or a secret in it would be the
    coordinator's, who could then check guesses at the rows; settings beside it would allow code and lift limits."""
    if settings_path(kit).exists():
        if read_settings(kit).machine != _machine():
            said = "it says which code may run here and which limits count"
            hint = f"read it ({said}), then delete it and join again with --data, --limit and what else you want"
            raise InputError(f"{settings_path(kit)} was not written by `fedapa site join` on this machine", hint)
        return
    if strange := sorted({path.name for path in kit.iterdir()} - IN_A_KIT):
        hint = f"remove it; where this site itself made it, with an older version, create {settings_path(kit)} first"
        raise InputError(f"{kit} holds {strange[0]!r}, which is no part of a kit", hint)


def _pair(change: str) -> tuple[str, Any]:
    name, _, value = change.partition("=")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        raise InputError(f"--limit {change!r} is not name=number", "for example --limit min_batch=4") from None


def _validated(kind: type[M], found: Mapping[str, Any], where: str) -> M:
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise InputError(f"{where}: {name}: {first['msg']}", f"legal: {', '.join(kind.model_fields)}") from None
