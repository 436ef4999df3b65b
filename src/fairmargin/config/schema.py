"""Settings of a run: every key with its default, its range and its meaning.

docs/configuration.md lists every key with the same meanings. Options of a dataset, a network or a
method are written beside its name, and are the keywords of its builder.
"""

import difflib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from fairmargin.checks import Range, check_choice
from fairmargin.config import toml
from fairmargin.config.code import Code, is_code
from fairmargin.config.errors import ConfigError, Problem
from fairmargin.config.options import Option, options_of
from fairmargin.config.own_images import Notes
from fairmargin.config.ranges import in_words
from fairmargin.config.sections import (
    AboveZero,
    BatchSize,
    Decay,
    FromZero,
    Milestones,
    Named,
    Nothing,
    Number,
    OneOrMany,
    Section,
    Share,
    Switch,
    Whole,
    WholeAboveZero,
    WholeFromZero,
    setting,
)
from fairmargin.data import DATASETS, OWN
from fairmargin.data.ranges import RANGES as DATA_RANGES
from fairmargin.networks import BACKBONES, ENCODERS
from fairmargin.networks import RANGES as NETWORK_RANGES
from fairmargin.networks.pretrained import is_backbone, split_name

Layer = dict[str, Any]
ScoreFeatures = Literal["raw", "centred", "probabilities"]
SamplerName = Literal[
    "auto", "shuffled", "class-balanced", "group-balanced", "bias-aware", "weighted"
]
Optimizer = Literal["adam", "adamw", "sgd", "lars"]
Schedule = Literal["constant", "step", "cosine"]
Pace = Literal["epoch", "step"]
Classifier = Literal["own", "probe", "knn", "linear"]
TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
Accuracy = Literal["plain", "cell-mean", "aligned", "conflicting", "worst-group", "train-weighted"]
# What may choose: an accuracy, or one by groups that a proxy network tells.
Selection = Literal[
    "plain", "cell-mean", "aligned", "conflicting", "worst-group", "train-weighted", "ula"
]


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


def _bias(text: str) -> str:
    # Here, because providers read configurations.
    from fairmargin.bias.providers import parse

    name, argument = parse(text)
    return f"{name}:{argument}" if argument else name


class DataConfig(Named):
    """The dataset, and what methods may know of its bias."""

    what = "dataset"
    takes_code = True
    name: str = setting(
        "biased-mnist-mini",
        "dataset (`fairmargin list` shows all), or module:function of your own (`docs/use.md`); "
        "options: its builder's keywords",
    )
    root: Annotated[Path | None, Nothing] = setting(
        None,
        "folder of all data; by default `$FAIRMARGIN_DATA`, or the user's cache. For the dataset "
        '"folder": the manifest or image folder itself; for "embeddings": the .npz file',
    )
    bias: Annotated[str, AfterValidator(_bias)] = setting(
        "labels",
        "what methods see of the bias: the dataset's `labels`; `none`; `scores`, the features that "
        "`fairmargin scores` wrote; `clusters` of these; `audit:ATTRIBUTE`, what an attribute of "
        "the audit predicts; `jtt`, `eiil`, `george`, `spare` or `xrm`, groups that a reference "
        "model finds; `auto` (`docs/scores.md`)",
    )
    scores: Annotated[Path | None, Nothing] = setting(
        None,
        "folder that `fairmargin scores` wrote, or one that holds seed-SEED; by default "
        "runs/scores/DATASET/seed-SEED",
    )
    score_features: Annotated[ScoreFeatures | None, Nothing] = setting(
        None, "how scores are read: raw (the default), centred or probabilities"
    )
    clusters: Annotated[Annotated[Whole, Field(ge=2, le=10_000)] | None, Nothing] = setting(
        None,
        'number of clusters with bias = "clusters"; by default the number of classes, or 2 in each '
        'class; with "george" and "spare" in each class, by default chosen by silhouette',
    )
    clusters_of: Annotated[Literal["class", "all"] | None, Nothing] = setting(
        None,
        'what bias = "clusters" clusters: "all" samples together (the default), or each "class" '
        "for itself",
    )
    reference_epochs: Annotated[WholeAboveZero | None, Nothing] = setting(
        None,
        "epochs of the reference model with bias = jtt, eiil or spare and with `evaluate.select` = "
        "ula (1 by default), george or xrm (as many as the run has)",
    )
    inject: Annotated[str | None, Nothing] = setting(
        None,
        "shortcut to plant, KIND:RHO such as colour:0.95, with its bias labels (`docs/audit.md`)",
    )
    sampler: SamplerName = setting(
        "auto",
        "which samples make an epoch; auto: what the method asks for, mostly shuffled; "
        "group-balanced, bias-aware and weighted need bias labels",
    )

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        """Return all datasets."""
        return DATASETS

    @classmethod
    def ranges(cls, name: str) -> dict[str, Range]:
        """Return the ranges of datasets' options."""
        return DATA_RANGES

    @model_validator(mode="after")
    def _folder_has_a_root(self) -> "DataConfig":
        if self.name in OWN and self.root is None:
            says = f'is needed by the dataset "{self.name}": the path of {OWN[self.name]}'
            raise ConfigError([Problem(("root",), says)])
        return self


def _mistyped_library(name: str) -> bool:
    """True for "timn:NAME": a name almost of a library, and no module that could be imported."""
    prefix, colon, _ = name.partition(":")
    if not colon or "." in prefix:
        return False
    if not difflib.get_close_matches(prefix, BACKBONES, n=1, cutoff=0.6):
        return False
    # Looks for the module and does not import it.
    return importlib.util.find_spec(prefix) is None


class NetworkConfig(Named):
    """The encoder."""

    what = "encoder"
    takes_code = True
    name: str = setting(
        "simple-conv-7",
        "encoder; or hf:NAME, timm:NAME, torchvision:NAME (`docs/networks.md`); or module:class of "
        "your own (`docs/use.md`); options: keywords of its class",
    )
    weights: Annotated[Path | None, Nothing] = setting(
        None, "file of weights to start from: .safetensors, .pth or .pt (`docs/networks.md`)"
    )
    freeze: Switch = setting(False, "keep the encoder as it starts, batch norms included")
    pretrained_expected: Annotated[Literal["imagenet"] | None, Nothing] = setting(
        None,
        "weights that the published protocol starts from; a run that starts from none says so",
    )

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        """Return all encoders."""
        return ENCODERS

    @classmethod
    def ranges(cls, name: str) -> dict[str, Range]:
        """Return the ranges of encoders' options."""
        return NETWORK_RANGES

    @classmethod
    def known(cls, name: str) -> dict[str, Option]:
        """Return the options of an encoder, or of the library of another network."""
        if is_backbone(name):
            return options_of(BACKBONES[split_name(name)[0]].build)
        return super().known(name)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if is_backbone(name) or _mistyped_library(name):
            split_name(name)
        elif not is_code(name):
            check_choice(name, cls.what, [*ENCODERS, *(f"{library}:NAME" for library in BACKBONES)])
        return name


class MethodConfig(Named):
    """The method."""

    what = "method"
    name: str = setting("fairmargin", "method; options: its builder's keywords")

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        """Return all methods."""
        from fairmargin.methods import METHODS

        return METHODS

    @classmethod
    def ranges(cls, name: str) -> dict[str, Range]:
        """Return the ranges of a method's options, which its card has."""
        from fairmargin.methods.catalog import card_of

        options = card_of(name).options.items()
        return {key: card.range for key, card in options if isinstance(card.range, Range)}


class OptimizerConfig(Section):
    """The optimizer of every player."""

    name: Optimizer = setting("adam", "optimizer: adam, adamw, sgd or lars")
    lr: AboveZero = setting(1e-3, "learning rate")
    weight_decay: FromZero = setting(
        1e-5, "weight decay; adamw subtracts it from the weights, the others add it to the gradient"
    )
    backbone_lr: Annotated[AboveZero | None, Nothing] = setting(
        None, "learning rate of the encoder's weights, where it differs from that of the others"
    )
    momentum: Decay = setting(0.9, "momentum of sgd and lars")
    betas: tuple[Decay, Decay] = setting((0.9, 0.999), "decay rates of adam and adamw")
    nesterov: Switch = setting(False, "Nesterov momentum for sgd")

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> "OptimizerConfig":
        if self.nesterov and self.name == "sgd" and self.momentum == 0:
            raise ConfigError(
                [Problem(("momentum",), "must be above 0 with nesterov = true; got 0.0")]
            )
        return self


class ScheduleConfig(Section):
    """How the learning rate changes."""

    name: Schedule = setting("step", "schedule of the learning rate: constant, step or cosine")
    milestones: Annotated[Milestones, OneOrMany] = setting(
        (1 / 3, 2 / 3),
        "when step lowers the rate: in epochs, or, below 1, as shares of all epochs",
    )
    factor: AboveZero = setting(0.1, "factor by which step multiplies the rate at each milestone")
    floor: Share = setting(0.0, "where cosine ends, as a share of `lr`")
    warmup_epochs: FromZero = setting(
        0.0, "epochs at the start during which the rate rises linearly"
    )
    warmup_from: Share = setting(0.01, "where this rise begins, as a share of `lr`")
    per: Pace = setting("epoch", "change the rate after every epoch, or after every step")


class PlayerConfig(Section):
    """What differs for one player of the method from `[optimizer]` and `[schedule]`."""

    name: Annotated[Optimizer | None, Nothing] = setting(None, "as `optimizer.name`")
    lr: Annotated[AboveZero | None, Nothing] = setting(None, "as `optimizer.lr`")
    weight_decay: Annotated[FromZero | None, Nothing] = setting(None, "as `optimizer.weight_decay`")
    backbone_lr: Annotated[AboveZero | None, Nothing] = setting(None, "as `optimizer.backbone_lr`")
    momentum: Annotated[Decay | None, Nothing] = setting(None, "as `optimizer.momentum`")
    betas: Annotated[tuple[Decay, Decay] | None, Nothing] = setting(None, "as `optimizer.betas`")
    nesterov: Annotated[Switch | None, Nothing] = setting(None, "as `optimizer.nesterov`")
    schedule: Annotated[Schedule | None, Nothing] = setting(None, "as `schedule.name`")
    milestones: Annotated[Milestones | None, OneOrMany, Nothing] = setting(
        None, "as `schedule.milestones`"
    )
    factor: Annotated[AboveZero | None, Nothing] = setting(None, "as `schedule.factor`")
    floor: Annotated[Share | None, Nothing] = setting(None, "as `schedule.floor`")
    warmup_epochs: Annotated[FromZero | None, Nothing] = setting(
        None, "as `schedule.warmup_epochs`"
    )
    warmup_from: Annotated[Share | None, Nothing] = setting(None, "as `schedule.warmup_from`")
    per: Annotated[Pace | None, Nothing] = setting(None, "as `schedule.per`")


class TrainConfig(Section):
    """How long and how training runs."""

    epochs: WholeAboveZero = setting(80, "passes over the training set")
    steps: Annotated[WholeAboveZero | None, Nothing] = setting(
        None,
        "stop after this many steps, if the epochs do not end before; the schedule spans whatever "
        "ends first",
    )
    batch_size: BatchSize = setting(256, "samples in a batch, over all processes together")
    drop_last: Switch = setting(False, "leave out a last batch that is not full")
    precision: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "precision of the arithmetic; bfloat16 and float16 are mixed precision"
    )
    clip: Annotated[AboveZero | None, Nothing] = setting(
        None, "largest gradient norm, for each player"
    )
    compile: Switch = setting(False, "run encoders through torch.compile")
    channels_last: Switch = setting(False, "use the memory layout that convolutions on CUDA prefer")
    deterministic: Switch = setting(
        False, "compute with deterministic algorithms alone (`docs/reliability.md`)"
    )
    device: Annotated[str, AfterValidator(_device)] = setting(
        "auto", "device: auto, cpu, cuda, cuda:1, mps, …"
    )
    workers: Annotated[Whole, Field(ge=0, le=256)] = setting(0, "processes that decode image files")
    checkpoint_seconds: FromZero = setting(
        60.0, "seconds between checkpoints; 0: one after every step"
    )
    timeout_seconds: Annotated[Number, Field(ge=10, le=604800)] = setting(
        300.0,
        "with several processes: seconds after which one that does not come ends the run, from 10 "
        "to 604800 (`docs/many-runs.md`)",
    )
    keep: WholeAboveZero = setting(2, "number of checkpoints to keep")
    log_steps: WholeAboveZero = setting(50, "steps between lines of the log")
    tensorboard: Switch = setting(False, 'the same as "tensorboard" among `train.trackers`')
    trackers: Annotated[tuple[TrackerName, ...], OneOrMany, AfterValidator(_each_once)] = setting(
        (),
        "tools that show the run's numbers: tensorboard, wandb, mlflow, trackio "
        "(`docs/tracking.md`)",
    )
    tracked_images: Annotated[Whole, Field(ge=0, le=10_000)] = setting(
        12, "most wrong test images that trackers are sent, in one picture; 0: none"
    )


class EvaluateConfig(Section):
    """What is evaluated, when, and which weights the result is about."""

    every: WholeFromZero = setting(1, "epochs between evaluations; 0: only at the end")
    classifiers: Annotated[
        tuple[Classifier, ...], Field(min_length=1), OneOrMany, AfterValidator(_each_once)
    ] = setting(
        ("own", "probe", "knn"),
        "classifiers that predict at the end: the method's own, a linear probe, k-NN, or linear "
        "evaluation (`docs/evaluation.md`)",
    )
    report_classifier: Literal["online", "fitted", "knn"] = setting(
        "online",
        "classifier that the result is about, and that predict and export use: the method's own as "
        "it was trained, one fitted to convergence on its features, or nearest neighbours "
        "(`docs/evaluation.md`)",
    )
    resamples: Annotated[Whole, Field(ge=1, le=1_000_000)] = setting(
        1000, "resamples of the bootstrap for the intervals"
    )
    report: Literal["last", "best-on-validation"] = setting(
        "last",
        "which weights the result is about; the best are chosen in the method's final stage "
        "(`docs/methods.md`)",
    )
    select: Selection = setting(
        "cell-mean",
        'accuracy by which "best on validation" is chosen; plain unless `data.bias` is "labels" '
        "and the data have bias labels; ula: balanced by what a proxy network answers, without "
        "any bias label (`docs/evaluation.md`)",
    )
    headline: Accuracy = setting(
        "cell-mean", "accuracy that tables show first; plain if the data do not have it"
    )
    similarities: Switch = setting(
        False,
        "record at every evaluation how similar test samples are that share label or bias "
        "(`docs/evaluation.md`)",
    )
    batch_size: BatchSize = setting(256, "samples in a batch of the evaluation")
    linear_lr: AboveZero = setting(5.0, "linear evaluation: learning rate of its SGD")
    linear_epochs: WholeAboveZero = setting(
        100, "linear evaluation: passes over the training set, each through the encoder"
    )
    linear_batch_size: BatchSize = setting(512, "linear evaluation: samples in a batch")
    linear_momentum: Decay = setting(0.9, "linear evaluation: momentum of its SGD")
    linear_weight_decay: FromZero = setting(0.0, "linear evaluation: weight decay of its SGD")
    linear_milestones: Annotated[Milestones, OneOrMany] = setting(
        (0.6, 0.75, 0.9),
        "linear evaluation: when the rate falls, in epochs or, below 1, as shares of "
        "`linear_epochs`",
    )
    linear_factor: AboveZero = setting(
        0.2, "linear evaluation: factor by which the rate is multiplied at each milestone"
    )


class Config(Section):
    """Everything a run depends on."""

    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = setting(
        0, "random seed for data, weights and batches; `data.seed` sets another one for the dataset"
    )
    data: DataConfig = Field(default_factory=DataConfig)
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    method: MethodConfig = Field(default_factory=MethodConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    players: dict[str, PlayerConfig] = Field(default_factory=dict)
    train: TrainConfig = Field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    # Which code of their own the user trusts and gave; no setting.
    _code: Code = PrivateAttr(default_factory=Code)
    # What was chosen for the user's own images, in sentences; no setting.
    _notes: Notes = PrivateAttr(default_factory=Notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was chosen for people's own images and why, in sentences."""
        return self._notes.lines

    @property
    def unknown_bias(self) -> bool:
        """True if the method was chosen for people's own images without knowing their bias."""
        return self._notes.unknown_bias

    def with_notes(self, *lines: str) -> "Config":
        """Return the same configuration with other sentences, and nothing left to be found out.

        Args:
            lines: about what was chosen.
        """
        same = self.model_copy()
        same._notes = Notes(lines)
        return same

    @model_validator(mode="after")
    def _choose_without_hidden_labels(self) -> "Config":
        """Do not choose by bias labels where methods may not see them."""
        if self.data.bias != "labels" and self.evaluate.select not in ("plain", "ula"):
            chosen = self.evaluate.model_copy(update={"select": "plain"})
            # The model is frozen.
            object.__setattr__(self, "evaluate", chosen)
        return self

    @model_validator(mode="after")
    def _frozen_has_no_rate(self) -> "Config":
        rates = {"optimizer": self.optimizer.backbone_lr}
        rates |= {f"players.{name}": own.backbone_lr for name, own in self.players.items()}
        for section, rate in rates.items():
            if self.network.freeze and rate is not None:
                says = f"does nothing with network.freeze = true; leave one out (got {rate:g})"
                raise ConfigError([Problem((*section.split(".", 1), "backbone_lr"), says)])
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
        """Return what a player learns with.

        The run's settings ← what the method wants for the player ← [players.NAME].

        Args:
            differs: what the method wants for it, as keys of [players.NAME].
        """
        own = given_fields(self.players[player]) if player in self.players else {}
        wanted = given_fields(PlayerConfig(**(differs or {})))
        chosen = {**wanted, **own}
        optimizer = given_fields(self.optimizer)
        schedule = given_fields(self.schedule)
        for key, value in chosen.items():
            if key == "schedule":
                schedule["name"] = value
            elif key in OptimizerConfig.model_fields:
                optimizer[key] = value
            else:
                schedule[key] = value
        return OptimizerConfig(**optimizer), ScheduleConfig(**schedule)


@dataclass(frozen=True)
class Key:
    """One line of docs/configuration.md.

    Args:
        default: as TOML; empty if there is none.
        range: of its numbers; empty if it holds none.
    """

    path: str
    default: str
    range: str
    meaning: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


@cache
def all_keys() -> tuple[Key, ...]:
    """Return every key there is, except the options of datasets, networks and methods."""
    found = []
    for name, field in Config.model_fields.items():
        section = PlayerConfig if name == "players" else field.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            found.append(_key(name, field))
            continue
        prefix = "players.NAME" if name == "players" else name
        for key, inner in section.model_fields.items():
            if key != "options":
                found.append(_key(f"{prefix}.{key}", inner))
    return tuple(found)


def _key(path: str, field: FieldInfo) -> Key:
    default = "" if field.default is None else toml.value(field.default)
    range = in_words(field.annotation, field.metadata)
    return Key(path, default, range, field.description or "")


def given_fields(section: Section) -> Layer:
    """Return a section's own fields that are not None.

    Args:
        section: any section; options are left out.
    """
    return {key: value for key, value in section if value is not None and key != "options"}
