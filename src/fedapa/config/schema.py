"""The shape of a config: every key, its type, its range and its default. Unknown keys are errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Share = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0)]


def _as_range(value: Any) -> Any:
    """One share stands for a fixed participation."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value)
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
    min_train: int | None = Field(None, ge=0, description="train sets must be larger than this")
    min_test: int | None = Field(None, ge=0, description="test sets must be larger than this")
    max_redraws: int | None = Field(None, ge=0, description="how often to draw again before giving up")
    validation: float = Field(0.0, ge=0, lt=1, description="share of every train set held out to select a round")

    def rule_parameters(self) -> dict[str, Any]:
        names = ("alpha", "classes_per_client", "min_train", "min_test", "max_redraws")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


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
    drop_last: bool = Field(True, description="leave out the last partial batch")
    keep_momentum: bool = Field(True, description="momentum survives from round to round (released code)")


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


class Config(Section):
    methods: Annotated[list[str], AfterValidator(_distinct)] = Field(
        default_factory=lambda: ["local", "fedavg", "fedapa"], min_length=1
    )
    seeds: Annotated[list[Seed], AfterValidator(_distinct)] = Field(default_factory=lambda: [0], min_length=1)
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    run: RunConfig = RunConfig()
    # [method.NAME]: hyper-parameters; with `base` NAME is the user's own name for a variant of another method.
    method: dict[str, dict[str, Any]] = Field(default_factory=dict)
