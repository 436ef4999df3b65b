"""FairMarginProjector on embeddings of cross-entropy, against ways to refit the last layer.

    for s in 0 1 2; do fairmargin train --dataset biased-mnist-mini --method ce --seed $s \
        --set data.valid_fraction=0.1 --out runs/ce/seed-$s; done
    python -m benchmarks.projector runs/ce/seed-0 runs/ce/seed-1 runs/ce/seed-2

Everything is fitted to the embeddings of the training set, with its labels and, where the row says
so, its bias labels; the test set is only looked at. Accuracies in percent, mean ± sample standard
deviation over the runs.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fairmargin import FairMarginProjector
from fairmargin.config import load_resolved
from fairmargin.evaluate import Outputs, collect
from fairmargin.evaluate.accuracy import values
from fairmargin.methods.dfr import balanced, fit_l1
from fairmargin.runs import build
from fairmargin.runtime.files import load_weights

SHOWN = ("cell-mean", "aligned", "conflicting", "worst-group")
# As DFR's released code has it for the training set.
DRAWS = 10

# (train, test, seed) → answers.
Predict = Callable[[Outputs, Outputs, int], Tensor]


def embeddings(folder: Path) -> tuple[Outputs, Outputs, Tensor]:
    """Return (train, test, training counts) of a run."""
    config = load_resolved(folder / "config.toml")
    data = build.data(config)
    method = build.method(config, data)
    method.load_state_dict(load_weights(folder / "weights.safetensors")[0])
    train, test = (collect(method, split, data.eval_views) for split in (data.train, data.test))
    return train, test, data.info.counts


def group_weights(y: Tensor, b: Tensor) -> np.ndarray:
    """Return weights with which every (label, bias) group counts the same; 1 on average."""
    _, group, size = torch.stack([y, b], 1).unique(dim=0, return_inverse=True, return_counts=True)
    weights = 1 / size[group].double()
    return (weights / weights.mean()).numpy()


def regression(reweighted: bool, strength: float = 1.0) -> Predict:
    """Return logistic regression on the embeddings, with groups reweighted or not."""

    def predict(train: Outputs, test: Outputs, seed: int) -> Tensor:
        scaler = StandardScaler().fit(train.features)
        model = LogisticRegression(C=strength, max_iter=5000)
        weights = group_weights(train.labels, train.bias) if reweighted else None
        model.fit(scaler.transform(train.features), train.labels, weights)
        return torch.from_numpy(model.predict(scaler.transform(test.features)))

    return predict


def whitened(train: Outputs, test: Outputs, seed: int) -> Tensor:
    """Where the projector starts, and nothing learnt: what of its effect is whitening."""
    untrained = FairMarginProjector(max_iter=1, learning_rate=1e-12, random_state=seed)
    return projected(True, untrained)(train, test, seed)


def projected(reweighted: bool, projector: FairMarginProjector, told: bool = True) -> Predict:
    """Return logistic regression behind the projector, which is `told` the bias or not."""

    def predict(train: Outputs, test: Outputs, seed: int) -> Tensor:
        model = make_pipeline(
            projector.set_params(random_state=seed), LogisticRegression(max_iter=5000)
        )
        given = {}
        if told:
            given["fairmarginprojector__bias"] = train.bias.numpy()
        if reweighted:
            weights = group_weights(train.labels, train.bias)
            given["logisticregression__sample_weight"] = weights
        model.fit(train.features.numpy(), train.labels.numpy(), **given)
        return torch.from_numpy(model.predict(test.features.numpy()))

    return predict


def dfr(train: Outputs, test: Outputs, seed: int, strength: float = 1.0) -> Tensor:
    """DFR^Tr: the mean of L1-regularised fits to random group-balanced subsets."""
    scaler = StandardScaler().fit(train.features)
    x, x_test = (torch.from_numpy(scaler.transform(z.features)).double() for z in (train, test))
    group = torch.stack([train.labels, train.bias], 1).unique(dim=0, return_inverse=True)[1]
    classes = int(train.labels.max()) + 1
    fits = []
    for draw in range(DRAWS):
        part = balanced(group, torch.Generator().manual_seed(draw))
        penalty = 1 / (len(part) * strength)
        fits.append(fit_l1(x[part], train.labels[part], classes, penalty))
    weight, intercept = (torch.stack(parts).mean(0) for parts in zip(*fits, strict=True))
    return (x_test @ weight.T + intercept).argmax(1)


def ceiling(train: Outputs, test: Outputs, seed: int) -> Tensor:
    """What a linear classifier could know at best.

    It is fitted to four fifths of the unbiased test set, and judged on the fifth.
    """
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    return torch.from_numpy(
        cross_val_predict(model, test.features.numpy(), test.labels.numpy(), cv=5)
    )


# *: told the bias.
ROWS: dict[str, Predict] = {
    "the network's own classifier": lambda train, test, seed: test.logits.argmax(1),
    "logistic regression": regression(False),
    "logistic regression, C = 100": regression(False, 100.0),
    "FairMarginProjector(pseudo_bias=10) + logistic regression": projected(
        False, FairMarginProjector(pseudo_bias=10), told=False
    ),
    "DFR *": dfr,
    "group-reweighted logistic regression *": regression(True),
    "group-reweighted logistic regression, C = 100 *": regression(True, 100.0),
    "whitening + group-reweighted logistic regression *": whitened,
    "FairMarginProjector + logistic regression *": projected(False, FairMarginProjector()),
    "FairMarginProjector + group-reweighted logistic regression *": projected(
        True, FairMarginProjector()
    ),
    "ceiling: logistic regression fitted to unbiased test embeddings, 5-fold": ceiling,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS}
    for seed, folder in enumerate(arguments.runs):
        train, test, counts = embeddings(folder)
        for name, predict in ROWS.items():
            started = time.perf_counter()
            judged = values(predict(train, test, seed), test.labels, test.bias, counts)
            found[name].append(judged | {"seconds": time.perf_counter() - started})
    print(
        f"| fitted to the training embeddings | {' | '.join(SHOWN)} | seconds "
        f"|\n|---|{'---|' * len(SHOWN)}---|"
    )
    for name, runs in found.items():
        cells = [_cell([100 * run[shown] for run in runs]) for shown in SHOWN]
        print(
            f"| {name} | {' | '.join(cells)} | "
            f"{statistics.fmean(run['seconds'] for run in runs):.1f} |"
        )


def _cell(numbers: list[float]) -> str:
    spread = f" ± {statistics.stdev(numbers):.1f}" if len(numbers) > 1 else ""
    return f"{statistics.fmean(numbers):.1f}{spread}"


if __name__ == "__main__":
    main()
