"""The shape of a config: every key, its type, its range and its default. Unknown keys are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)

from fedapa.data.missing import MISSING

Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0)]


def _as_range(value: Any) -> Any:
    """One share stands for a fixed participation."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value)
    return tuple(value) if isinstance(value, list) else value


def _as_pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("the lower share comes first")
    return value


def _distinct(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value} is named twice")
    return values


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(Section):
    source: str = Field("digits", description="data set: see `fedapa ls datasets`")
    data_dir: str | None = Field(None, description="folder of the data files; default FEDAPA_DATA or ~/.cache/fedapa")
    partition: str = Field("dirichlet", description="rule that deals samples to clients, or a saved partition (.npz)")
    clients: int = Field(20, ge=1, description="number of clients")
    alpha: float | None = Field(None, gt=0, description="Dirichlet concentration (dirichlet, quantity)")
    classes_per_client: int | None = Field(
        None, ge=1, description="classes at every client (pathological, random-classes)"
    )
    seed: Seed | None = Field(None, description="decides who gets what; without it, the run's own seed does")
    min_train: int | None = Field(None, ge=0, description="train sets must be larger than this")
    min_test: int | None = Field(None, ge=0, description="test sets must be larger than this")
    max_redraws: int | None = Field(None, ge=0, description="how often to draw again before giving up")
    validation: float = Field(0.0, ge=0, lt=1, description="share of every train set held out to select a round")

    def rule_parameters(self) -> dict[str, Any]:
        names = ("alpha", "classes_per_client", "min_train", "min_test", "max_redraws")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _by_name(value: Any) -> Any:
    """A list of files stands for sites that are called like their files."""
    if not isinstance(value, list) or not all(isinstance(file, str) for file in value):
        return value
    names = [Path(file).stem for file in value]
    if len(set(names)) < len(names):
        raise ValueError('two files have one name; write { north = "a/data.csv", south = "b/data.csv" }')
    return dict(zip(names, value, strict=True))


def _merged(value: Any) -> Any:
    """A list of classes stands for classes that are called like their labels."""
    if isinstance(value, list):
        return {str(label): [label] for label in value}
    return value


def _texts(value: Any) -> Any:
    """Cells are texts: a number in a list of values is the text of it."""
    if isinstance(value, dict):
        return {key: _texts(inner) for key, inner in value.items()}
    return [str(item) for item in value] if isinstance(value, list) else value


Values = Annotated[dict[str, list[str]], BeforeValidator(_texts)]
Size = Annotated[int, Field(ge=1, le=4096)]


class SitesConfig(Section):
    """Own data, one client per site; takes the place of [data], of which data_dir alone stays."""

    files: Annotated[dict[str, str], BeforeValidator(_by_name)] = Field(
        default_factory=dict, description="files or image folders: a list, or { name = file }; relative to the config"
    )
    source: str | None = Field(None, description="built-in sites instead of files: heart-disease")
    site_column: str | None = Field(None, description="column that names the site, where one file holds all sites")
    label: str = Field("label", description="column to predict")
    classes: Annotated[Values | None, BeforeValidator(_merged)] = Field(
        None, description="classes in order: a list of labels, or { name = [labels] } to merge some"
    )
    drop: list[str] = Field(default_factory=list, description="columns to leave out")
    categories: list[str] = Field(default_factory=list, description="columns whose numbers are codes")
    missing: list[str] = Field(default_factory=lambda: list(MISSING), description="texts that mean a missing value")
    missing_values: Values = Field(default_factory=dict, description="more of them for one column: { chol = [0] }")
    header: list[str] = Field(default_factory=list, description="names of the columns of files without a header")
    encoding: str = Field("utf-8", description="of text files")
    image_column: str | None = Field(None, description="column of image files, relative to the table")
    image_size: Annotated[tuple[Size, Size] | None, BeforeValidator(_as_pair)] = Field(
        None, description="[height, width] that all images are brought to"
    )
    split: Literal["stratified", "group", "time"] = Field("stratified", description="how test rows are chosen")
    split_column: str | None = Field(None, description="column to split by: group or time")
    test: float = Field(0.25, gt=0, lt=1, description="share of every site's rows kept for testing")
    validation: float = Field(0.0, ge=0, lt=1, description="share of the train rows held out to select a round")
    scaling: Literal["local", "federated"] = Field("local", description="scales of columns: own, or from summed sums")
    duplicates: Literal["together", "keep", "refuse"] = Field(
        "together", description="equal rows: on one side of the split, wherever they fall, or an error"
    )
    schema_file: str | None = Field(None, description="agreed schema.json of a federation")


class ModelConfig(Section):
    name: str = Field("lenet5", description="see `fedapa ls models`, or package.module:function")
    head: str = Field("head", description="name of the submodule that stays private")
    buffers: Literal["shared", "private"] = Field(
        "shared", description="BatchNorm statistics: with the extractor or the head"
    )


class TrainingConfig(Section):
    lr: float = Field(0.01, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1)
    batch: int = Field(64, ge=1, description="batch size")
    epochs: int = Field(2, ge=1, description="local epochs per round")
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float = Field(0.0, ge=0, description="largest norm of a gradient; 0: any")
    drop_last: bool = Field(True, description="leave out the last partial batch")
    keep_momentum: bool | Literal["auto"] = Field(
        "auto", description="from visit to visit: true, false, or auto: unless the weights were replaced"
    )


class RunConfig(Section):
    rounds: int = Field(50, ge=1, description="communication rounds")
    participation: Annotated[tuple[Share, Share], BeforeValidator(_as_range), AfterValidator(_ordered)] = Field(
        (0.6, 1.0), description="share of clients per round: a number, or [low, high] drawn uniformly"
    )
    schedule: Literal["auto", "parallel", "sequential"] = Field("auto", description="auto: what the method asks for")
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations; the last is always evaluated")
    checkpoint_every: int = Field(1, ge=1, description="rounds between checkpoints; the last is always kept")
    mmap_above_mb: int = Field(2048, ge=0, description="larger tensors of the server live in a mapped file")
    workers: int = Field(0, ge=0, description="clients trained side by side; 0: one per core")
    engine: Literal["auto", "torch", "vmap", "native"] = Field("auto", description="what runs the training steps")


def _who(value: Any) -> int | list[int]:
    """A number of clients, or which."""
    named = value if isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in named) or value == 0:
        raise ValueError("give a number of clients, or a list of clients counted from 0")
    found: int | list[int] = _distinct(value) if isinstance(value, list) else value
    return found


class AttackConfig(Section):
    """Clients that lie, in simulations: see docs/beyond.md."""

    kind: Literal["label-flip", "noise", "scaled"] = Field(description="what liars do to labels, or to their updates")
    clients: Annotated[int | list[int], PlainValidator(_who)] = Field(
        1, description="how many lie, drawn by the seed, or a list of clients counted from 0"
    )
    factor: float | None = Field(
        None, description="noise: its norm in norms of the update (1); scaled: what the update is multiplied by (-5)"
    )

    @model_validator(mode="after")
    def _has_use_for_its_factor(self) -> AttackConfig:
        if self.kind == "label-flip" and self.factor is not None:
            raise ValueError("label-flip has no factor")
        return self


class FederationConfig(Section):
    """How a coordinator treats real sites; a simulation does not read it."""

    round_timeout: float = Field(600.0, gt=0, description="seconds that a site has for its answer")
    rejoin: float = Field(120.0, ge=0, description="seconds that a site may be offline before a round goes on")
    retries: int = Field(2, ge=0, description="requests repeated after an error at a site")
    min_replies: int = Field(1, ge=1, description="uploads without which a round is not closed")
    quorum_timeout: float = Field(3600.0, gt=0, description="seconds to wait for so many before the run stops")
    min_sites: int = Field(1, ge=1, description="sites that must be there for a run to begin")
    late_sites: bool = Field(True, description="sites that come while a run is going join it before its next round")
    quarantine_after: int = Field(3, ge=1, description="refused uploads in a row that end a site's part")
    max_growth: float = Field(100.0, gt=0, description="most that a tensor's norm may be, in norms of what was sent")
    max_ratio: float = Field(10.0, gt=1, description="most that an update's norm may be, in medians of its round")
    max_upload_mb: float = Field(1024.0, gt=0, description="largest upload")


class Config(Section):
    methods: Annotated[list[str], AfterValidator(_distinct)] = Field(
        default_factory=lambda: ["local", "fedavg", "fedapa"], min_length=1
    )
    seeds: Annotated[list[Seed], AfterValidator(_distinct)] = Field(default_factory=lambda: [0], min_length=1)
    data: DataConfig = DataConfig()
    sites: SitesConfig | None = None
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    run: RunConfig = RunConfig()
    federation: FederationConfig = FederationConfig()
    attack: AttackConfig | None = None
    # [method.NAME]: hyper-parameters; with `base` NAME is the user's own name for a variant of another method.
    # [method.NAME.training]: keys of [training] that have another value in the runs of this method.
    method: dict[str, dict[str, Any]] = Field(default_factory=dict)
