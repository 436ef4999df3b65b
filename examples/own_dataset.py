"""Bring your own arrays as a dataset and train on them. Takes seconds on a CPU.

    python examples/own_dataset.py

A split is pixels, labels and, where you know it, the bias of each sample; a dataset is three of
them with some facts. Everything else follows: loaders, samplers that know about bias, methods,
evaluation by group. Here the images are scikit-learn's 8×8 digits, and the task is to tell those
below five from the others. A bright line at the left or right edge says it in 97 % of the training
samples, and in half of the test samples.

To use a table of files instead of arrays, see examples/audit_folder.py.
"""

from functools import partial

import numpy as np
import torch
from sklearn.datasets import load_digits

from fairmargin.batch import DataInfo
from fairmargin.data import ArraySplit, Data
from fairmargin.data.bias import count_cells
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import Shuffled
from fairmargin.data.views import HALF, plain
from fairmargin.evaluate import evaluate
from fairmargin.methods import build_method
from fairmargin.networks import build_encoder

CLASSES = ("below five", "five or more")
EDGES = ("left", "right")


def split(pixels: np.ndarray, labels: np.ndarray, agreement: float, seed: int) -> ArraySplit:
    """Paint the line of the label on a share `agreement` of the images, the other on the rest."""
    follows = np.random.default_rng(seed).random(len(labels)) < agreement
    bias = np.where(follows, labels, 1 - labels)
    images = np.repeat(pixels[:, None], 3, axis=1)  # [N, 3, 8, 8]
    images[bias == 0, :, :, 0] = 255
    images[bias == 1, :, :, -1] = 255
    return ArraySplit(torch.from_numpy(images), torch.from_numpy(labels), torch.from_numpy(bias))


def make_data() -> Data:
    """Build a dataset from arrays: 1,200 digits to train, the others to test."""
    digits = load_digits()
    pixels = (digits.images * 15).astype(np.uint8)
    labels = (digits.target >= 5).astype(np.int64)
    train, valid = split(pixels[:1200], labels[:1200], 0.97, seed=0).hold_out(0.1, seed=0)
    test = split(pixels[1200:], labels[1200:], 0.5, seed=1)
    info = DataInfo(
        name="lined-digits",
        class_names=CLASSES,
        bias_names=EDGES,
        image_shape=(3, 8, 8),
        counts=count_cells(train.labels, train.bias, len(CLASSES), len(EDGES)),
    )
    # `HALF` maps pixels to [−1, 1]; `plain` adds no augmentation.
    return Data(train, valid, test, info, train_views=plain(*HALF), eval_views=plain(*HALF))


def train(name: str, data: Data, epochs: int = 30) -> dict[str, float]:
    """Train the method `name` on a small network and return its test accuracies."""
    torch.manual_seed(0)
    encoder = partial(build_encoder, "mlp", in_features=3 * 8 * 8, widths=[64, 32])
    method = build_method(name, encoder, data.info)
    optimizer = torch.optim.Adam(method.parameters(), lr=3e-3)
    loader = Loader(data.train, data.train_views, Shuffled(len(data.train)), batch_size=64)
    for epoch in range(epochs):
        for step, batch in enumerate(loader, start=epoch * len(loader)):
            # Both methods below have one player, so one optimizer is enough.
            for _, loss in method.updates(batch, step):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    accuracy = evaluate(method, data).test["own"]["accuracy"]
    return {kind: accuracy[kind]["value"] for kind in ("aligned", "conflicting", "worst-group")}


def main() -> None:
    """Compare cross-entropy with bias-balanced cross-entropy, which uses the table of counts."""
    data = make_data()
    print("training samples by label (rows) and edge (columns):", data.info.counts.tolist())
    for name in ("ce", "biasbal"):
        accuracy = train(name, data)
        shown = ", ".join(f"{kind} {value:.1%}" for kind, value in accuracy.items())
        print(f"{name:8} accuracy: {shown}")


if __name__ == "__main__":
    main()
