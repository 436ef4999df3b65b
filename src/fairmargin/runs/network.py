"""A run's network: what it starts from, and how it is built again from the run folder alone.

`network.json` of a run holds the architecture of a network from another library, the digests of the
files that its weights came from, and what is to be said about them. A resumed or finished run needs
these files no more: its weights are in its checkpoints.
"""

from pathlib import Path
from typing import Any

import torch

from fairmargin.config import Config
from fairmargin.data import Data
from fairmargin.methods import Method
from fairmargin.networks import Encoder, build_encoder
from fairmargin.networks.pretrained import (
    Backbone,
    Origin,
    build_backbone,
    describe,
    is_backbone,
    split_name,
)
from fairmargin.networks.weight_files import WeightFile, load_file, read_weights, some
from fairmargin.runs.folder import RunError, RunFolder
from fairmargin.runs.record import NETWORK, is_run, read_json
from fairmargin.runtime import distributed
from fairmargin.runtime.whole import digest


class Network:
    """Makes the encoders of a run.

    Args:
        config: of the run.
        origin: of a network from another library.
        file: weights to start from.
        fresh: False where weights are loaded from the run: then nothing else is read.
        folder: of the run, which `record` writes into.
    """

    def __init__(
        self,
        config: Config,
        *,
        origin: Origin | None = None,
        file: WeightFile | None = None,
        fresh: bool = True,
        folder: RunFolder | None = None,
    ) -> None:
        self.config = config
        self.name = config.network.name
        self.origin = origin
        self.file = file
        self.fresh = fresh
        self.folder = folder
        # Tensors of the source that had no place in the network.
        self.left_over: list[str] = []

    def encoder(self, image_shape: tuple[int, ...], **given: Any) -> Encoder:
        """Make an encoder with its first weights; frozen if the configuration says so.

        Args:
            image_shape: of the images that it will see.
            given: what the method wants different from the configuration.
        """
        options = self.config.network.options | given
        _check_channels(options, image_shape)
        if is_backbone(self.name):
            made = self._backbone(image_shape, options)
        else:
            if self.name == "mlp":
                options.setdefault("in_features", torch.Size(image_shape).numel())
            elif image_shape[0] != 3:
                options.setdefault("in_channels", image_shape[0])
            made = build_encoder(self.name, **options)
        if self.file is not None and self.fresh:
            inner = made.model if isinstance(made, Backbone) else made
            self.left_over = load_file(inner, self.file, self.name)
        if self.config.network.freeze:
            made.freeze()
        return made

    def _backbone(self, image_shape: tuple[int, ...], options: dict[str, Any]) -> Encoder:
        # What methods ask for by themselves; a network from elsewhere keeps its own.
        if self.config.method.options.get("last_activation", "auto") == "auto":
            options.pop("last_activation", None)
        if not self.fresh or self.file is not None:
            options["pretrained"] = False
        made = build_backbone(self.name, origin=self.origin, image_shape=image_shape, **options)
        self.left_over = list(made.left_over)
        return made

    def normalization(self) -> dict[str, Any]:
        """{"mean": …, "std": …} that a network from another library was trained with, if known."""
        if self.origin is None or self.origin.mean is None or self.origin.std is None:
            return {}
        return {"mean": self.origin.mean, "std": self.origin.std}

    def record(self, data: Data, method: Method) -> None:
        """Write network.json, if there is anything to say and this run begins.

        Args:
            data: that the run trains on.
            method: with the network.
        """
        if self.folder is None or not self.fresh or distributed.rank() != 0:
            return
        facts: dict[str, Any] = {}
        if self.origin is not None:
            facts["origin"] = self.origin.as_dict()
        if self.file is not None:
            facts["weights"] = {"file": self.file.path.name, "sha256": self.file.sha256}
        if self.left_over:
            facts["left_over"] = self.left_over
        warnings = self._warnings(data, method)
        if warnings:
            facts["warnings"] = warnings
        if facts or self.folder.network():
            self.folder.write_network({"name": self.name, **facts})

    def _warnings(self, data: Data, method: Method) -> list[str]:
        """What limits the meaning of the run's numbers."""
        chosen = self.config.network
        found = []
        pretrained = is_backbone(self.name) and chosen.options.get("pretrained", True)
        if chosen.pretrained_expected and self.file is None and not pretrained:
            found.append(
                f"published results on {self.config.data.name} start from weights trained on "
                "ImageNet, and this run from random ones; give a file: "
                "--set network.weights=FILE (docs/networks.md)"
            )
        if self.left_over:
            found.append(
                f"{self.name}: tensors of the file that the network has no use for: "
                f"{some(self.left_over)}"
            )
        found += self._about_images(data)
        if chosen.freeze and getattr(method, "fairkl", None) is not None:
            found.append(
                "the encoder is frozen (network.freeze), so FairKL, which shapes its features, "
                "changes nothing"
            )
        return found

    def _about_images(self, data: Data) -> list[str]:
        found = []
        views = data.eval_views
        wanted = self.normalization()
        if wanted and not _close((*wanted["mean"], *wanted["std"]), (*views.mean, *views.std)):
            found.append(
                f"{self.name} was trained on images with mean {_numbers(wanted['mean'])} and "
                f"deviation {_numbers(wanted['std'])}, and {data.info.name} is normalized with "
                f"{_numbers(views.mean)} and {_numbers(views.std)}"
            )
        side = None if self.origin is None else self.origin.side
        size = tuple(data.info.image_shape[1:])
        if side is not None and size != (side, side):
            height, width = size
            larger = ""
            if self.config.data.name == "folder":
                larger = f"; for its own size: --set data.image_size={side}"
            found.append(
                f"{self.name} was trained on {side}×{side} pixels and sees {height}×{width} "
                f"here{larger}"
            )
        return found


def open_network(
    config: Config, folder: RunFolder | None = None, *, finished: bool = False
) -> Network:
    """Read what a run's network starts from; for a resumed run, what its folder says of it.

    Raises an error if the folder's run started from other files than there are now.

    Args:
        config: of the run.
        folder: of the run, if it has one.
        finished: nothing will be trained: only compare the files.
    """
    recorded, resumed = distributed.from_first_rank(_state(config, folder))
    _check_same_files(config, recorded, folder)
    if resumed or finished:
        return _from_record(config, recorded, folder)
    name, weights = config.network.name, config.network.weights
    return Network(
        config,
        origin=describe(name) if is_backbone(name) else None,
        file=None if weights is None else read_weights(weights),
        folder=folder,
    )


def recorded_network(config: Config, path: Path) -> Network:
    """Return the network of a run whose weights will be loaded from its folder.

    Args:
        config: of the run.
        path: its folder.
    """
    return _from_record(config, read_json(Path(path) / NETWORK) or {}, RunFolder(path))


def _from_record(config: Config, recorded: dict[str, Any], folder: RunFolder | None) -> Network:
    origin = recorded.get("origin")
    if is_backbone(config.network.name) and origin is None:
        where = "" if folder is None else f"{folder.path} "
        raise RunError(
            f"{where}has no {NETWORK} that describes {config.network.name}; copy the whole folder"
        )
    known = None if origin is None else Origin.from_dict(origin)
    return Network(config, origin=known, fresh=False, folder=folder)


def _state(config: Config, folder: RunFolder | None) -> tuple[dict[str, Any], bool]:
    """(network.json of a run that has begun with this network, whether it has a checkpoint)."""
    if folder is None or not is_run(folder.path):
        return {}, False
    recorded = folder.network()
    if recorded.get("name") != config.network.name:
        recorded = {}
    return recorded, any(folder.checkpoints.glob("step-*.ckpt"))


def _check_same_files(config: Config, recorded: dict[str, Any], folder: RunFolder | None) -> None:
    """Refuse a folder whose run started from files with other contents; missing files are fine."""
    before: dict[Path, str] = {}
    weights = config.network.weights
    if weights is not None and "weights" in recorded:
        before[weights.expanduser()] = recorded["weights"]["sha256"]
    if is_backbone(config.network.name) and "origin" in recorded:
        source = Path(split_name(config.network.name)[1]).expanduser()
        before |= {source / name: sha for name, sha in recorded["origin"]["sha256"].items()}
    for file, sha256 in before.items():
        if file.is_file() and digest(file) != sha256:
            where = "the folder" if folder is None else str(folder.path)
            raise ValueError(
                f"{where} holds a run that started from other weights: {file} has changed since. "
                "Choose another folder with --out, or remove that one"
            )


def _check_channels(options: dict[str, Any], image_shape: tuple[int, ...]) -> None:
    """Refuse a number of inputs that the data do not have."""
    has = {"in_channels": image_shape[0], "in_features": torch.Size(image_shape).numel()}
    for name, number in has.items():
        if options.get(name, number) != number:
            raise ValueError(
                f"network.{name} is {options[name]} and the data have {number}; leave it out, and "
                "it follows the data"
            )


def _close(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return len(a) == len(b) and all(abs(x - y) < 1e-3 for x, y in zip(a, b, strict=True))


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
