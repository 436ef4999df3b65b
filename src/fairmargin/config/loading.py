"""Read a configuration from TOML in layers, and write it.

defaults ← preset of the dataset ← the user's file ← arguments ← --set KEY=VALUE
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fairmargin.config import toml
from fairmargin.config.code import allowed, is_import_path
from fairmargin.config.errors import PAGE, ConfigError, Problem
from fairmargin.config.options import written
from fairmargin.config.own_images import Notes, OwnDefaults, own_defaults, vector_defaults
from fairmargin.config.schema import (
    Config,
    DataConfig,
    Layer,
    MethodConfig,
    NetworkConfig,
    given_fields,
)
from fairmargin.config.sections import Named, Section
from fairmargin.data import DATASETS, is_own, own_kind, own_path
from fairmargin.runtime.whole import refuse_links

# Most tables and lists within each other; no configuration needs ten.
DEEPEST = 50
TOO_DEEP = f"tables and lists are nested more than {DEEPEST} deep; no key needs that"
# Bytes of a configuration file.
LARGEST = 1 << 20
# Keys that were spelled differently in 0.1.0; still read from files, run folders and --set.
OLD_KEYS = {"optimiser": "optimizer", "normalise": "normalize"}
# Beside one of these a configuration was written by a run.
RUN_FILES = (
    "environment.json",
    "data.json",
    "metrics.jsonl",
    "result.json",
    "checkpoints",
    "weights.safetensors",
)


def load(
    file: Path | None = None,
    *,
    dataset: str | None = None,
    network: str | None = None,
    method: str | None = None,
    bias: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    first_look: bool = True,
) -> Config:
    """Return the configuration of a new run.

    Args:
        file: the user's own TOML file.
        dataset: a name, or the path of a manifest or an image folder.
        bias: what methods see of the bias: `data.bias`.
        overrides: such as "train.epochs=3"; the value is read as TOML, or else as text. Later ones
            win.
        first_look: choose defaults for people's own data by the size and number of images, and by
            what is marked as bias and as test (`own_images`); False leaves them at those of every
            dataset.
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
    named = _last_name("data", [stated, *given])
    own = _own_defaults(str(named), [stated, *given]) if first_look else None
    preset = _preset(named) if own is None else _own_preset(own)
    chosen = _last_name("method", [preset, stated, *given])
    for_method = _for_method(preset, chosen)
    users = [stated, _for_method(stated, chosen), *given, _for_method(parsed, chosen)]

    final = {section: _last_name(section, [preset, for_method, *users]) for section in NAMED}
    preset_is_for = {section: _last_name(section, [preset]) for section in NAMED}
    preset_is_for["data"] = final["data"]
    merged = _belonging(preset, final, preset_is_for)
    merged = _merge(merged, _belonging(for_method, final, {**preset_is_for, "method": chosen}))
    for layer in users:
        merged = _merge(merged, _belonging(layer, final, final))
    merged.pop("methods", None)
    config = Config(**merged)
    _check_tables(config, stated, parsed)
    if own is not None:
        by_user = any("name" in layer.get("method", {}) for layer in users)
        lines = _chosen_here(own, config, users, by_user)
        config._notes = Notes(lines, own.unknown and not by_user)
    theirs = users if file is None or not _of_a_run(Path(file)) else users[2:]
    return allowed(config, trusted=_names(theirs))


def _own_defaults(dataset: str, layers: Sequence[Layer]) -> OwnDefaults | None:
    """Return the defaults for people's own data, by the user's layers; None for other datasets."""
    find = {"folder": own_defaults, "embeddings": vector_defaults}.get(dataset)
    if find is None:
        return None
    merged: Layer = {}
    for layer in layers:
        merged = _merge(merged, layer)
    table = merged.get("data")
    return find(table if isinstance(table, dict) else {})


def _own_preset(own: OwnDefaults) -> Layer:
    """Return the presets of people's own images, merged."""
    merged: Layer = {}
    for name in own.presets:
        merged = _merge(merged, tomllib.loads(_preset_file(name).read_text("utf-8")))
    return _merge(merged, own.layer)


def _chosen_here(
    own: OwnDefaults, config: Config, users: Sequence[Layer], by_user: bool
) -> tuple[str, ...]:
    """Return sentences about what was chosen and not given by the user."""
    given = {key for layer in users for key in layer if layer.get(key)}
    found = [own.notes["method"]] if "method" in own.notes and not by_user else []
    if "size" in own.notes and "network" not in given:
        size = config.data.options.get("image_size", 64)
        found.append(
            f"{own.notes['size']}: {config.network.name} at {size} pixels, "
            f"{config.train.epochs} epochs"
        )
    if "test" in own.notes:
        found.append(own.notes["test"])
    return tuple(found)


def _check_tables(config: Config, *layers: Layer) -> None:
    """Check also what the user's tables say for methods other than this run's."""
    for layer in layers:
        for names, table in layer.get("methods", {}).items():
            for method in _split_names(names):
                _check_table(config, names, method, table)


def _check_table(config: Config, names: str, method: str, table: Layer) -> None:
    """Check the table [methods.NAMES] for one of its methods."""
    known = MethodConfig.builders()
    if method not in known:
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
    """Return the configuration that `dump` wrote, without presets: they may have changed.

    Args:
        file: `config.toml` of a run folder.
    """
    refuse_links(Path(file).parent)
    return Config(**_read(Path(file)))


def parse_resolved(text: str) -> Config:
    """Return the configuration that `dump` wrote into a text.

    Args:
        text: TOML.
    """
    return Config(**parse_toml(text))


def override(config: Config, overrides: Sequence[str]) -> Config:
    """Return this configuration with some keys changed.

    A new dataset, network or method drops the options of the old one.

    Args:
        overrides: as in `load`.
    """
    base = _plain(config)
    layer = _parsed(overrides)
    final = {section: _last_name(section, [base, layer]) for section in NAMED}
    changed = Config(**_merge(_belonging(base, final, final), layer))
    code = config._code
    return allowed(changed, trusted=[*code.trusted, *_names([layer])], given=code.given)


def dump(config: Config) -> str:
    """Return the configuration as TOML text, from which `load_resolved` makes the same one."""
    return toml.document(_plain(config))


def extended(file: Path | None, more: Layer) -> str:
    """Return the TOML text of a configuration file with more keys merged into it.

    Args:
        file: None for an empty one.
        more: nested tables.
    """
    tables = {} if file is None else _read(file)
    return toml.document(_merge(tables, more))


def difference(a: Config, b: Config) -> list[str]:
    """Return what changes from `a` to `b`, such as "train.epochs 24 → 80".

    Args:
        a: the old configuration.
        b: the new one.
    """
    old = {key: toml.value(value) for key, value in toml.leaves(_plain(a))}
    new = {key: toml.value(value) for key, value in toml.leaves(_plain(b))}
    changes = []
    for key in {**old, **new}:
        before, after = old.get(key, "not set"), new.get(key, "not set")
        if before != after:
            changes.append(f"{key} {before} → {after}")
    return changes


def settings_of(config: Config) -> dict[str, Any]:
    """Return every setting by its dotted key: {"seed": 0, "train.epochs": 80, …}."""
    return dict(toml.leaves(_plain(config)))


def presets() -> list[str]:
    """Return the datasets that have a preset."""
    return [name for name in DATASETS if _preset_file(name).is_file()]


NAMED: dict[str, type[Named]] = {
    "data": DataConfig,
    "network": NetworkConfig,
    "method": MethodConfig,
}


def _last_name(section: str, layers: Sequence[Layer]) -> Any:
    """Return the name of the dataset, network or method in the last layer that has one.

    If none has, the default.
    """
    tables = [layer[section] for layer in layers if isinstance(layer.get(section), dict)]
    default = NAMED[section].model_fields["name"].default
    return next((table["name"] for table in reversed(tables) if "name" in table), default)


def _for_method(layer: Layer, method: Any) -> Layer:
    """Return what a layer says for one method.

    It is written in tables [methods."NAME"] and [methods."NAME, OTHER"], of which later ones win.
    """
    tables = layer.get("methods", {})
    valid = isinstance(tables, dict) and all(isinstance(t, dict) for t in tables.values())
    if not valid:
        raise ConfigError([Problem(("methods",), 'must hold tables such as [methods."ce".train]')])
    merged: Layer = {}
    for names, table in tables.items():
        if method in _split_names(names):
            merged = _merge(merged, table)
    return merged


def _split_names(key: str) -> list[str]:
    """Return the methods that a table is for: "ce, gce" are two."""
    return [name.strip() for name in key.split(",")]


def _belonging(layer: Layer, final: Mapping[str, Any], otherwise: Mapping[str, Any]) -> Layer:
    """Return a layer without the options of a dataset, network or method that is not used.

    Args:
        final: the names that are used.
        otherwise: the names that options belong to where the layer does not say it.
    """
    kept = dict(layer)
    for section, model in NAMED.items():
        table = layer.get(section)
        if isinstance(table, dict) and table.get("name", otherwise[section]) != final[section]:
            # Weights are those of one network.
            own = model.model_fields.keys() - {"options", "weights"}
            kept[section] = {key: value for key, value in table.items() if key in own}
    return kept


def _merge(below: Layer, above: Layer) -> Layer:
    merged = dict(below)
    for key, value in above.items():
        old = below.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _merge(old, value)
        merged[key] = value
    return merged


def _without_none(layer: Layer) -> Layer:
    kept: Layer = {}
    for key, value in layer.items():
        if isinstance(value, dict):
            value = _without_none(value)
        if value is not None and value != {}:
            kept[key] = value
    return kept


def _names(layers: Sequence[Layer]) -> list[str]:
    """Return the names of datasets and networks that these layers give."""
    tables = [layer.get(section) for layer in layers for section in ("data", "network")]
    return [table["name"] for table in tables if isinstance(table, dict) and "name" in table]


def _of_a_run(file: Path) -> bool:
    """True if a configuration lies in a run folder: it is data then, and no word of the user's."""
    # A link may lead into one.
    folders = (file.parent, file.resolve().parent)
    return any((folder / name).exists() for folder in folders for name in RUN_FILES)


def _dataset(dataset: str | None) -> Layer:
    if is_import_path(dataset) and not Path(str(dataset)).exists():
        return {"name": dataset}
    if dataset is not None and is_own(dataset):
        return {"name": own_kind(dataset), "root": str(own_path(dataset))}
    return {"name": dataset}


def _preset_file(dataset: str) -> Any:
    return resources.files("fairmargin") / "config" / "presets" / f"{dataset}.toml"


def _preset(dataset: Any) -> Layer:
    if not isinstance(dataset, str) or dataset not in DATASETS:
        return {}
    file = _preset_file(dataset)
    return tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}


def _parsed(overrides: Sequence[str]) -> Layer:
    layer: Layer = {}
    for text in overrides:
        path, equals, value = text.partition("=")
        names = [name.strip() for name in path.split(".")]
        if len(names) > DEEPEST:
            raise ConfigError(TOO_DEEP)
        if not equals or not all(names):
            raise ConfigError(f'--set takes KEY=VALUE, such as --set train.epochs=3; got "{text}"')
        nested = _toml_or_text(value.strip())
        for name in reversed(names):
            nested = {name: nested}
        layer = _merge(layer, nested)
    return _renamed(layer)


def _renamed(layer: Layer) -> Layer:
    """Return the same tables with `OLD_KEYS` under their present names, which win, at any depth."""
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
        parsed = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        # TOML does not read .5 and 5. as numbers.
        return float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)", text) else text
    return parsed["value"] if parsed.keys() == {"value"} else text


def parse_toml(text: str) -> Layer:
    """Return the tables of a TOML text, of reasonable depth and with readable numbers.

    Raises a ConfigError for what Python cannot hold, and a TOMLDecodeError for what is no TOML.

    Args:
        text: from anywhere.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ConfigError(TOO_DEEP) from None
    except ValueError:
        # Python reads whole numbers of at most 4,300 digits.
        raise ConfigError("a number has thousands of digits; no key needs that") from None
    if _depth(tables) > DEEPEST:
        raise ConfigError(TOO_DEEP)
    return tables


def _depth(tables: Any) -> int:
    """Return how deep tables and lists are nested, without recursion."""
    depth, level = 0, [tables]
    while level:
        depth += 1
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [one for items in inner for one in items if isinstance(one, dict | list)]
    return depth


def _read(file: Path) -> Layer:
    """Read the tables of a TOML file, with old keys under their present names."""
    if file.is_dir():
        hint = f"; did you mean {file / 'config.toml'}?" if (file / "config.toml").is_file() else ""
        raise ConfigError(f"{file} is a folder, not a configuration file{hint}")
    try:
        # Some devices never end. A pipe may be read: train <(command).
        with file.open("rb") as stream:
            content = stream.read(LARGEST + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {file}") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{file} is not a text file in UTF-8; a configuration is TOML, see {PAGE}"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    if len(content) > LARGEST:
        raise ConfigError(f"{file} has more than {LARGEST >> 20} MiB; is it a configuration?")
    try:
        return _renamed(parse_toml(text))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).removesuffix(")").rpartition(" (at ")
        raise ConfigError(
            f"{file}, {where}: {what[:1].lower()}{what[1:]}. Is it TOML? See {PAGE}"
        ) from None


def _plain(config: Config) -> Layer:
    """Return nested tables as a TOML file has them."""
    tables: Layer = {}
    for key, value in config:
        if isinstance(value, Named):
            tables[key] = _plain_named(value)
        elif isinstance(value, Section):
            # With what is "none": a preset may have a value there.
            tables[key] = {name: _plain_value(v) for name, v in value}
        elif key != "players":
            tables[key] = value
        elif value:
            tables[key] = {player: given_fields(own) for player, own in value.items()}
    return tables


def _plain_named(section: Named) -> Layer:
    table = {name: _plain_value(value) for name, value in given_fields(section).items()}
    own = type(section).model_fields
    hidden: Layer = {}
    for parameter, value in section.options.items():
        name = written(parameter)
        # An option with the name of a key, such as `bias` of utkface, goes into a table of its own.
        target = hidden if name in own else table
        target[name] = _plain_value(value)
    if hidden:
        table["options"] = hidden
    return table


def _plain_value(value: Any) -> Any:
    if isinstance(value, Path):
        # The path "none" would be read as nothing.
        return "./none" if str(value) == "none" else str(value)
    return "none" if value is None else value
