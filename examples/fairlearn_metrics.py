"""Read a model's group fairness with fairlearn's MetricFrame. Takes seconds on a CPU.

    pip install fairlearn
    python examples/fairlearn_metrics.py

A model's predictions, the labels and the bias labels are three arrays, which any library of
fairness metrics takes. The tables show, for each background tint, the accuracy and the share of
images predicted as "90°": before (shuffled batches) and after (batches in which every label meets
every tint equally often). The dataset, "planted", is drawn: bars on a background whose tint follows
the label in 98 % of the training images.
"""

import sys
from functools import partial

import torch

from fairmargin.data import Data, build
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import GroupBalanced, InOrder, Sampler, Shuffled
from fairmargin.methods import Method, build_method
from fairmargin.networks import build_encoder

try:
    from fairlearn.metrics import MetricFrame, equalized_odds_difference, selection_rate
    from sklearn.metrics import accuracy_score
except ImportError:
    print("skipped: this example needs fairlearn (pip install fairlearn)")
    sys.exit(0)

EPOCHS = 12


def train(data: Data, sampler: Sampler) -> Method:
    """Train a small network with cross-entropy on batches of this sampler."""
    torch.manual_seed(0)
    encoder = partial(build_encoder, "simple-conv-3", stride=2, widths=[8, 16])
    method = build_method("ce", encoder, data.info)
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-2)
    loader = Loader(data.train, data.train_views, sampler, batch_size=64)
    for epoch in range(EPOCHS):
        for step, batch in enumerate(loader, start=epoch * len(loader)):
            for _, loss in method.updates(batch, step):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return method.eval()


@torch.no_grad()
def predict(method: Method, data: Data) -> torch.Tensor:
    """Predict the class of every test image."""
    loader = Loader(data.test, data.eval_views, InOrder(len(data.test)), batch_size=256)
    return torch.cat([method.predict(batch.images).argmax(1) for batch in loader])


def main() -> None:
    """Print fairlearn's metrics for both samplers."""
    data = build("planted", rho=0.98, classes=2, shortcut=0.3)
    labels = data.test.labels.numpy()
    tints = [data.info.bias_names[bias] for bias in data.test.bias.tolist()]
    samplers = {
        "before: shuffled batches": Shuffled(len(data.train)),
        "after: group-balanced batches": GroupBalanced(data.train.labels, data.train.bias),
    }
    for name, sampler in samplers.items():
        predicted = predict(train(data, sampler), data).numpy()
        frame = MetricFrame(
            metrics={"accuracy": accuracy_score, "predicted 90°": selection_rate},
            y_true=labels,
            y_pred=predicted,
            sensitive_features={"tint": tints},
        )
        gap = equalized_odds_difference(labels, predicted, sensitive_features=tints)
        print(name)
        print(frame.by_group.round(3).to_string())
        print(f"equalized odds difference: {gap:.3f}\n")


if __name__ == "__main__":
    main()
