"""Settings of a run: frozen models with every key, its default, its range and its meaning.

docs/configuration.md lists every key. Options of a dataset, a network or a method stand flat beside its name, and are the
keywords of its builder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fairmargin.checks import check_choice
from fairmargin.config import toml
from fairmargin.config.errors import ConfigError, Problem, problems_of
from fairmargin.config.options import Option, options_of, parse_none, written
from fairmargin.data import DATASETS
from fairmargin.networks import ENCODERS

Layer = dict[str, Any]


def _each_once(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"must name each once; got {toml.value(values)}")
    return values


def _device(name: str) -> str:
    try:
        if name != "auto":
            torch.device(name)
    except RuntimeError:
        raise ValueError(
            f'must be "auto", "cpu", "cuda", "cuda:1", "mps", …; got {toml.value(name)}'
        ) from None
    return name


Nothing = BeforeValidator(parse_none)


Whole = Annotated[int, Strict()]


Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]


Switch = Annotated[bool, Strict()]


FromZero = Annotated[Number, Field(ge=0)]


AboveZero = Annotated[Number, Field(gt=0)]


Share = Annotated[Number, Field(ge=0, le=1)]


Decay = Annotated[Number, Field(ge=0, lt=1)]


Optimizer = Literal["adam", "adamw", "sgd", "lars"]


Schedule = Literal["constant", "step", "cosine"]


ScoreFeatures = Literal["raw", "centred", "probabilities"]


Accuracy = Literal["plain", "cell-mean", "aligned", "conflicting", "worst-group", "train-weighted"]


def setting(default: Any, meaning: str) -> Any:
    return Field(default=default, description=meaning)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(problems_of(error, tuple(type(self).model_fields))) from None


class Named(Section):
    """A name in a registry, and keywords of the builder that stands there."""

    what: ClassVar[str]
    name: str
    options: dict[str, Any] = Field(default_factory=dict, description="")

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        raise NotImplementedError

    @classmethod
    def known(cls, name: str) -> dict[str, Option]:
        """The options of the builder called `name`, as they are written in TOML."""
        return options_of(cls.builders()[name])

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("options", {}), dict):
            return values
        flat = {key: value for key, value in values.items() if key not in cls.model_fields}
        own = {key: value for key, value in values.items() if key in cls.model_fields}
        return {**own, "options": {**flat, **values.get("options", {})}}

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        check_choice(name, cls.what, cls.builders())
        return name

    @field_validator("options")
    @classmethod
    def _check_options(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "name" not in info.data:  # unknown, which is a problem already
            return given
        known = cls.known(info.data["name"])
        options, problems = {}, []
        for key, value in given.items():
            path = ("options", key) if key in cls.model_fields else (key,)
            option = known.get(written(key))
            if option is None:
                siblings = (*(own for own in cls.model_fields if own != "options"), *known)
                problems.append(Problem(path, unknown=True, siblings=siblings))
                continue
            try:
                options[option.parameter] = option.convert(value)
            except ValidationError as error:
                wrong = problems_of(error)
                wrong = [replace(wrong[0], path=())] if option.several_kinds else wrong
                problems += [problem.under(*path) for problem in wrong]
        if problems:
            raise ConfigError(problems)
        return {
            p: v
            for p, v in options.items()
            if v is not None or known[written(p)].default is not None
        }


class DataConfig(Named):
    what = "dataset"
    name: str = setting(
        "biased-mnist-mini", "`fairmargin list` shows all; options: its builder's keywords"
    )
    root: Annotated[Path | None, Nothing] = setting(
        None,
        'folder of all data, else `$FAIRMARGIN_DATA`, else the user\'s cache; of "folder": the images',
    )
    bias: Literal["labels", "none", "scores", "clusters"] = setting(
        "labels",
        "what methods see of the bias: the dataset's labels, nothing, the features `fairmargin scores` wrote, or labels "
        "from clusters of these",
    )
    scores: Annotated[Path | None, Nothing] = setting(
        None,
        "the folder of `fairmargin scores`, or one that holds seed-SEED; else runs/scores/DATASET/seed-SEED",
    )
    score_features: Annotated[ScoreFeatures | None, Nothing] = setting(
        None, "how the scores are read: raw (if not set), centred or probabilities"
    )
    clusters: Annotated[Annotated[Whole, Field(ge=2)] | None, Nothing] = setting(
        None, 'of bias = "clusters": how many; else as many as classes, or 2 of each class'
    )
    clusters_of: Annotated[Literal["class", "all"] | None, Nothing] = setting(
        None,
        'of bias = "clusters": "all" samples together (if not set), or each "class" for itself',
    )
    inject: Annotated[str | None, Nothing] = setting(
        None,
        "plant a shortcut, KIND:RHO such as colour:0.95, with its bias labels (`docs/audit.md`)",
    )
    sampler: Literal[
        "auto", "shuffled", "class-balanced", "group-balanced", "bias-aware", "weighted"
    ] = setting(
        "auto",
        "which samples make an epoch; auto: what the method wants, mostly shuffled; the last three need bias labels",
    )

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        return DATASETS

    @model_validator(mode="after")
    def _folder_has_a_root(self) -> "DataConfig":
        if self.name == "folder" and self.root is None:
            says = 'is needed by the dataset "folder": the path of a manifest or an image folder'
            raise ConfigError([Problem(("root",), says)])
        return self


class NetworkConfig(Named):
    what = "encoder"
    name: str = setting("simple-conv-7", "the encoder; options: keywords of its class")

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        return ENCODERS


class MethodConfig(Named):
    what = "method"
    name: str = setting("eps-supinfonce+fairkl", "the method; options: its builder's keywords")

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        from fairmargin.methods import METHODS

        return METHODS


class OptimizerConfig(Section):
    name: Optimizer = setting("adam", "adam, adamw, sgd or lars")
    lr: AboveZero = setting(1e-3, "learning rate")
    weight_decay: FromZero = setting(
        1e-5, "adamw takes it off the weights, the others add it to the gradient"
    )
    momentum: Decay = setting(0.9, "of sgd and lars")
    betas: tuple[Decay, Decay] = setting((0.9, 0.999), "of adam and adamw")
    nesterov: Switch = setting(False, "of sgd")

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> "OptimizerConfig":
        if self.nesterov and self.name == "sgd" and self.momentum == 0:
            raise ConfigError(
                [Problem(("momentum",), "must be above 0 with nesterov = true; got 0.0")]
            )
        return self


class ScheduleConfig(Section):
    name: Schedule = setting("step", "constant, step or cosine")
    milestones: tuple[FromZero, ...] = setting(
        (1 / 3, 2 / 3), "of step, when the rate falls: epochs, or below 1 shares of all epochs"
    )
    factor: AboveZero = setting(0.1, "of step, by which the rate is multiplied at each")
    floor: Share = setting(0.0, "of cosine, where it ends, as a share of `lr`")
    warmup_epochs: FromZero = setting(0.0, "the rate rises linearly for so long")
    warmup_from: Share = setting(0.01, "where it begins to rise, as a share of `lr`")
    per: Literal["epoch", "step"] = setting(
        "epoch", "change the rate between epochs, or at every step"
    )


class PlayerConfig(Section):
    """What differs for one player of the method from `[optimizer]` and `[schedule]`; nothing: it does not."""

    name: Annotated[Optimizer | None, Nothing] = setting(None, "as `optimizer.name`")
    lr: Annotated[AboveZero | None, Nothing] = setting(None, "as `optimizer.lr`")
    weight_decay: Annotated[FromZero | None, Nothing] = setting(None, "as `optimizer.weight_decay`")
    momentum: Annotated[Decay | None, Nothing] = setting(None, "as `optimizer.momentum`")
    betas: Annotated[tuple[Decay, Decay] | None, Nothing] = setting(None, "as `optimizer.betas`")
    nesterov: Annotated[Switch | None, Nothing] = setting(None, "as `optimizer.nesterov`")
    schedule: Annotated[Schedule | None, Nothing] = setting(None, "as `schedule.name`")
    milestones: Annotated[tuple[FromZero, ...] | None, Nothing] = setting(
        None, "as `schedule.milestones`"
    )
    factor: Annotated[AboveZero | None, Nothing] = setting(None, "as `schedule.factor`")
    floor: Annotated[Share | None, Nothing] = setting(None, "as `schedule.floor`")
    warmup_epochs: Annotated[FromZero | None, Nothing] = setting(
        None, "as `schedule.warmup_epochs`"
    )
    warmup_from: Annotated[Share | None, Nothing] = setting(None, "as `schedule.warmup_from`")
    per: Annotated[Literal["epoch", "step"] | None, Nothing] = setting(None, "as `schedule.per`")


class TrainConfig(Section):
    epochs: Annotated[Whole, Field(ge=1)] = setting(80, "passes over the training set")
    steps: Annotated[Annotated[Whole, Field(ge=1)] | None, Nothing] = setting(
        None,
        "stop after so many steps, if the epochs are not over before; the schedule spans what comes first",
    )
    batch_size: Annotated[Whole, Field(ge=1)] = setting(256, "over all processes together")
    drop_last: Switch = setting(False, "leave out a last batch that is not full")
    precision: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "half precision is mixed"
    )
    clip: Annotated[AboveZero | None, Nothing] = setting(
        None, "largest gradient norm, for each player"
    )
    compile: Switch = setting(False, "encoders through torch.compile")
    channels_last: Switch = setting(False, "memory layout that convolutions on CUDA prefer")
    device: Annotated[str, AfterValidator(_device)] = setting(
        "auto", "auto, cpu, cuda, cuda:1, mps, …"
    )
    workers: Annotated[Whole, Field(ge=0)] = setting(0, "processes that decode image files")
    checkpoint_seconds: FromZero = setting(60.0, "between checkpoints; 0: after every step")
    keep: Annotated[Whole, Field(ge=1)] = setting(2, "checkpoints kept")
    log_steps: Annotated[Whole, Field(ge=1)] = setting(50, "steps between lines of the log")
    tensorboard: Switch = setting(False, "write events for TensorBoard too")


class EvaluateConfig(Section):
    every: Annotated[Whole, Field(ge=0)] = setting(
        1, "epochs between evaluations; 0: only at the end"
    )
    classifiers: Annotated[
        tuple[Literal["own", "probe", "knn", "linear"], ...],
        Field(min_length=1),
        AfterValidator(_each_once),
    ] = setting(
        ("own", "probe", "knn"),
        "which predict at the end: the method's own, a linear probe, k-NN; linear: linear evaluation (`docs/evaluation.md`)",
    )
    resamples: Annotated[Whole, Field(ge=1)] = setting(
        1000, "of the bootstrap behind the intervals"
    )
    report: Literal["last", "best-on-validation"] = setting(
        "last",
        "whose weights the result is about; the best is of the method's final stage (`docs/methods.md`)",
    )
    select: Accuracy = setting(
        "cell-mean",
        'what "best on validation" compares; plain unless `data.bias` is "labels" and there are some',
    )
    headline: Accuracy = setting(
        "cell-mean", "the accuracy that tables show first; plain where the data do not have it"
    )
    similarities: Switch = setting(
        False,
        "record at every evaluation how similar test samples are that share label or bias (`docs/evaluation.md`)",
    )
    batch_size: Annotated[Whole, Field(ge=1)] = setting(256, "of evaluation")
    linear_lr: AboveZero = setting(5.0, "of linear evaluation: learning rate of its SGD")
    linear_epochs: Annotated[Whole, Field(ge=1)] = setting(
        100, "of linear evaluation: passes over the training set, each through the encoder"
    )
    linear_batch_size: Annotated[Whole, Field(ge=1)] = setting(512, "of linear evaluation")
    linear_momentum: Decay = setting(0.9, "of linear evaluation's SGD")
    linear_weight_decay: FromZero = setting(0.0, "of linear evaluation's SGD")
    linear_milestones: tuple[FromZero, ...] = setting(
        (0.6, 0.75, 0.9), "when its rate falls: epochs, or below 1 shares of `linear_epochs`"
    )
    linear_factor: AboveZero = setting(0.2, "by which its rate is multiplied at each")


class Config(Section):
    """Everything a run depends on."""

    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = setting(
        0, "of everything random; of the dataset too, unless `data.seed` says otherwise"
    )
    data: DataConfig = Field(default_factory=DataConfig)
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    method: MethodConfig = Field(default_factory=MethodConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    players: dict[str, PlayerConfig] = Field(default_factory=dict)
    train: TrainConfig = Field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)

    @model_validator(mode="after")
    def _choose_without_hidden_labels(self) -> "Config":
        """Methods that may not see the bias labels may not be chosen by them either."""
        if self.data.bias != "labels" and self.evaluate.select != "plain":
            object.__setattr__(
                self, "evaluate", self.evaluate.model_copy(update={"select": "plain"})
            )  # it is frozen
        return self

    @model_validator(mode="after")
    def _players_fit(self) -> "Config":
        for player in self.players:
            try:
                self.for_player(player)
            except ConfigError as error:
                raise ConfigError(
                    [problem.under("players", player) for problem in error.problems]
                ) from None
        return self

    def for_player(
        self, player: str, differs: Mapping[str, Any] | None = None
    ) -> tuple[OptimizerConfig, ScheduleConfig]:
        """What a player learns with: the run's settings ← what the method wants for it (`differs`) ← [players.NAME]."""
        own = given_fields(self.players[player]) if player in self.players else {}
        chosen = {**PlayerConfig(**(differs or {})).model_dump(exclude_none=True), **own}
        optimizer = {key: chosen[key] for key in OptimizerConfig.model_fields if key in chosen}
        schedule = {
            key: chosen[key]
            for key in ScheduleConfig.model_fields
            if key in chosen and key != "name"
        }
        if "schedule" in chosen:
            schedule["name"] = chosen["schedule"]
        return OptimizerConfig(**given_fields(self.optimizer) | optimizer), ScheduleConfig(
            **given_fields(self.schedule) | schedule
        )


@dataclass(frozen=True)
class Key:
    """One line of docs/configuration.md."""

    path: str
    default: str  # as TOML; empty: nothing
    meaning: str

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key there is, except the options of datasets, networks and methods."""
    found = []
    for name, field in Config.model_fields.items():
        section = PlayerConfig if name == "players" else field.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            found.append(Key(name, toml.value(field.default), field.description or ""))
            continue
        prefix = "players.NAME" if name == "players" else name
        for key, inner in section.model_fields.items():
            if key != "options":
                default = "" if inner.default is None else toml.value(inner.default)
                found.append(Key(f"{prefix}.{key}", default, inner.description or ""))
    return tuple(found)


def given_fields(section: Section) -> Layer:
    """A section's own fields that are not nothing."""
    return {key: value for key, value in section if value is not None and key != "options"}
