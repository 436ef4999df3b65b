"""A trained model as an exported PyTorch program (.pt2): it runs without FairMargin."""

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairmargin.export.checked import Difference, compared, exportable, facts_of, sample_pixels
from fairmargin.export.model import Model, Weights, load
from fairmargin.runtime.whole import write_bytes

FACTS = "fairmargin.json"  # among the program's extra files


def export_program(
    run: str | Path,
    file: str | Path,
    *,
    weights: Weights = "last",
    embeddings: bool = False,
    encoder: Any = None,
    trust_code: bool = False,
) -> Difference:
    """Write a run's model with `torch.export`, load it again, and compare the two.

        program = torch.export.load("model.pt2").module()
        logits, probabilities = program(pixels)      # uint8 [N, 3, H, W] in the network's size

    Models of embeddings take float32 [N, D].

    Args:
        run: folder of a finished run.
        file: where to write.
        weights: of the last epoch, or of the best on validation.
        embeddings: give the encoder's features as a third answer.
        encoder: of a run with an encoder of your own; see `load`.
        trust_code: import the code that the folder names; see `load`.
    """
    trained = load(run, weights=weights, encoder=encoder, trust_code=trust_code)
    model, target = exportable(trained), Path(file)
    program = torch.export.export(
        Program(model, embeddings).eval(),
        (example(model),),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={FACTS: json.dumps(facts_of(Path(run), model))})
    loaded = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    names = ("logits", "probabilities", "embeddings")

    def answers(pixels: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            return dict(zip(names, loaded(pixels), strict=False))

    difference = compared(model, answers, sample_pixels(Path(run), model), target)
    write_bytes(target, buffer.getvalue())
    return difference


def example(model: Model) -> Tensor:
    """Two samples as a program takes them; a batch of one would be taken for a constant."""
    if model.preprocessing.takes_vectors:
        return torch.zeros(2, *model.preprocessing.decoder.shape)
    height, width = model.preprocessing.size
    return torch.zeros(2, 3, height, width, dtype=torch.uint8)


class Program(nn.Module):
    """From uint8 pixels, or vectors, to answers, with nothing that needs this library.

    Args:
        model: what is exported.
        embeddings: give the encoder's features as a third answer.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Model, embeddings: bool) -> None:
        super().__init__()
        self.method, self.embeddings = model.method, embeddings
        vectors = model.preprocessing.takes_vectors
        shape, unit = ((-1,), 1) if vectors else ((-1, 1, 1), 255)
        mean = torch.tensor(model.preprocessing.mean).view(shape)
        std = torch.tensor(model.preprocessing.std).view(shape)
        self.register_buffer("scale", 1 / (unit * std))
        self.register_buffer("shift", mean / std)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Logits and probabilities [N, classes], and perhaps features [N, D]."""
        features, logits = self.method.inspect(pixels.float() * self.scale - self.shift)
        found = (logits, logits.softmax(1))
        return (*found, features) if self.embeddings else found
