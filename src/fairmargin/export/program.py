"""A trained model as an exported PyTorch program (.pt2): it runs without FairMargin."""

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairmargin.export.checked import Difference, compared, exportable, facts_of, sample_pixels
from fairmargin.export.model import Model, Weights, load
from fairmargin.runtime.files import write_atomically

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
    height, width = model.preprocessing.size
    example = torch.zeros(2, 3, height, width, dtype=torch.uint8)
    program = torch.export.export(
        _Program(model, embeddings).eval(),
        (example,),
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
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, buffer.getvalue())
    return difference


class _Program(nn.Module):
    """From uint8 pixels to answers, with nothing that needs this library."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Model, embeddings: bool) -> None:
        super().__init__()
        self.method, self.embeddings = model.method, embeddings
        mean = torch.tensor(model.preprocessing.mean).view(-1, 1, 1)
        std = torch.tensor(model.preprocessing.std).view(-1, 1, 1)
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", mean / std)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        features, logits = self.method.inspect(pixels.float() * self.scale - self.shift)
        found = (logits, logits.softmax(1))
        return (*found, features) if self.embeddings else found
