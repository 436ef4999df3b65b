"""From TOML in layers to a configuration, and back.

model defaults ← preset of the dataset ← the user's file ← arguments ← --set KEY=VALUE
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fairmargin.config import toml
from fairmargin.config.errors import PAGE, ConfigError, Problem
from fairmargin.config.options import written
from fairmargin.config.schema import (
    Config,
    DataConfig,
    Layer,
    MethodConfig,
    Named,
    NetworkConfig,
    Section,
    given_fields,
)
from fairmargin.data import DATASETS, is_own

# Keys that had another spelling before 0.1.0, still read from files, run folders and --set.
OLD_KEYS = {"optimiser": "optimizer", "normalise": "normalize"}


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
    preset_is_for = {
        **{section: _last_name(section, [preset]) for section in NAMED},
        "data": final["data"],
    }
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
    return toml.document(_plain(config))


def extended(file: Path | None, more: Layer) -> str:
    """TOML text: a configuration file with more in it."""
    return toml.document(_merge({} if file is None else _read(file), more))


def difference(a: Config, b: Config) -> list[str]:
    """What changes from `a` to `b`: "train.epochs 24 → 80"."""
    old, new = dict(toml.leaves(_plain(a))), dict(toml.leaves(_plain(b)))
    shown: Callable[[Layer, str], str] = lambda values, key: (
        toml.value(values[key]) if key in values else "not set"
    )
    return [
        f"{k} {shown(old, k)} → {shown(new, k)}"
        for k in {**old, **new}
        if shown(old, k) != shown(new, k)
    ]


def presets() -> list[str]:
    """The datasets that have one."""
    return [name for name in DATASETS if _preset_file(name).is_file()]


NAMED: dict[str, type[Named]] = {
    "data": DataConfig,
    "network": NetworkConfig,
    "method": MethodConfig,
}


def _last_name(section: str, layers: Sequence[Layer]) -> Any:
    """What the topmost layer that names it calls the dataset, network or method; else the default."""
    tables = [layer[section] for layer in layers if isinstance(layer.get(section), dict)]
    default = NAMED[section].model_fields["name"].default
    return next((table["name"] for table in reversed(tables) if "name" in table), default)


def _for_method(layer: Layer, method: Any) -> Layer:
    """What a layer wants for that method: its tables [methods."NAME"] and [methods."NAME, OTHER"], later ones winning."""
    tables = layer.get("methods", {})
    if not isinstance(tables, dict) or not all(
        isinstance(table, dict) for table in tables.values()
    ):
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
        merged[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def _without_none(layer: Layer) -> Layer:
    tables = {k: _without_none(v) if isinstance(v, dict) else v for k, v in layer.items()}
    return {k: v for k, v in tables.items() if v is not None and v != {}}


def _dataset(dataset: str | None) -> Layer:
    if dataset is not None and is_own(dataset):
        return {"name": "folder", "root": dataset}
    return {"name": dataset}


def _preset_file(dataset: str) -> Any:
    return resources.files("fairmargin") / "config" / "presets" / f"{dataset}.toml"


def _preset(dataset: Any) -> Layer:
    if (
        not isinstance(dataset, str)
        or dataset not in DATASETS
        or not _preset_file(dataset).is_file()
    ):
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
    return _renamed(layer)


def _renamed(layer: Layer) -> Layer:
    """The same tables with `OLD_KEYS` under their present names, at any depth; present names win."""
    renamed: Layer = {}
    for key, value in layer.items():
        value = _renamed(value) if isinstance(value, dict) else value
        new = OLD_KEYS.get(key, key)
        if new != key and new in layer:
            continue
        renamed[new] = value
    return renamed


def _toml_or_text(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return (
            float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)", text) else text
        )  # .5, which TOML does not take
    return parsed["value"] if parsed.keys() == {"value"} else text


def _read(file: Path) -> Layer:
    """The tables of a TOML file, with old keys under their present names."""
    if file.is_dir():
        hint = f"; did you mean {file / 'config.toml'}?" if (file / "config.toml").is_file() else ""
        raise ConfigError(f"{file} is a folder, not a configuration file{hint}")
    try:
        text = file.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {file}") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{file} is not a text file in UTF-8; a configuration is TOML, see {PAGE}"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    try:
        return _renamed(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).removesuffix(")").rpartition(" (at ")
        raise ConfigError(
            f"{file}, {where}: {what[:1].lower()}{what[1:]}. Is it TOML? See {PAGE}"
        ) from None


def _plain(config: Config) -> Layer:
    """Nested tables as a TOML file has them."""
    tables: Layer = {}
    for key, value in config:
        if isinstance(value, Named):
            tables[key] = {name: _plain_value(v) for name, v in given_fields(value).items()}
            # An option with the name of one of our own keys, as `bias` of utkface, goes into a table of its own.
            options = {written(name): _plain_value(v) for name, v in value.options.items()}
            tables[key] |= {
                name: v for name, v in options.items() if name not in type(value).model_fields
            }
            if hidden := {
                name: v for name, v in options.items() if name in type(value).model_fields
            }:
                tables[key]["options"] = hidden
        elif isinstance(value, Section):
            tables[key] = {
                name: _plain_value(v) for name, v in value
            }  # a preset may have what is "none" here
        elif key != "players":
            tables[key] = value
        elif value:
            tables[key] = {player: given_fields(own) for player, own in value.items()}
    return tables


def _plain_value(value: Any) -> Any:
    if isinstance(value, Path):
        return "./none" if str(value) == "none" else str(value)  # else it would be read as nothing
    return "none" if value is None else value
