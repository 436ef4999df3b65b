"""Settings of a run: frozen models, read from TOML in layers, with every problem reported at once.

    model defaults ← preset of the dataset ← the user's file ← arguments ← --set KEY=VALUE

docs/configuration.md lists every key. Options of a dataset, a network or a method stand flat beside its name, and are the
keywords of its builder.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
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

from fairmargin import toml_text
from fairmargin.builder_options import Option, none_is_nothing, options_of, written
from fairmargin.checks import check_choice
from fairmargin.data import DATASETS, is_own
from fairmargin.networks import ENCODERS

PAGE = "docs/configuration.md"
Layer = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """What is wrong with one key. An empty path: with the file, or with all."""

    path: tuple[str | int, ...]
    says: str = ""  # after the path: "must be at least 1; got 0"
    unknown: bool = False
    siblings: tuple[str, ...] = ()  # of an unknown key

    def under(self, *parents: str | int) -> "Problem":
        return replace(self, path=(*parents, *self.path))

    def __str__(self) -> str:
        if not self.unknown:
            return f"{_dotted(self.path)} {self.says}".strip()
        *parents, last = self.path
        near = difflib.get_close_matches(str(last), self.siblings, n=1, cutoff=0.6)
        meant = [_dotted((*parents, near[0]))] if near else [key.path for key in all_keys() if key.name == last]
        hint = f'did you mean "{meant[0]}"? ' if meant else ""
        choices = "" if meant or not self.siblings else f"there are {', '.join(self.siblings)}. "
        return f'unknown key "{_dotted(self.path)}"; {hint}{choices}See {PAGE}'


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, one problem per line."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems = [Problem((), problems)] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(dict.fromkeys(map(str, self.problems))))


def _each_once(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise ValueError(f"must name each once; got {toml_text.value(values)}")
    return values


def _device(name: str) -> str:
    try:
        if name != "auto":
            torch.device(name)
    except RuntimeError:
        raise ValueError(f'must be "auto", "cpu", "cuda", "cuda:1", "mps", …; got {toml_text.value(name)}') from None
    return name


Nothing = BeforeValidator(none_is_nothing)
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Switch = Annotated[bool, Strict()]
FromZero = Annotated[Number, Field(ge=0)]
AboveZero = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Decay = Annotated[Number, Field(ge=0, lt=1)]
Optimiser = Literal["adam", "adamw", "sgd", "lars"]
Schedule = Literal["constant", "step", "cosine"]
ScoreFeatures = Literal["raw", "centred", "probabilities"]
Accuracy = Literal["plain", "cell-mean", "aligned", "conflicting", "worst-group", "train-weighted"]


def setting(default: Any, meaning: str) -> Any:
    return Field(default=default, description=meaning)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_problems(error, tuple(type(self).model_fields))) from None


class _Named(_Section):
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
                wrong = _problems(error)
                wrong = [replace(wrong[0], path=())] if option.several_kinds else wrong
                problems += [problem.under(*path) for problem in wrong]
        if problems:
            raise ConfigError(problems)
        return {p: v for p, v in options.items() if v is not None or known[written(p)].default is not None}


class DataConfig(_Named):
    what = "dataset"
    name: str = setting("biased-mnist-mini", "`fairmargin list` shows all; options: its builder's keywords")
    root: Annotated[Path | None, Nothing] = setting(
        None, 'folder of all data, else `$FAIRMARGIN_DATA`, else the user\'s cache; of "folder": the images'
    )
    bias: Literal["labels", "none", "scores", "clusters"] = setting(
        "labels",
        "what methods see of the bias: the dataset's labels, nothing, the features `fairmargin scores` wrote, or labels "
        "from clusters of these",
    )
    scores: Annotated[Path | None, Nothing] = setting(
        None, "the folder of `fairmargin scores`, or one that holds seed-SEED; else runs/scores/DATASET/seed-SEED"
    )
    score_features: Annotated[ScoreFeatures | None, Nothing] = setting(
        None, "how the scores are read: raw (if not set), centred or probabilities"
    )
    clusters: Annotated[Annotated[Whole, Field(ge=2)] | None, Nothing] = setting(
        None, 'of bias = "clusters": how many; else as many as classes, or 2 of each class'
    )
    clusters_of: Annotated[Literal["class", "all"] | None, Nothing] = setting(
        None, 'of bias = "clusters": "all" samples together (if not set), or each "class" for itself'
    )
    inject: Annotated[str | None, Nothing] = setting(
        None, "plant a shortcut, KIND:RHO such as colour:0.95, with its bias labels (`docs/audit.md`)"
    )
    sampler: Literal["auto", "shuffled", "class-balanced", "group-balanced", "bias-aware", "weighted"] = setting(
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


class NetworkConfig(_Named):
    what = "encoder"
    name: str = setting("simple-conv-7", "the encoder; options: keywords of its class")

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        return ENCODERS


class MethodConfig(_Named):
    what = "method"
    name: str = setting("eps-supinfonce+fairkl", "the method; options: its builder's keywords")

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        from fairmargin.methods import METHODS

        return METHODS


class OptimiserConfig(_Section):
    name: Optimiser = setting("adam", "adam, adamw, sgd or lars")
    lr: AboveZero = setting(1e-3, "learning rate")
    weight_decay: FromZero = setting(1e-5, "adamw takes it off the weights, the others add it to the gradient")
    momentum: Decay = setting(0.9, "of sgd and lars")
    betas: tuple[Decay, Decay] = setting((0.9, 0.999), "of adam and adamw")
    nesterov: Switch = setting(False, "of sgd")

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> "OptimiserConfig":
        if self.nesterov and self.name == "sgd" and self.momentum == 0:
            raise ConfigError([Problem(("momentum",), "must be above 0 with nesterov = true; got 0.0")])
        return self


class ScheduleConfig(_Section):
    name: Schedule = setting("step", "constant, step or cosine")
    milestones: tuple[FromZero, ...] = setting(
        (1 / 3, 2 / 3), "of step, when the rate falls: epochs, or below 1 shares of all epochs"
    )
    factor: AboveZero = setting(0.1, "of step, by which the rate is multiplied at each")
    floor: Share = setting(0.0, "of cosine, where it ends, as a share of `lr`")
    warmup_epochs: FromZero = setting(0.0, "the rate rises linearly for so long")
    warmup_from: Share = setting(0.01, "where it begins to rise, as a share of `lr`")
    per: Literal["epoch", "step"] = setting("epoch", "change the rate between epochs, or at every step")


class PlayerConfig(_Section):
    """What differs for one player of the method from `[optimiser]` and `[schedule]`; nothing: it does not."""

    name: Annotated[Optimiser | None, Nothing] = setting(None, "as `optimiser.name`")
    lr: Annotated[AboveZero | None, Nothing] = setting(None, "as `optimiser.lr`")
    weight_decay: Annotated[FromZero | None, Nothing] = setting(None, "as `optimiser.weight_decay`")
    momentum: Annotated[Decay | None, Nothing] = setting(None, "as `optimiser.momentum`")
    betas: Annotated[tuple[Decay, Decay] | None, Nothing] = setting(None, "as `optimiser.betas`")
    nesterov: Annotated[Switch | None, Nothing] = setting(None, "as `optimiser.nesterov`")
    schedule: Annotated[Schedule | None, Nothing] = setting(None, "as `schedule.name`")
    milestones: Annotated[tuple[FromZero, ...] | None, Nothing] = setting(None, "as `schedule.milestones`")
    factor: Annotated[AboveZero | None, Nothing] = setting(None, "as `schedule.factor`")
    floor: Annotated[Share | None, Nothing] = setting(None, "as `schedule.floor`")
    warmup_epochs: Annotated[FromZero | None, Nothing] = setting(None, "as `schedule.warmup_epochs`")
    warmup_from: Annotated[Share | None, Nothing] = setting(None, "as `schedule.warmup_from`")
    per: Annotated[Literal["epoch", "step"] | None, Nothing] = setting(None, "as `schedule.per`")


class TrainConfig(_Section):
    epochs: Annotated[Whole, Field(ge=1)] = setting(80, "passes over the training set")
    steps: Annotated[Annotated[Whole, Field(ge=1)] | None, Nothing] = setting(
        None, "stop after so many steps, if the epochs are not over before; the schedule spans what comes first"
    )
    batch_size: Annotated[Whole, Field(ge=1)] = setting(256, "over all processes together")
    drop_last: Switch = setting(False, "leave out a last batch that is not full")
    precision: Literal["float32", "bfloat16", "float16"] = setting("float32", "half precision is mixed")
    clip: Annotated[AboveZero | None, Nothing] = setting(None, "largest gradient norm, for each player")
    compile: Switch = setting(False, "encoders through torch.compile")
    channels_last: Switch = setting(False, "memory layout that convolutions on CUDA prefer")
    device: Annotated[str, AfterValidator(_device)] = setting("auto", "auto, cpu, cuda, cuda:1, mps, …")
    workers: Annotated[Whole, Field(ge=0)] = setting(0, "processes that decode image files")
    checkpoint_seconds: FromZero = setting(60.0, "between checkpoints; 0: after every step")
    keep: Annotated[Whole, Field(ge=1)] = setting(2, "checkpoints kept")
    log_steps: Annotated[Whole, Field(ge=1)] = setting(50, "steps between lines of the log")
    tensorboard: Switch = setting(False, "write events for TensorBoard too")


class EvaluateConfig(_Section):
    every: Annotated[Whole, Field(ge=0)] = setting(1, "epochs between evaluations; 0: only at the end")
    classifiers: Annotated[
        tuple[Literal["own", "probe", "knn", "linear"], ...], Field(min_length=1), AfterValidator(_each_once)
    ] = setting(
        ("own", "probe", "knn"),
        "which predict at the end: the method's own, a linear probe, k-NN; linear: linear evaluation (`docs/evaluation.md`)",
    )
    resamples: Annotated[Whole, Field(ge=1)] = setting(1000, "of the bootstrap behind the intervals")
    report: Literal["last", "best-on-validation"] = setting(
        "last", "whose weights the result is about; the best is of the method's final stage (`docs/methods.md`)"
    )
    select: Accuracy = setting(
        "cell-mean", 'what "best on validation" compares; plain unless `data.bias` is "labels" and there are some'
    )
    headline: Accuracy = setting(
        "cell-mean", "the accuracy that tables show first; plain where the data do not have it"
    )
    similarities: Switch = setting(
        False, "record at every evaluation how similar test samples are that share label or bias (`docs/evaluation.md`)"
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


class Config(_Section):
    """Everything a run depends on."""

    seed: Annotated[Whole, Field(ge=0, lt=2**32)] = setting(
        0, "of everything random; of the dataset too, unless `data.seed` says otherwise"
    )
    data: DataConfig = Field(default_factory=DataConfig)
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    method: MethodConfig = Field(default_factory=MethodConfig)
    optimiser: OptimiserConfig = Field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    players: dict[str, PlayerConfig] = Field(default_factory=dict)
    train: TrainConfig = Field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)

    @model_validator(mode="after")
    def _choose_without_hidden_labels(self) -> "Config":
        """Methods that may not see the bias labels may not be chosen by them either."""
        if self.data.bias != "labels" and self.evaluate.select != "plain":
            object.__setattr__(self, "evaluate", self.evaluate.model_copy(update={"select": "plain"}))  # it is frozen
        return self

    @model_validator(mode="after")
    def _players_fit(self) -> "Config":
        for player in self.players:
            try:
                self.for_player(player)
            except ConfigError as error:
                raise ConfigError([problem.under("players", player) for problem in error.problems]) from None
        return self

    def for_player(
        self, player: str, differs: Mapping[str, Any] | None = None
    ) -> tuple[OptimiserConfig, ScheduleConfig]:
        """What a player learns with: the run's settings ← what the method wants for it (`differs`) ← [players.NAME]."""
        own = _given(self.players[player]) if player in self.players else {}
        chosen = {**PlayerConfig(**(differs or {})).model_dump(exclude_none=True), **own}
        optimiser = {key: chosen[key] for key in OptimiserConfig.model_fields if key in chosen}
        schedule = {key: chosen[key] for key in ScheduleConfig.model_fields if key in chosen and key != "name"}
        if "schedule" in chosen:
            schedule["name"] = chosen["schedule"]
        return OptimiserConfig(**_given(self.optimiser) | optimiser), ScheduleConfig(**_given(self.schedule) | schedule)


def load(
    file: Path | None = None,
    *,
    dataset: str | None = None,
    network: str | None = None,
    method: str | None = None,
    bias: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """The configuration of a new run.

    Args:
        file: TOML of the user's own.
        dataset: a name, or the path of a manifest or an image folder.
        bias: what methods see of it: `data.bias`.
        overrides: "train.epochs=3"; the value is read as TOML, or else as text. Later ones win.
    """
    stated = {} if file is None else _read(Path(file))
    arguments = {
        "data": {**_dataset(dataset), "bias": bias},
        "network": {"name": network},
        "method": {"name": method},
        "seed": seed,
    }
    parsed = _parsed(overrides)
    given = [_without_none(arguments), parsed]
    preset = _preset(_last_name("data", [stated, *given]))
    chosen = _last_name("method", [preset, stated, *given])
    for_method = _for_method(preset, chosen)
    users = [stated, _for_method(stated, chosen), *given, _for_method(parsed, chosen)]

    final = {section: _last_name(section, [preset, for_method, *users]) for section in NAMED}
    preset_is_for = {**{section: _last_name(section, [preset]) for section in NAMED}, "data": final["data"]}
    merged = _belonging(preset, final, preset_is_for)
    merged = _merge(merged, _belonging(for_method, final, {**preset_is_for, "method": chosen}))
    for layer in users:
        merged = _merge(merged, _belonging(layer, final, final))
    merged.pop("methods", None)
    config = Config(**merged)
    _check_tables(config, stated, parsed)
    return config


def _check_tables(config: Config, *layers: Layer) -> None:
    """What a user wants for other methods, of which this run reads nothing, must make sense too."""
    for layer in layers:
        for names, table in layer.get("methods", {}).items():
            for method in _split_names(names):
                _check_table(config, names, method, table)


def _check_table(config: Config, names: str, method: str, table: Layer) -> None:
    """`names` is the table's key, for the message; `method` one of them."""
    if method not in (known := MethodConfig.builders()):
        raise ConfigError([Problem(("methods", method), unknown=True, siblings=tuple(known))])
    if method == config.method.name:
        return
    named = {
        "data": _plain(config)["data"],
        "network": {"name": config.network.name},
        "method": {"name": method},
    }
    try:
        Config(**_merge(named, table))
    except ConfigError as error:
        raise ConfigError([problem.under("methods", names) for problem in error.problems]) from None


def load_resolved(file: Path) -> Config:
    """What `dump` wrote, and nothing else: presets may have changed since."""
    return Config(**_read(Path(file)))


def override(config: Config, overrides: Sequence[str]) -> Config:
    """Another configuration: this one with some keys changed. A new name drops the options of the old."""
    base, layer = _plain(config), _parsed(overrides)
    final = {section: _last_name(section, [base, layer]) for section in NAMED}
    return Config(**_merge(_belonging(base, final, final), layer))


def dump(config: Config) -> str:
    """TOML text; `load_resolved` gives the same configuration from it."""
    return toml_text.document(_plain(config))


def extended(file: Path | None, more: Layer) -> str:
    """TOML text: a configuration file with more in it."""
    return toml_text.document(_merge({} if file is None else _read(file), more))


def difference(a: Config, b: Config) -> list[str]:
    """What changes from `a` to `b`: "train.epochs 24 → 80"."""
    old, new = dict(toml_text.leaves(_plain(a))), dict(toml_text.leaves(_plain(b)))
    shown: Callable[[Layer, str], str] = lambda values, key: (
        toml_text.value(values[key]) if key in values else "not set"
    )
    return [f"{k} {shown(old, k)} → {shown(new, k)}" for k in {**old, **new} if shown(old, k) != shown(new, k)]


def presets() -> list[str]:
    """The datasets that have one."""
    return [name for name in DATASETS if _preset_file(name).is_file()]


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
        if not (isinstance(section, type) and issubclass(section, _Section)):
            found.append(Key(name, toml_text.value(field.default), field.description or ""))
            continue
        prefix = "players.NAME" if name == "players" else name
        for key, inner in section.model_fields.items():
            if key != "options":
                default = "" if inner.default is None else toml_text.value(inner.default)
                found.append(Key(f"{prefix}.{key}", default, inner.description or ""))
    return tuple(found)


# Layers


NAMED: dict[str, type[_Named]] = {"data": DataConfig, "network": NetworkConfig, "method": MethodConfig}


def _last_name(section: str, layers: Sequence[Layer]) -> Any:
    """What the topmost layer that names it calls the dataset, network or method; else the default."""
    tables = [layer[section] for layer in layers if isinstance(layer.get(section), dict)]
    default = NAMED[section].model_fields["name"].default
    return next((table["name"] for table in reversed(tables) if "name" in table), default)


def _for_method(layer: Layer, method: Any) -> Layer:
    """What a layer wants for that method: its tables [methods."NAME"] and [methods."NAME, OTHER"], later ones winning."""
    tables = layer.get("methods", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError([Problem(("methods",), 'must hold tables such as [methods."ce".train]')])
    merged: Layer = {}
    for names, table in tables.items():
        if method in _split_names(names):
            merged = _merge(merged, table)
    return merged


def _split_names(key: str) -> list[str]:
    """The methods that a table is for: "ce, gce" are two."""
    return [name.strip() for name in key.split(",")]


def _belonging(layer: Layer, final: Mapping[str, Any], otherwise: Mapping[str, Any]) -> Layer:
    """Without the options of a dataset, network or method that another layer replaces: they belong to that one.

    `otherwise` says whose they are where the layer does not.
    """
    kept = dict(layer)
    for section, model in NAMED.items():
        table = layer.get(section)
        if isinstance(table, dict) and table.get("name", otherwise[section]) != final[section]:
            own = model.model_fields.keys() - {"options"}
            kept[section] = {key: value for key, value in table.items() if key in own}
    return kept


def _merge(below: Layer, above: Layer) -> Layer:
    merged = dict(below)
    for key, value in above.items():
        old = below.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _without_none(layer: Layer) -> Layer:
    tables = {k: _without_none(v) if isinstance(v, dict) else v for k, v in layer.items()}
    return {k: v for k, v in tables.items() if v is not None and v != {}}


def _dataset(dataset: str | None) -> Layer:
    if dataset is not None and is_own(dataset):
        return {"name": "folder", "root": dataset}
    return {"name": dataset}


def _preset_file(dataset: str) -> Any:
    return resources.files("fairmargin") / "configs" / f"{dataset}.toml"


def _preset(dataset: Any) -> Layer:
    if not isinstance(dataset, str) or dataset not in DATASETS or not _preset_file(dataset).is_file():
        return {}
    return tomllib.loads(_preset_file(dataset).read_text("utf-8"))


def _parsed(overrides: Sequence[str]) -> Layer:
    layer: Layer = {}
    for text in overrides:
        path, equals, value = text.partition("=")
        names = [name.strip() for name in path.split(".")]
        if not equals or not all(names):
            raise ConfigError(f'--set takes KEY=VALUE, such as --set train.epochs=3; got "{text}"')
        nested = _toml_or_text(value.strip())
        for name in reversed(names):
            nested = {name: nested}
        layer = _merge(layer, nested)
    return layer


def _toml_or_text(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)", text) else text  # .5, which TOML does not take
    return parsed["value"] if parsed.keys() == {"value"} else text


def _read(file: Path) -> Layer:
    """The tables of a TOML file."""
    if file.is_dir():
        hint = f"; did you mean {file / 'config.toml'}?" if (file / "config.toml").is_file() else ""
        raise ConfigError(f"{file} is a folder, not a configuration file{hint}")
    try:
        text = file.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {file}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a text file in UTF-8; a configuration is TOML, see {PAGE}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).removesuffix(")").rpartition(" (at ")
        raise ConfigError(f"{file}, {where}: {what[:1].lower()}{what[1:]}. Is it TOML? See {PAGE}") from None


# Problems in words


KINDS = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number", "bool_type": "true or false",
    "string_type": "text", "path_type": "a path", "tuple_type": "a list", "sequence_str": "a list", "list_type": "a list",
    "model_type": "a table", "dict_type": "a table", "is_instance_of": "a list", "finite_number": "a finite number",
}  # fmt: skip
BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _problems(error: ValidationError, siblings: tuple[str, ...] = ()) -> list[Problem]:
    found: dict[tuple[str | int, ...], list[Problem]] = {}
    for item in error.errors(include_url=False):
        path = item["loc"]
        inner = item.get("ctx", {}).get("error")
        if isinstance(inner, ConfigError):
            parents = path[:-1] if path[-1:] == ("options",) else path  # options stand flat beside the name
            found[path] = [problem.under(*parents) for problem in inner.problems]
        elif item["type"] == "extra_forbidden":
            found[path] = [Problem(path, unknown=True, siblings=siblings)]
        else:
            found.setdefault(path, [Problem(path, _says(item["type"], item["input"], item.get("ctx", {})))])
    return [problem for problems in found.values() for problem in problems]


def _says(kind: str, value: Any, context: Mapping[str, Any]) -> str:
    got = toml_text.value(value)
    got = f"got {got if len(got) <= 60 else got[:59] + '…'}"
    if kind == "value_error":
        says = str(context["error"])
        return f"is wrong: {says}" if says.startswith("unknown") else says
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        return f"must be one of {', '.join(map(toml_text.value, choices))}; {got}{hint}"
    if kind in BOUNDS:
        words, bound = BOUNDS[kind]
        limit = context[bound]
        return f"must be {words} {limit if isinstance(limit, int) else f'{limit:g}'}; {got}"
    if kind in ("too_short", "too_long"):
        return f"must have {context.get('min_length', context.get('max_length'))} values; {got}"
    if kind == "missing":
        return "is missing"
    return f"must be {KINDS.get(kind, 'something else')}; {got}"


def _dotted(path: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


# Plain tables


def _given(section: _Section) -> Layer:
    """A section's own fields that are not nothing."""
    return {key: value for key, value in section if value is not None and key != "options"}


def _plain(config: Config) -> Layer:
    """Nested tables as a TOML file has them."""
    tables: Layer = {}
    for key, value in config:
        if isinstance(value, _Named):
            tables[key] = {name: _plain_value(v) for name, v in _given(value).items()}
            # An option with the name of one of our own keys, as `bias` of utkface, goes into a table of its own.
            options = {written(name): _plain_value(v) for name, v in value.options.items()}
            tables[key] |= {name: v for name, v in options.items() if name not in type(value).model_fields}
            if hidden := {name: v for name, v in options.items() if name in type(value).model_fields}:
                tables[key]["options"] = hidden
        elif isinstance(value, _Section):
            tables[key] = {name: _plain_value(v) for name, v in value}  # a preset may have what is "none" here
        elif key != "players":
            tables[key] = value
        elif value:
            tables[key] = {player: _given(own) for player, own in value.items()}
    return tables


def _plain_value(value: Any) -> Any:
    if isinstance(value, Path):
        return "./none" if str(value) == "none" else str(value)  # else it would be read as nothing
    return "none" if value is None else value
