"""How a coordinator treats real sites: timeouts, retries, quorum, quarantine and upload limits; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, StrictBool, StrictFloat, StrictInt

from fedapa.toml_table import TABLE


@dataclass(frozen=True)
class SitePolicy:
    """The section [federation]; a simulation does not read it."""

    __pydantic_config__ = TABLE

    round_timeout: Annotated[StrictFloat, Field(gt=0, description="seconds a site has to answer")] = 600.0
    rejoin: Annotated[
        StrictFloat, Field(ge=0, description="seconds a site may be offline before the round goes on without it")
    ] = 120.0
    retries: Annotated[StrictInt, Field(ge=0, description="requests repeated after an error at a site")] = 2
    min_replies: Annotated[StrictInt, Field(ge=1, description="uploads needed to close a round")] = 1
    quorum_timeout: Annotated[
        StrictFloat, Field(gt=0, description="seconds to wait for min_replies before the run stops; it can be resumed")
    ] = 3600.0
    min_sites: Annotated[StrictInt, Field(ge=1, description="sites that must be online for a run to start")] = 1
    late_sites: Annotated[
        StrictBool, Field(description="sites that come online during a run join it before its next round")
    ] = True
    quarantine_after: Annotated[
        StrictInt, Field(ge=1, description="refused uploads in a row after which a site is in quarantine")
    ] = 3
    max_growth: Annotated[
        StrictFloat, Field(gt=0, description="largest norm of a tensor, as a multiple of the norm of what was sent")
    ] = 100.0
    max_ratio: Annotated[
        StrictFloat, Field(gt=1, description="largest norm of an update, as a multiple of the median of its round")
    ] = 10.0
    min_cosine: Annotated[
        StrictFloat,
        Field(ge=-1, lt=1, description="smallest cosine of an update to the median of the others' updates; -1: any"),
    ] = -1.0
    max_share: Annotated[
        StrictFloat,
        Field(gt=0, le=1, description="largest share of all training rows that one of three or more sites may declare"),
    ] = 0.8
    max_upload_mb: Annotated[StrictFloat, Field(gt=0, description="largest upload")] = 1024.0

    @property
    def max_upload_bytes(self) -> float:
        return self.max_upload_mb * 2**20
