"""The section [training] of a config; needs no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, TypeAdapter, ValidationError

from fedapa.errors import InputError, did_you_mean
from fedapa.toml_table import TABLE

Engine = Literal["auto", "torch", "vmap", "native"]
Buffers = Literal["shared", "private"]
Optimizer = Literal["sgd", "adam", "adamw"]
LrSchedule = Literal["constant", "cosine", "step"]
Precision = Literal["float32", "bf16", "fp16"]
Beta = Annotated[StrictFloat, Field(ge=0, lt=1)]
HEAD = "head"


@dataclass(frozen=True)
class Training:
    """How a client trains unless its method says otherwise; defaults are the FedAPA paper's."""

    __pydantic_config__ = TABLE

    lr: Annotated[StrictFloat, Field(gt=0, description="learning rate")] = 0.01
    momentum: Annotated[StrictFloat, Field(ge=0, lt=1)] = 0.9
    batch: Annotated[StrictInt, Field(ge=1, description="batch size")] = 64
    epochs: Annotated[StrictInt, Field(ge=1, description="local epochs per round")] = 2
    weight_decay: Annotated[StrictFloat, Field(ge=0)] = 0.0
    clip_norm: Annotated[StrictFloat, Field(ge=0, description="largest norm of a gradient; 0: any")] = 0.0
    drop_last: Annotated[StrictBool, Field(description="leave out the last partial batch")] = True
    keep_momentum: Annotated[
        StrictBool | Literal["auto"],
        Field(description="from visit to visit: true, false, or auto: unless the weights were replaced"),
    ] = "auto"
    optimizer: Annotated[Optimizer, Field(description="update rule; keep_momentum holds for Adam's moments, too")] = (
        "sgd"
    )
    nesterov: Annotated[StrictBool, Field(description="sgd: look ahead by one step of momentum")] = False
    betas: Annotated[tuple[Beta, Beta], Field(description="adam, adamw: decay of both moments")] = (0.9, 0.999)
    eps: Annotated[StrictFloat, Field(gt=0, description="adam, adamw: added to the root of the second moment")] = 1e-8
    lr_theta: Annotated[StrictFloat, Field(ge=0, description="rate of the extractor; 0: lr")] = 0.0
    lr_phi: Annotated[StrictFloat, Field(ge=0, description="rate of the head; 0: lr")] = 0.0
    lr_schedule: Annotated[LrSchedule, Field(description="of the rate over the rounds of a run")] = "constant"
    lr_warmup: Annotated[StrictInt, Field(ge=0, description="first rounds, in which the rate rises to lr")] = 0
    lr_every: Annotated[StrictInt, Field(ge=1, description="step: rounds between two steps")] = 10
    lr_decay: Annotated[StrictFloat, Field(gt=0, le=1, description="step: what the rate is multiplied by")] = 0.1
    lr_steps: Annotated[StrictBool, Field(description="the schedule goes on within a visit, step by step")] = False
    patience: Annotated[
        StrictInt, Field(ge=0, description="epochs without a lower validation loss that end a visit; 0: no such end")
    ] = 0
    augment: Annotated[
        str, Field(description="of train batches: flip, crop, both as flip+crop, or your own: file.py:function")
    ] = ""
    precision: Annotated[Precision, Field(description="of the passes; weights and steps are float32")] = "float32"
    trainer: Annotated[StrictStr, Field(description="your own training loop: file.py:function")] = ""
    by_client: Annotated[
        dict[str, dict[str, Any]] | None,
        Field(description="clients with other values than these, by name or number"),
    ] = None

    def __post_init__(self) -> None:
        for client, own in (self.by_client or {}).items():
            self._with(client, own)  # refuses what cannot be

    def of_client(self, i: int, name: str) -> Training:
        """The recipe of one client; the same object where it has none of its own."""
        found = [(key, self.by_client[key]) for key in (name, str(i)) if key in (self.by_client or {})]  # type: ignore[index]
        return self._with(*found[0]) if found else self

    def _with(self, client: str, own: dict[str, Any]) -> Training:
        legal, place = [f.name for f in fields(self) if f.name not in OF_ALL], f"training.by_client.{client}"
        if unknown := [key for key in own if key not in legal]:
            hint = did_you_mean(unknown[0], legal, f"legal here: {', '.join(legal)}")
            raise InputError(f"{place} has no key {unknown[0]!r}", hint)
        try:
            return TypeAdapter(Training).validate_python({**asdict(replace(self, by_client=None)), **own})
        except ValidationError as error:
            first = error.errors()[0]
            said = f"{place}.{'.'.join(map(str, first['loc']))} is {first['input']!r}"
            raise InputError(said, f"it {first['msg'].removeprefix('Input ')}") from None

    def __repr__(self) -> str:
        """Later keys are shown where they are no default, so that a run begun before they came still knows itself."""
        shown = [f.name for k, f in enumerate(fields(self)) if k < EARLY or getattr(self, f.name) != f.default]
        return f"Training({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def is_plain(self) -> bool:
        """Whether only the keys that were there from the start are set."""
        return all(getattr(self, f.name) == f.default for f in fields(self)[EARLY:])

    def told(self) -> str:
        """The recipe in one line: what makes the rate and the steps."""
        if self.trainer:
            return f"trainer {self.trainer}, which is told lr {self.lr:g}, batch {self.batch}, {self.epochs} epochs"
        rule = self.optimizer + (f" {self.momentum:g}" if self.optimizer == "sgd" else "")
        parts = [f"{rule}{' nesterov' if self.nesterov else ''}", f"lr {self.lr:g}"]
        parts += [f"{name} {value:g}" for name, value in self._parts() if value]
        parts += [] if self.lr_schedule == "constant" else [f"{self.lr_schedule} schedule"]
        parts += [f"warm-up {self.lr_warmup}"] if self.lr_warmup else []
        parts += [f"weight decay {self.weight_decay:g}"] if self.weight_decay else []
        parts += [f"clip {self.clip_norm:g}"] if self.clip_norm else []
        parts += [f"patience {self.patience}"] if self.patience else []
        parts += [f"augment {self.augment}"] if self.augment else []
        parts += [self.precision] if self.precision != "float32" else []
        parts += [f"other values at {', '.join(self.by_client)}"] if self.by_client else []
        return ", ".join([*parts, f"batch {self.batch}", f"{self.epochs} epochs"])

    @property
    def highest_rate(self) -> float:
        """Of the whole model or one of its parts, before any schedule, which only lowers it."""
        return max(self.lr, self.lr_theta, self.lr_phi)

    def _parts(self) -> list[tuple[str, float]]:
        return [("lr_theta", self.lr_theta), ("lr_phi", self.lr_phi)]


OF_ALL = ("augment", "precision", "trainer", "by_client")  # keys that clients have in common
EARLY = 8  # keys that were there from the start
