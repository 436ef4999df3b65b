"""From a run to use: a model with its preprocessing, ONNX and PyTorch files, and a model card.

model = load("runs/mine")
model.predict(["a.jpg", "b.png"])        # labels and probabilities
export_onnx("runs/mine", "model.onnx")   # checked against the model before it is kept
"""

from fairmargin.export.card import model_card
from fairmargin.export.comparison_card import comparison_card
from fairmargin.export.model import Model, Predictions, load
from fairmargin.export.onnx_file import export_onnx
from fairmargin.export.program import export_program

__all__ = [
    "Model",
    "Predictions",
    "comparison_card",
    "export_onnx",
    "export_program",
    "load",
    "model_card",
]
