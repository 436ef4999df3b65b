"""Whether an exported file is the model: both answer the same pictures before it is kept."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmargin.evaluate.head import NeighborHead
from fairmargin.export.model import Model
from fairmargin.runs.folder import RunRecord
from fairmargin.version import __version__

# Relative to the largest answer: float32 sums in another order differ by less.
LARGEST = 1e-4
AT_MOST = 64  # pictures that are compared


class DifferentAnswers(ValueError):
    """An exported file does not do what the model does; it was not kept."""


@dataclass(frozen=True)
class Difference:
    """How far the answers of file and model are apart."""

    pictures: int
    logits: float  # largest, absolute
    probabilities: float  # largest, absolute


def exportable(model: Model) -> Model:
    """Return the model; refuse one that takes neither pictures nor vectors, as files are given.

    Args:
        model: that is to be written as a file.
    """
    preprocessing = model.preprocessing
    if isinstance(getattr(model.method, "head", None), NeighborHead):
        raise ValueError(
            "this run reports nearest neighbours, which need all training features and are not "
            "exported; evaluate with --set evaluate.report_classifier=fitted, or use fm.load"
        )
    if preprocessing.takes_vectors:
        return model
    if preprocessing.as_given or preprocessing.channels != 3:
        kind = "float" if preprocessing.as_given else "uint8"
        shape = [preprocessing.channels, *preprocessing.size]
        raise ValueError(
            f"this model takes {kind} images {shape} as its dataset gave them, and an exported "
            "file takes pictures of three colours; export model.method with torch.export yourself"
        )
    return model


def compared(
    model: Model, answers: Callable[[Tensor], dict[str, Tensor]], pixels: Tensor, file: Path
) -> Difference:
    """Compare the answers for uint8 pictures [N, 3, H, W]; raise `DifferentAnswers` if they differ.

    Args:
        answers: of the exported file: "logits", "probabilities" and perhaps "embeddings".
        pixels: in the network's size.
        file: for the message.
    """
    with torch.inference_mode():
        features, logits = model.eval().inspect(pixels)
    wanted = {"logits": logits, "probabilities": logits.softmax(1), "embeddings": features}
    found = answers(pixels)
    largest = {}
    for name, value in found.items():
        difference = float((value - wanted[name]).abs().max())
        scale = max(1.0, float(wanted[name].abs().max()))
        if not difference <= LARGEST * scale:
            raise DifferentAnswers(
                f"{file} was not written: its {name} differ from the model's by {difference:.2g} "
                f"on {len(pixels)} pictures, where up to {LARGEST * scale:.2g} is rounding"
            )
        largest[name] = difference
    return Difference(len(pixels), largest["logits"], largest["probabilities"])


def sample_pixels(run: Path, model: Model) -> Tensor:
    """uint8 [N, 3, H, W]: test pictures that the run kept, and noise, which no network has seen.

    Of a model that takes vectors: float32 [N, D].
    """
    generator = torch.Generator().manual_seed(0)
    if model.preprocessing.takes_vectors:
        mean, std = torch.tensor(model.preprocessing.mean), torch.tensor(model.preprocessing.std)
        noise = mean + std * torch.randn(8, len(mean), generator=generator)
    else:
        height, width = model.preprocessing.size
        noise = torch.randint(0, 256, (8, 3, height, width), generator=generator, dtype=torch.uint8)
    record = RunRecord.read(run)
    if not record.has_arrays("examples"):
        return noise
    kept = torch.from_numpy(np.asarray(record.arrays("examples")["images"]))[:AT_MOST]
    if kept.shape[1:] != noise.shape[1:]:
        return noise
    return torch.cat([kept.to(noise.dtype), noise])


def facts_of(run: Path, model: Model) -> dict[str, Any]:
    """What a file says about itself: its origin, classes, accuracies and preprocessing."""
    record = RunRecord.read(run)
    result = record.result or {}
    headline = result.get("headline") or {}
    judged = (result.get("test") or {}).get(headline.get("classifier", ""), {})
    accuracy = {name: value["value"] for name, value in judged.get("accuracy", {}).items()}
    return {
        "fairmargin": __version__,
        "method": str(result.get("method", "")),
        "dataset": str(result.get("dataset", "")),
        "class_names": list(model.class_names),
        "accuracy": accuracy,
        "preprocessing": model.preprocessing.as_dict(),
    }


def needed(name: str) -> Any:
    """Return a module that exporting to ONNX needs; ValueError that says how to get it.

    Args:
        name: of the module.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            'exporting to ONNX needs extra packages: pip install "fairmargin[onnx]"'
        ) from error
