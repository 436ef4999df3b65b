"""Networks in half precision (fp16) or in 8-bit integers (int8), as ONNX graphs.

Only the network is converted: sizes, resizing and normalization stay in float32. Answers change, so
they are compared with the model's on the run's own test pictures, and too many others are refused.
"""

import logging
import os
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairmargin.config import load_resolved
from fairmargin.config.code import named_again
from fairmargin.data.split import Split, as_evaluated
from fairmargin.export.checked import DifferentAnswers, needed
from fairmargin.export.model import Model
from fairmargin.runs import build
from fairmargin.runs.folder import CONFIG
from fairmargin.runs.network import recorded_network

Precision = Literal["fp32", "fp16", "int8"]
# Share of test pictures that must keep their answer, unless the user says another.
AGREEMENT: dict[Precision, float] = {"fp16": 0.99, "int8": 0.95}
CALIBRATED_ON = 256  # training pictures, from which int8 takes its ranges
COMPARED_ON = 1024  # test pictures
AT_ONCE = 64


@dataclass(frozen=True)
class Pictures:
    """Pictures of a run's own data, uint8 [N, 3, H, W] in the network's size."""

    train: Tensor
    test: Tensor
    labels: Tensor  # of the test pictures


@dataclass(frozen=True)
class Agreement:
    """How the answers of a smaller file compare with the model's.

    Args:
        pictures: how many test pictures were compared.
        share: of them with the same answer.
        probabilities: largest difference, absolute.
        accuracy: of the file.
        model_accuracy: of the model, on the same pictures.
        full_bytes: the network's size in float32.
    """

    pictures: int
    share: float
    probabilities: float
    accuracy: float
    model_accuracy: float
    full_bytes: int


def own_pictures(run: Path, encoder: Any, trust_code: bool) -> Pictures:
    """Read pictures of the run's own data, to calibrate and to compare on.

    Args:
        run: folder of a finished run.
        encoder: of a run with an encoder of your own.
        trust_code: import the code that the folder names.
    """
    config = named_again(load_resolved(run / CONFIG), network=encoder, trust_code=trust_code)
    try:
        data = build.data(config, recorded_network(config, run))
    except (OSError, ValueError) as error:
        raise ValueError(
            "fp16 and int8 files are compared with the model on the run's own test pictures, "
            f"which cannot be read; put the data back, or export without --precision. {error}"
        ) from error
    train, _ = _some(data.train, CALIBRATED_ON)
    test, labels = _some(data.test, COMPARED_ON)
    return Pictures(train, test, labels)


def _some(split: Split, most: int) -> tuple[Tensor, Tensor]:
    """Up to `most` samples, drawn at random but always the same."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randperm(len(split), generator=generator)[:most]
    return as_evaluated(split).images(index), split.labels[index]


def reduced(onnx: Any, network: Any, precision: Precision, model: Model, pictures: Tensor) -> Any:
    """Return the network in another precision; inputs and outputs stay float32.

    Args:
        onnx: the package.
        network: an ONNX model that takes normalized `images`.
        precision: "fp16" or "int8".
        model: says how pictures are normalized.
        pictures: uint8, from which int8 takes the ranges of its activations.
    """
    with _quiet():
        if precision == "fp16":
            convert = needed("onnxruntime.transformers.float16").convert_float_to_float16
            halved = convert(network, keep_io_types=True)
            # The converter adds its casts at the end.
            _sort_nodes(halved.graph)
            return halved
        return _int8(onnx, network, model, pictures)


def _sort_nodes(graph: Any) -> None:
    """Put the nodes of a graph into an order in which each comes after those it reads from."""
    nodes = list(graph.node)
    made_by = {name: k for k, node in enumerate(nodes) for name in node.output}
    waits = [{made_by[name] for name in node.input if name in made_by} for node in nodes]
    order: dict[int, None] = {}
    while len(order) < len(nodes):
        ready = [k for k in range(len(nodes)) if k not in order and waits[k] <= order.keys()]
        if not ready:
            raise ValueError("the converted network reads its own answers; export without fp16")
        order.update(dict.fromkeys(ready))
    copies = [type(nodes[k]).FromString(nodes[k].SerializeToString()) for k in order]
    del graph.node[:]
    graph.node.extend(copies)


def _int8(onnx: Any, network: Any, model: Model, pictures: Tensor) -> Any:
    """Weights by channel and activations by layer as int8, with ranges from these pictures.

    Ranges are fixed beforehand (static quantization), which convolutions need to be fast.
    """
    quantization = needed("onnxruntime.quantization")
    prepare = needed("onnxruntime.quantization.shape_inference").quant_pre_process
    with tempfile.TemporaryDirectory() as folder:
        given, prepared, target = (os.path.join(folder, f"{k}.onnx") for k in range(3))
        onnx.save(network, given)
        # Batch norms become part of the convolutions before them.
        prepare(given, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            target,
            _Batches(_normalized(model, pictures)),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        return onnx.load(target)


class _Batches:
    """Pictures as onnxruntime's calibration asks for them."""

    def __init__(self, images: np.ndarray) -> None:
        self.rest = [images[start : start + AT_ONCE] for start in range(0, len(images), AT_ONCE)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next batch; None after the last."""
        return {"images": self.rest.pop(0)} if self.rest else None


def _normalized(model: Model, pictures: Tensor) -> np.ndarray:
    mean = torch.tensor(model.preprocessing.mean).view(-1, 1, 1)
    std = torch.tensor(model.preprocessing.std).view(-1, 1, 1)
    return ((pictures.float() / 255 - mean) / std).numpy()


def agreement(
    model: Model,
    answers: Callable[[Tensor], dict[str, Tensor]],
    pictures: Pictures,
    full_bytes: int,
) -> Agreement:
    """Compare the answers of a smaller file with the model's on test pictures.

    Args:
        model: what was exported.
        answers: of the file.
        pictures: of the run's own data.
        full_bytes: the network's size in float32.
    """
    same = right = model_right = 0
    largest = 0.0
    for start in range(0, len(pictures.test), AT_ONCE):
        pixels = pictures.test[start : start + AT_ONCE]
        labels = pictures.labels[start : start + AT_ONCE]
        with torch.inference_mode():
            _, logits = model.eval().inspect(pixels)
        wanted, found = logits.softmax(1), answers(pixels)["probabilities"]
        # NaN is no answer: it agrees with nothing.
        chosen = torch.where(found.isfinite().all(1), found.argmax(1), -1)
        same += int((chosen == wanted.argmax(1)).sum())
        right += int((chosen == labels).sum())
        model_right += int((wanted.argmax(1) == labels).sum())
        largest = max(largest, float((found - wanted).nan_to_num(nan=1.0).abs().max()))
    number = len(pictures.test)
    return Agreement(
        number, same / number, largest, right / number, model_right / number, full_bytes
    )


def check_agreement(
    found: Agreement, precision: Precision, least: float | None, file: Path
) -> None:
    """Raise `DifferentAnswers` if too few answers are the model's.

    Args:
        found: of `agreement`.
        precision: of the file.
        least: share that must agree; None for the usual one.
        file: for the message.
    """
    wanted = AGREEMENT[precision] if least is None else least
    if found.share < wanted:
        raise DifferentAnswers(
            f"{file} was not written: in {precision}, {100 * found.share:.1f} % of "
            f"{found.pictures:,} test pictures keep the model's answer, and at least "
            f"{100 * wanted:.1f} % must; accuracy is {100 * found.accuracy:.1f} % and the model's "
            f"{100 * found.model_accuracy:.1f} %. --min-agreement allows less"
        )


@contextmanager
def _quiet() -> Any:
    """Without the remarks of onnxruntime's tools about nodes and pre-processing."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
