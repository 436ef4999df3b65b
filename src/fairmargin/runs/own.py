"""Build people's own datasets and encoders, and notice when their code has changed."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fairmargin.batch import DataInfo
from fairmargin.config import Config
from fairmargin.config.code import OWN, facts, is_code, part_of
from fairmargin.data import Data
from fairmargin.data.own import from_datasets
from fairmargin.data.views import Step
from fairmargin.networks.own import OwnEncoders, check_keywords
from fairmargin.runs.folder import RunFolder
from fairmargin.runs.record import ENVIRONMENT, read_json


@dataclass(frozen=True)
class GivenDatasets:
    """Datasets that were given from Python; see `data.own.from_datasets`."""

    train: Any
    valid: Any
    test: Any
    class_names: Sequence[str] | None = None
    bias_names: Sequence[str] | None = None
    augment: Sequence[Step] | str | None = None

    @property
    def code(self) -> Any:
        """Whose source is recorded: the training set's class."""
        return type(self.train)

    def build(self, seed: int) -> Data:
        """Return the dataset; the seed decides which samples are held out for validation."""
        return from_datasets(
            self.train,
            self.valid,
            self.test,
            class_names=self.class_names,
            bias_names=self.bias_names,
            augment=self.augment,
            seed=seed,
        )


def own_data(config: Config) -> Data:
    """Build the dataset that the user gave, or whose builder the configuration names.

    Args:
        config: its `data.name` is "own" or an import path.
    """
    chosen = config.data
    source = part_of(config, "data")
    if isinstance(source, GivenDatasets):
        return source.build(config.seed)
    options = dict(chosen.options)
    if not callable(source):
        raise ValueError(
            f"{chosen.name} is a {type(source).__name__}; name a function that returns (train, "
            "valid, test) datasets, or a fairmargin Data"
        )
    takes = _parameters(source)
    if "seed" in takes:
        options.setdefault("seed", config.seed)
    if chosen.root is not None and "root" in takes:
        options.setdefault("root", chosen.root)
    check_keywords(source, chosen.name, "data", options)
    return _as_data(source(**options), chosen.name, config.seed)


def _parameters(builder: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(builder).parameters)


def _as_data(built: Any, name: str, seed: int) -> Data:
    if isinstance(built, Data):
        return built
    if isinstance(built, tuple | list) and len(built) == 3:
        return from_datasets(*built, name=name, seed=seed)
    raise ValueError(
        f"{name} returned a {type(built).__name__}; it must return (train, valid, test) datasets, "
        "where valid may be None, or a fairmargin Data"
    )


def own_encoders(config: Config, info: DataInfo) -> OwnEncoders:
    """Return what makes the encoders of the user's own that a configuration names.

    Args:
        config: its `network.name` is "own" or an import path.
        info: of the data, for the shape of the images.
    """
    chosen = config.network
    options = dict(chosen.options)
    name = chosen.name
    if name == OWN:
        name = str(options.pop("object", OWN))
    source = part_of(config, "network")
    return OwnEncoders(source, info.image_shape, name=name, options=options)


def check_code(config: Config, opened: RunFolder) -> None:
    """Refuse a folder whose run had another encoder of the same name. Data have digests.

    Args:
        config: of the run that was asked for.
        opened: the folder of a run.
    """
    if not is_code(config.network.name):
        return
    before = (read_json(opened.path / ENVIRONMENT) or {}).get("code") or {}
    now = facts(config)["network"]
    hashes = [(before.get("network") or {}).get("sha256"), now["sha256"]]
    if all(hashes) and hashes[0] != hashes[1]:
        raise ValueError(
            f"{opened.path} holds a run with another version of {now['path']}: its code or its "
            "layers have changed since. Choose another folder with --out, or remove that one"
        )


def check_data(config: Config, opened: RunFolder) -> None:
    """Refuse a folder whose finished run saw other data of the user's own.

    Args:
        config: of the run that was asked for.
        opened: the folder of the finished run.
    """
    if not is_code(config.data.name):
        return
    before, now = opened.data_hashes(), own_data(config).hashes
    other = [name for name, digest in now.items() if before.get(name, digest) != digest]
    if other and config.data.inject is None:
        raise ValueError(
            f"{opened.path} holds a finished run on other data: its {' and '.join(other)} samples "
            "were others. Choose another folder with --out, or remove that one"
        )


def own_code(config: Config) -> dict[str, Any]:
    """Return {"code": paths and hashes} for environment.json; an empty dict if all is ours."""
    found = facts(config)
    return {"code": found} if found else {}
