"""Random configurations, in files and after --set, each trained for one step."""

import random
from pathlib import Path
from typing import Annotated, Any

from fairmargin.config.options import Option
from fairmargin.config.ranges import ranges_of
from fairmargin.config.schema import (
    Config,
    DataConfig,
    MethodConfig,
    NetworkConfig,
    PlayerConfig,
    all_keys,
)
from fairmargin.data import DATASETS
from fairmargin.methods import METHODS
from fairmargin.networks import ENCODERS
from tests.fuzz.values import likely, value, within

# Small, so that a good configuration ends at once.
SMALL = {
    "data.train": "48",
    "data.test": "16",
    "data.side": "8",
    "train.batch_size": "16",
    "train.epochs": "1",
    "train.device": '"cpu"',
    "evaluate.resamples": "10",
    "evaluate.classifiers": '"own"',
}
# Processes, long fits and compilers take their time when they are right: only wrong values.
SLOW = ("train.workers", "train.compile", "evaluate.linear_epochs", "train.trackers",
        "train.tensorboard", "data.workers")  # fmt: skip
MODELS = {"data": DataConfig, "network": NetworkConfig, "method": MethodConfig}
NETWORKS = ["mlp", "mlp", "mlp", "simple-conv-3", "simple-conv-1", "simple-conv-7", "resnet20"]


def annotation_of(path: str) -> Any:
    """The type of a key of the schema."""
    if path == "seed":
        return int
    section, *_, key = path.split(".")
    model = PlayerConfig if section == "players" else Config.model_fields[section].annotation
    assert model is not None
    field = model.model_fields[key]
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _options(names: dict[str, str]) -> dict[str, Option]:
    """The options of what was chosen, by their keys."""
    found: dict[str, Option] = {}
    for section, registry in (("data", DATASETS), ("network", ENCODERS), ("method", METHODS)):
        name = names[section]
        if name in registry:
            options = MODELS[section].known(name)
            found |= {f"{section}.{key}": option for key, option in options.items()}
    return found


def make(draw: random.Random, folder: Path) -> list[str]:
    """Write a configuration into the folder, or into words; return the command.

    Args:
        draw: the stream of the case.
        folder: of the case.
    """
    names = {
        "data": "planted" if draw.random() < 0.93 else draw.choice([*DATASETS, "no-such", ""]),
        "network": draw.choice(NETWORKS) if draw.random() < 0.9 else draw.choice([*ENCODERS, "x"]),
        "method": draw.choice([*METHODS]),
    }
    if names["data"] != "planted":
        # The smallest of the others that are at hand has thousands of images.
        names["network"] = draw.choice(NETWORKS[:5])
    kinds = {key.path: annotation_of(key.path) for key in all_keys() if key.name != "name"}
    own = _options(names)
    settings = {key: value for key, value in SMALL.items() if key in own or key in kinds}
    settings |= {f"{section}.name": f'"{name}"' for section, name in names.items()}
    # Numbers in their ranges lead further than others.
    good = draw.random() < 0.5
    for _ in range(draw.choice([1, 1, 1, 2, 3, 6])):
        path = draw.choice([*own, *own, *own, *kinds])
        given = _given(own.get(path), kinds.get(path), good, draw)
        if path in SLOW and given in ("true", *map(str, range(1, 1001))):
            continue
        if path.startswith("players.NAME"):
            path = path.replace("NAME", draw.choice(["probe", "method", "x", "", "a b", "encoder"]))
        if draw.random() < 0.03:
            path = draw.choice([f"{path}.more", path[:-1], path.upper(), f"{path}s", "methods.ce"])
        settings[path] = given
    words = ["train", "--out", "run"]
    if draw.random() < 0.3:
        return [*words, str(_file(settings, draw, folder))]
    return [*words, *(word for k, v in settings.items() for word in ("--set", f"{k}={v}"))]


def _given(option: Option | None, kind: Any, good: bool, draw: random.Random) -> str:
    """A value for an option, or for a key of this type."""
    if option is None:
        limits = list(ranges_of(kind)) if good else []
        return within(limits[0], kind, draw) if limits and limits[0] else value(kind, draw)
    if good and option.range is not None:
        return within(option.range, option.kind, draw)
    return likely(option.kind, draw) if good else value(option.kind, draw)


def _file(settings: dict[str, str], draw: random.Random, folder: Path) -> Path:
    lines = [f"{_quoted(key)} = {given}" for key, given in settings.items()]
    content = "\n".join(lines).encode()
    if draw.random() < 0.1:
        place = draw.randrange(len(content))
        content = content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]
    file = folder / "my.toml"
    file.write_bytes(content)
    return file.relative_to(folder)


def _quoted(path: str) -> str:
    return ".".join(part if part.isidentifier() else f'"{part}"' for part in path.split("."))
