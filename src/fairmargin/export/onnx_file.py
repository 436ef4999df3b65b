"""A trained model as an ONNX file that takes pictures as they are: uint8 [N, height, width, 3].

Resizing and normalization are part of the graph. The file is kept only if onnxruntime gives the
model's own answers.
"""

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.export.checked import (
    Difference,
    compared,
    exportable,
    facts_of,
    needed,
    sample_pixels,
)
from fairmargin.export.model import Model, Weights, load
from fairmargin.export.onnx_graph import preprocessing_graph
from fairmargin.export.precision import (
    Agreement,
    Precision,
    agreement,
    check_agreement,
    own_pictures,
    reduced,
)
from fairmargin.export.program import Program, example
from fairmargin.runtime.whole import write_bytes

OPSET = 18  # the first whose Resize can smooth while it shrinks


def export_onnx(
    run: str | Path,
    file: str | Path,
    *,
    weights: Weights = "last",
    embeddings: bool = False,
    encoder: Any = None,
    trust_code: bool = False,
    precision: Precision = "fp32",
    min_agreement: float | None = None,
) -> Difference | Agreement:
    """Write a run's model as ONNX, check it in onnxruntime, and say how far the two differ.

    The graph takes `pixels`, uint8 [N, height, width, 3], and gives `logits` and `probabilities`
    [N, classes]. Class names, accuracies and preprocessing are in its metadata. Models of
    embeddings take `vectors`, float32 [N, D].

    Args:
        run: folder of a finished run.
        file: where to write.
        weights: of the last epoch, or of the best on validation.
        embeddings: give the encoder's features as well, as `embeddings` [N, D].
        encoder: of a run with an encoder of your own; see `load`.
        trust_code: import the code that the folder names; see `load`.
        precision: "fp16" and "int8" are smaller, and compared on test pictures of the run's data.
        min_agreement: share of these that must keep the model's answer; None for 0.99 with fp16
            and 0.95 with int8.
    """
    check_choice(precision, "precision", get_args(Precision))
    if precision == "fp32" and min_agreement is not None:
        raise ValueError(
            "a float32 file gives the model's answers up to rounding; leave --min-agreement out, "
            "or choose --precision fp16 or int8"
        )
    if min_agreement is not None and not 0 <= min_agreement <= 1:
        raise ValueError(f"--min-agreement is a share from 0 to 1; got {min_agreement:g}")
    onnx = needed("onnx")
    needed("onnxscript")
    runtime = needed("onnxruntime")
    trained = load(run, weights=weights, encoder=encoder, trust_code=trust_code)
    model, target = exportable(trained), Path(file)
    vectors = model.preprocessing.takes_vectors
    network = _of_vectors(onnx, model, embeddings) if vectors else _network(onnx, model, embeddings)
    full_bytes = network.ByteSize()
    pictures = None
    if precision != "fp32":
        if vectors:
            raise ValueError(
                "--precision is for networks of images; this one takes vectors, and is small: "
                "leave it out"
            )
        pictures = own_pictures(Path(run), encoder, trust_code)
        network = reduced(onnx, network, precision, model, pictures.train)
    graph = network if vectors else _with_preprocessing(onnx, network, model)
    facts = facts_of(Path(run), model) | {"precision": precision}
    for key, value in facts.items():
        entry = graph.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    onnx.checker.check_model(graph)
    content = graph.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def answers(pixels: Tensor) -> dict[str, Tensor]:
        given = {"vectors": pixels.numpy()}
        if pixels.ndim == 4:
            given = {"pixels": pixels.permute(0, 2, 3, 1).contiguous().numpy()}
        found = session.run(None, given)
        names = [output.name for output in session.get_outputs()]
        return {name: torch.from_numpy(np.asarray(x)) for name, x in zip(names, found, strict=True)}

    if pictures is None:
        difference: Difference | Agreement = compared(
            model, answers, sample_pixels(Path(run), model), target
        )
    else:
        difference = agreement(model, answers, pictures, full_bytes)
        check_agreement(difference, precision, min_agreement, target)
    write_bytes(target, content)
    return difference


class _Answers(nn.Module):
    """What the file gives, from normalized images."""

    def __init__(self, model: Model, embeddings: bool) -> None:
        super().__init__()
        self.method, self.embeddings = model.method, embeddings

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features, logits = self.method.inspect(images)
        found = (logits.float(), logits.float().softmax(1))
        return (*found, features.float()) if self.embeddings else found


def _network(onnx: Any, model: Model, embeddings: bool) -> Any:
    """The network alone, from normalized images [N, 3, H, W]."""
    height, width = model.preprocessing.size
    # Two, since a batch of one would be taken for a constant.
    images = torch.zeros(2, 3, height, width)
    return _exported(onnx, _Answers(model.cpu(), embeddings), images, "images", embeddings)


def _of_vectors(onnx: Any, model: Model, embeddings: bool) -> Any:
    """The whole model, from vectors [N, D] that are standardized inside."""
    program = Program(model.cpu(), embeddings)
    return _exported(onnx, program, example(model), "vectors", embeddings)


def _exported(onnx: Any, module: nn.Module, inputs: Tensor, name: str, embeddings: bool) -> Any:
    names = ["logits", "probabilities", *(["embeddings"] if embeddings else [])]
    with tempfile.TemporaryDirectory() as folder, _quiet_exporter():
        path = os.path.join(folder, "network.onnx")
        torch.onnx.export(
            module.eval(),
            (inputs,),
            path,
            dynamo=True,
            external_data=False,
            verbose=False,
            opset_version=OPSET,
            input_names=[name],
            output_names=names,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
        return onnx.load(path)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without the exporter's remarks about itself and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _with_preprocessing(onnx: Any, network: Any, model: Model) -> Any:
    """The network behind a graph that resizes and normalizes."""
    before = preprocessing_graph(onnx, model.preprocessing, OPSET, network.ir_version)
    merged = onnx.compose.merge_models(
        onnx.compose.add_prefix(
            before, "preprocessing/", rename_inputs=False, rename_outputs=False
        ),
        onnx.compose.add_prefix(network, "network/", rename_inputs=False, rename_outputs=False),
        io_map=[("normalized", "images")],
    )
    # Whatever the exporter called the first axis, it is the batch everywhere.
    for value in (*merged.graph.input, *merged.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return merged
