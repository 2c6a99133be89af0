"""The section [training] of a config; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from fedapa.toml_table import TABLE

Engine = Literal["auto", "torch", "vmap", "native"]
Buffers = Literal["shared", "private"]
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
    trainer: Annotated[StrictStr, Field(description="your own training loop: file.py:function")] = ""
