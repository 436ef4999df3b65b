"""Weights from a file into an encoder: read without running code, matched by name and shape."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairmargin.networks.resnet import load_published
from fairmargin.runtime.files import DamagedCheckpoint, load_weights
from fairmargin.runtime.whole import digest

PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".tar")
# Where training scripts keep the weights inside of their files.
CONTAINERS = ("state_dict", "model_state_dict", "model", "teacher", "net")
CLASSIFIER = "fc."
COUNTER = ".num_batches_tracked"
# Names in a message: the others are counted.
NAMED = 5


@dataclass(frozen=True)
class WeightFile:
    """The tensors of a file by name, and the file's digest.

    Args:
        path: where it was read.
        sha256: of the whole file.
        tensors: by their names in the file.
    """

    path: Path
    sha256: str
    tensors: Mapping[str, Tensor]


def read_weights(file: Path) -> WeightFile:
    """Read .safetensors, or .pth and .pt with `torch.load(weights_only=True)`.

    Args:
        file: a state dict, or a training script's file with one under a usual name.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError(f"network.weights: there is no file {path}")
    if path.suffix == ".safetensors":
        try:
            tensors = load_weights(path)[0]
        except DamagedCheckpoint as error:
            raise ValueError(f"network.weights: {error}") from error
    elif path.suffix in PICKLED:
        tensors = _state_dict(path, _unpickled(path))
    else:
        raise ValueError(
            f"network.weights: {path} must be .safetensors, or one of {', '.join(PICKLED)} "
            "that torch.save wrote"
        )
    return WeightFile(path, digest(path), tensors)


def load_file(encoder: nn.Module, file: WeightFile, what: str) -> list[str]:
    """Load a file's weights into a network, all of them or none; return what was left over.

    A prefix that all names share, such as "module.", "encoder." or "backbone.", is removed, and
    the classifier (`fc.*`) is dropped. Missing tensors and other shapes are an error.

    Args:
        encoder: the network.
        file: of `read_weights`.
        what: name of the network, for the message.
    """
    own = encoder.state_dict()
    prefix = _prefix(own, file.tensors)
    renamed = {
        name.removeprefix(prefix): value
        for name, value in file.tensors.items()
        if name.startswith(prefix)
    }
    fitting = {name: value for name, value in renamed.items() if name in own}
    left_over = [
        name
        for name in file.tensors
        if name.removeprefix(prefix) not in fitting
        and not name.removeprefix(prefix).startswith(CLASSIFIER)
    ]
    # Old files have no counters.
    missing = [name for name in own if name not in fitting and not name.endswith(COUNTER)]
    other_shape = [
        f"{name} {list(value.shape)}, not {list(own[name].shape)}"
        for name, value in fitting.items()
        if value.shape != own[name].shape
    ]
    if missing or other_shape:
        lists = {"missing": missing, "of another shape": other_shape, "left over": left_over}
        found = ". ".join(f"{kind}: {some(names)}" for kind, names in lists.items() if names)
        raise ValueError(
            f"network.weights: {file.path} does not fit {what}. {found}. "
            "Choose the network that these weights were trained with"
        )
    load_published(encoder, fitting)
    return left_over


def some(names: Iterable[str]) -> str:
    """Return the first few names, and how many there are more."""
    listed = list(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


def _prefix(own: Iterable[str], given: Iterable[str]) -> str:
    """Return what stands before the network's names in the file; of equals the shortest."""
    wanted = set(own)
    counts: Counter[str] = Counter()
    for name in given:
        parts = name.split(".")
        for i in range(len(parts)):
            if ".".join(parts[i:]) in wanted:
                counts["".join(part + "." for part in parts[:i])] += 1
    return min(counts, key=lambda prefix: (-counts[prefix], len(prefix)), default="")


def _unpickled(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    # Pickle, zip and the file system each raise errors of their own.
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"network.weights: {path} cannot be read without running code from it ({first}). "
            "Load it where you trust it, and save only its tensors: "
            "safetensors.torch.save_file(model.state_dict(), …)"
        ) from error


def _state_dict(path: Path, content: Any) -> dict[str, Tensor]:
    for key in CONTAINERS:
        inner = content.get(key) if isinstance(content, Mapping) else None
        if isinstance(inner, Mapping):
            content = inner
            break
    tensors = {}
    if isinstance(content, Mapping):
        tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ValueError(
            f"network.weights: {path} holds no state dict (tensors by name), also not under "
            f"{', '.join(CONTAINERS)}"
        )
    return tensors
