"""Export a trained model to ONNX and run it without PyTorch. Takes seconds on a CPU.

    pip install onnx onnxscript onnxruntime
    python examples/export_onnx.py

The exported graph holds the normalization too: it takes raw pixels, uint8 [N, 3, H, W], and gives
features and logits for any number of images. The script compares ONNX Runtime's answers with
PyTorch's, before training and after it. (PyTorch's exporter may print warnings about torchvision;
they do not matter here.)
"""

import importlib.util
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fairmargin.data import Data, build
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import GroupBalanced
from fairmargin.methods import Method, build_method
from fairmargin.networks import build_encoder

NEEDED = ("onnx", "onnxscript", "onnxruntime")
EPOCHS = 8


class Deployed(nn.Module):
    """A method with its normalization: pixels in, features and logits out."""

    def __init__(self, method: Method, data: Data) -> None:
        super().__init__()
        self.method = method
        self.register_buffer("mean", torch.tensor(data.eval_views.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(data.eval_views.std).view(1, 3, 1, 1))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Map uint8 pixels [N, 3, H, W] to (features [N, D], logits [N, K])."""
        return self.method.inspect((pixels.float() / 255 - self.mean) / self.std)


def train(method: Method, data: Data) -> None:
    """Train cross-entropy on batches in which every (label, bias) is equally frequent."""
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-2)
    sampler = GroupBalanced(data.train.labels, data.train.bias)
    loader = Loader(data.train, data.train_views, sampler, batch_size=64)
    for epoch in range(EPOCHS):
        for step, batch in enumerate(loader, start=epoch * len(loader)):
            for _, loss in method.updates(batch, step):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def export(model: Deployed, pixels: Tensor, path: Path) -> None:
    """Write `model` as an ONNX graph for any number of images."""
    torch.onnx.export(
        model.eval(),
        (pixels[:2],),
        path,
        input_names=["pixels"],
        output_names=["features", "logits"],
        dynamic_shapes={"pixels": {0: torch.export.Dim("images")}},
        dynamo=True,
        verbose=False,
    )


def main(folder: Path) -> None:
    """Export before and after training, and compare the two runtimes."""
    import onnxruntime

    data = build("planted", rho=0.9)
    torch.manual_seed(0)
    encoder = partial(build_encoder, "simple-conv-3", stride=2, widths=[8, 16])
    method = build_method("ce", encoder, data.info)
    pixels = data.test.images(torch.arange(len(data.test)))
    for name in ("before", "after"):
        if name == "after":
            train(method.train(), data)
        model, path = Deployed(method, data), folder / f"{name}.onnx"
        export(model, pixels, path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        _, logits = session.run(None, {"pixels": pixels.numpy()})
        with torch.no_grad():
            difference = np.abs(model(pixels)[1].numpy() - logits).max()
        accuracy = (logits.argmax(1) == data.test.labels.numpy()).mean()
        print(
            f"{name} training: accuracy in ONNX Runtime {accuracy:.1%}, "
            f"largest difference from PyTorch {difference:.1e}"
        )


if __name__ == "__main__":
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: this example needs pip install {' '.join(missing)}")
        sys.exit(0)
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
