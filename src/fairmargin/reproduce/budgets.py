"""How much of a published experiment is run.

paper   the published protocol to the letter
laptop  the same data, losses and shape of the schedule; a smaller network or fewer epochs, so that two cores need minutes
smoke   a few steps, on generated data in the real layouts: shows that a cell runs, and nothing about accuracy
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairmargin.checks import check_choice

BUDGETS = ("paper", "laptop", "smoke")
GENERIC = ("cifar10", "cifar100", "imagenet100")
CLASSIFYING = ("ce", "max-margin")  # methods that train the classifier they are judged by
SMALL = ("12", "figure2", "figure5")  # grids, which a laptop runs on 5,000 digits
MORE_CONFLICTING = 5  # times, there: as many in a small batch as in the paper's batches

# Training images of each dataset, from which a probe of a few steps gives the time of a run.
TRAINING_IMAGES = {
    "biased-mnist": 60_000,
    "biased-mnist-mini": 4_000,
    "corrupted-cifar10": 50_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "bffhq": 19_200,
    "imagenet9": 54_600,
    "imagenet100": 126_689,
}


@dataclass(frozen=True)
class Changes:
    """What a budget makes of a cell: keys of the configuration, and another dataset if the cell's own is too large."""

    settings: dict[str, Any] = field(default_factory=dict)
    dataset: str = ""


EPOCHS = 4  # of Biased-MNIST on a laptop
# Of every cell with a dataset. The rate changes between epochs, so of four it falls after the second and the third.
LAPTOP: dict[str, dict[str, Any]] = {
    "biased-mnist": {
        "data.valid_fraction": 0.0,
        "network.stride": 2,
        "optimizer.lr": 1e-3,  # BiasBal's published 1e-4 would not get far in so few steps
        "train.epochs": EPOCHS,
        "train.batch_size": 128,
        "schedule.milestones": [EPOCHS / 3, 2 * EPOCHS / 3],
        "evaluate.every": 1,
    },
    "biased-mnist-mini": {"data.valid_fraction": 0.25, "evaluate.every": 0},
    "corrupted-cifar10": {
        "data.valid_fraction": 0.0,
        "train.epochs": 10,
        "train.steps": "none",
        "evaluate.every": 2,
    },
    "bffhq": {"data.valid_fraction": 0.0, "train.epochs": 5, "train.steps": "none"},
    "cifar10": {
        "data.valid_fraction": 0.0,
        "network.name": "resnet20",
        "train.epochs": 10,
        "train.batch_size": 256,
    },
    "cifar100": {
        "data.valid_fraction": 0.0,
        "network.name": "resnet20",
        "train.epochs": 10,
        "train.batch_size": 256,
    },
    "imagenet100": {
        "data.valid_fraction": 0.0,
        "data.size": 64,
        "network.name": "resnet18",
        "train.epochs": 5,
        "schedule.milestones": [0.3, 0.6, 0.9],
    },
    "imagenet9": {"data.valid_fraction": 0.0, "data.size": 64, "train.epochs": 10},
}
GENERIC_LAPTOP = {
    "optimizer.lr": 0.1,
    "schedule.warmup_epochs": 1,
    "train.precision": "float32",
    "evaluate.every": 0,
}

# Linear evaluation: the commands in the README of HobbitLong/SupContrast. The other settings of its main_linear.py are the
# configuration's defaults: momentum 0.9, no weight decay, the rate × 0.2 after 60, 75 and 90 % of the epochs.
LINEAR: dict[str, Any] = {
    "evaluate.linear_lr": 5.0,
    "evaluate.linear_batch_size": 512,
    "evaluate.linear_epochs": 100,
}
LINEAR_LR = {"simclr": 1.0}
LINEAR_REDUCED: dict[str, dict[str, Any]] = {
    "laptop": {"evaluate.linear_epochs": 10},
    "smoke": {"evaluate.linear_epochs": 1, "evaluate.linear_batch_size": 32},
}

SMOKE: dict[str, Any] = {
    "train.steps": 2,
    "train.epochs": 1,
    "train.batch_size": 12,
    "train.precision": "float32",
    "evaluate.every": 1,
    "evaluate.resamples": 10,
    "evaluate.batch_size": 32,
}


def changes(
    budget: str, table: str, dataset: str, method: str, settings: Mapping[str, Any]
) -> Changes:
    """`settings`: of the cell."""
    check_choice(budget, "budget", BUDGETS)
    judged = _judged(budget, dataset, method)
    if budget == "paper":
        whole = {} if dataset == "biased-mnist-mini" else {"data.valid_fraction": 0.0}
        return Changes(judged | whole)
    if budget == "smoke":
        small = {"data.valid_fraction": 0.1 if dataset == "biased-mnist-mini" else 0.0}
        small |= (
            {"data.size": 64} if dataset.startswith("imagenet") else {}
        )  # ResNet-50 at 224 pixels needs gigabytes
        return Changes(judged | SMOKE | small | _stages(budget, method))
    if table in SMALL:
        small = LAPTOP["biased-mnist-mini"] | (
            {"evaluate.every": 1} if table != "12" else {}
        )  # histograms by epoch
        rho = round(1 - MORE_CONFLICTING * (1 - settings["data.rho"]), 4)
        return Changes(judged | small | {"data.rho": rho}, "biased-mnist-mini")
    generic = GENERIC_LAPTOP if dataset in GENERIC else {}
    return Changes(judged | LAPTOP[dataset] | generic | _stages(budget, method))


def _judged(budget: str, dataset: str, method: str) -> dict[str, Any]:
    """By which classifiers, and how they learn.

    Generic vision judges embeddings by linear evaluation after training; biased data by the classifier trained along.
    """
    if dataset not in GENERIC or method in CLASSIFYING:
        return {"evaluate.classifiers": ["own"]}
    own = {"evaluate.linear_lr": LINEAR_LR[method]} if method in LINEAR_LR else {}
    return (
        {"evaluate.classifiers": ["own", "linear"]} | LINEAR | own | LINEAR_REDUCED.get(budget, {})
    )


def _stages(budget: str, method: str) -> dict[str, Any]:
    """What comes before the training proper, in methods that have something there: the same share of it."""
    if method.startswith("learned-mixin"):
        return {"method.pretrain_epochs": 2 if budget == "laptop" else 0}
    if method == "dfa":
        return {"method.swap_start": 0.2}  # the presets have it in steps
    return {}


def left_out(budget: str, table: str, setting: str) -> str:
    """Why a budget does not have this cell; empty if it has."""
    if budget == "laptop" and table == "12" and not setting.startswith("rho=0.99;"):
        return "the grid of α and λ is run at one ρ"
    return ""


def note(budget: str, table: str, dataset: str) -> str:
    """How a reduced run differs from the published one, for the ledger."""
    if budget == "smoke":
        return "a few steps on generated data, whose accuracies mean nothing"
    if budget != "laptop":
        return ""
    return REDUCED["biased-mnist-mini" if table in SMALL else dataset]


def why_not_run(dataset: str) -> str:
    """For cells of which there is no run."""
    return ABSENT.get(dataset, "no time so far")


REDUCED = {
    "biased-mnist": f"SimpleConvNet(7) with stride 2, batches of 128, {EPOCHS} epochs",
    "biased-mnist-mini": "5,000 digits, five times as many conflicting (ρ = 0.95 for 0.99), smaller network, 24 epochs",
    "corrupted-cifar10": f"{LAPTOP['corrupted-cifar10']['train.epochs']} epochs of 200",
    "bffhq": "5 epochs of 100",
    "cifar10": "ResNet-20, 10 epochs, and 10 of linear evaluation",
    "cifar100": "ResNet-20, 10 epochs, and 10 of linear evaluation",
    "imagenet100": "64×64 pixels, ResNet-18, 5 epochs, and 10 of linear evaluation",
    "imagenet9": "64×64 pixels, 10 epochs",
}
ABSENT = {
    "imagenet100": "ImageNet is given only to who signs for it",
    "imagenet9": "ImageNet is given only to who signs for it",
    "bffhq": "the images are not where `fairmargin data get` can fetch them; docs/data.md says how they lie",
    "cifar10": "ResNet-50 for 1,000 epochs needs a GPU",
    "cifar100": "ResNet-50 for 1,000 epochs needs a GPU",
}
