"""The shape of a config: every key, its type, its range and its default. Unknown keys are errors.

Training, Sites, SitePolicy and AttackSettings are defined beside the code that uses them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedapa.data.site_description import Sites
from fedapa.data.site_layout import Layout
from fedapa.methods.attack import AttackSettings
from fedapa.rounds.round_plan import EvaluateEvery, Participation, Plan, Rounds, RunSchedule
from fedapa.rounds.site_policy import SitePolicy
from fedapa.toml_table import distinct
from fedapa.training.settings import HEAD, Buffers, Engine, Training

Names = Annotated[list[str], Field(min_length=1)]
# Layers of an nn.Sequential are numbers: model.head=3 names the fourth.
Layer = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Seed = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(Section):
    source: str = Field("digits", description="see `fedapa ls datasets`; arrays in a .npz; your own: file.py:function")
    subset: float | int | None = Field(None, gt=0, description="a share below 1, or a number, of train samples to keep")
    data_dir: str | None = Field(None, description="folder of the data files; default FEDAPA_DATA or ~/.cache/fedapa")
    partition: str = Field("dirichlet", description="partition rule, or a saved partition (.npz)")
    clients: int = Field(20, ge=1, description="number of clients")
    alpha: float | None = Field(None, gt=0, description="Dirichlet concentration (dirichlet, quantity)")
    classes_per_client: int | None = Field(
        None, ge=1, description="classes at every client (pathological, random-classes)"
    )
    groups: int | None = Field(None, ge=2, description="number of planted groups (uneven-groups, rotated-groups, ...)")
    train_share: float | None = Field(None, gt=0, le=1, description="share of the train samples that is dealt")
    seed: Seed | None = Field(None, description="seed of the partition; default: the run's own seed")
    min_train: int | None = Field(None, ge=0, description="train sets must be larger than this")
    min_test: int | None = Field(None, ge=0, description="test sets must be larger than this")
    max_redraws: int | None = Field(None, ge=0, description="redraws before giving up")
    validation: float = Field(0.0, ge=0, lt=1, description="share of every train set held out to select a round")

    def rule_parameters(self) -> dict[str, Any]:
        names = ("alpha", "classes_per_client", "groups", "train_share", "min_train", "min_test", "max_redraws")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class ModelConfig(Section):
    name: str | Names | dict[str, str] = Field(
        "lenet5", description="see `fedapa ls models`, or package.module:function; a list: in turn; a table: by client"
    )
    head: Layer = Field(HEAD, description="name of the submodule that stays private")
    buffers: Buffers = Field("shared", description="BatchNorm statistics: with the extractor or the head")
    shared: str | list[str] = Field("", description="patterns of the parameters that federate, instead of all but head")
    frozen: str | list[str] = Field("", description="patterns of the parameters that nobody trains or sends")
    pretrained: bool = Field(False, description="published weights, of torchvision:, timm: and hf: models")
    features: int = Field(0, ge=0, description="size of one more layer before the head; 0: none")
    settings: dict[str, Any] = Field(default_factory=dict, description="arguments of the function that makes it")

    @property
    def options(self) -> dict[str, Any]:
        """What ``build_model`` is told beside the name."""
        return self.model_dump(exclude={"name"})


class ObjectiveConfig(Section):
    """Loss and scores; further keys are settings of the objective."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    name: str = Field("auto", description="auto, classification, regression, survival, or your own: file.py:Class")

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class RunConfig(Section):
    rounds: Rounds = Plan.rounds
    participation: Participation = Plan.participation
    schedule: RunSchedule = Plan.schedule
    evaluate_every: EvaluateEvery = Plan.evaluate_every
    checkpoint_every: int = Field(1, ge=1, description="rounds between checkpoints; the last is always kept")
    mmap_above_mb: int = Field(2048, ge=0, description="larger tensors of the server are kept in memory-mapped files")
    workers: int = Field(0, ge=0, description="clients trained side by side; 0: one per core")
    engine: Engine = Field("auto", description="engine of the training steps")
    device: str = Field("cpu", description="of the clients: auto, cpu, cuda, cuda:1, mps; several by commas, in turn")
    log: list[str] = Field(default_factory=list, description="tensorboard, mlflow, wandb, or your own: file.py:Class")


class Config(Section):
    methods: Annotated[list[str], AfterValidator(distinct)] = Field(
        default_factory=lambda: ["local", "fedavg", "fedapa"],
        min_length=1,
        description="see `fedapa ls methods`, your own as file.py:Class, or the NAME of a [method.NAME] below",
    )
    seeds: Annotated[list[Seed], AfterValidator(distinct)] = Field(
        default_factory=lambda: [0], min_length=1, description="one run per method and seed"
    )
    data: DataConfig = DataConfig()
    sites: Sites | None = None
    layout: Layout | None = None
    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    training: Training = Training()
    run: RunConfig = RunConfig()
    federation: SitePolicy = SitePolicy()
    attack: AttackSettings | None = None
    method: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description=(
            "[method.NAME]: hyper-parameters of a method; with `base` NAME is your own name for a variant of another. "
            "[method.NAME.training]: keys of [training] that have another value in its runs"
        ),
    )
