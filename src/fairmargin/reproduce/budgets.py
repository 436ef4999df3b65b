"""How much of a published experiment is run.

paper   the published protocol to the letter
laptop  the same data, losses and shape of the schedule, with a smaller network or fewer epochs, so
        that two cores need minutes
smoke   a few steps on generated data in the real layouts: shows that a cell runs, and says nothing
        about accuracy
"""

from typing import Literal, cast, get_args

from fairmargin.checks import check_choice
from fairmargin.reproduce.readings import Settings

Budget = Literal["paper", "laptop", "smoke"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
GENERIC = ("cifar10", "cifar100", "imagenet100")
# Methods that train the classifier they are judged by.
CLASSIFYING = ("ce", "max-margin")
# Table or figure: beginnings of the settings that the laptop budget runs of it.
PARTS = {"12": ("rho=0.999;",), "figure2": ("rho=0.99;", "rho=0.999;")}

# Training images of each dataset. The time of a run is estimated from them and a few timed steps.
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


# Epochs of Biased-MNIST on a laptop, and after which of them the learning rate falls: later than in
# the paper, so that there are about as many steps with the high one.
EPOCHS = 24
FALLS = [20, 22]
# By dataset.
LAPTOP: dict[str, Settings] = {
    "biased-mnist": {
        "data.valid_fraction": 0.0,
        "network.stride": 2,
        # BiasBal's published 1e-4 would not get far in so few steps.
        "optimizer.lr": 1e-3,
        "train.epochs": EPOCHS,
        "train.batch_size": 128,
        "schedule.milestones": FALLS,
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

# Linear evaluation as in the commands in the README of HobbitLong/SupContrast. The other settings
# of its main_linear.py are the configuration's defaults: momentum 0.9, no weight decay, learning
# rate × 0.2 after 60, 75 and 90 % of the epochs.
LINEAR: Settings = {
    "evaluate.linear_lr": 5.0,
    "evaluate.linear_batch_size": 512,
    "evaluate.linear_epochs": 100,
}
LINEAR_LR = {"simclr": 1.0}
LINEAR_REDUCED: dict[str, Settings] = {
    "laptop": {"evaluate.linear_epochs": 10},
    "smoke": {"evaluate.linear_epochs": 1, "evaluate.linear_batch_size": 32},
}

SMOKE: Settings = {
    "train.steps": 2,
    "train.epochs": 1,
    "train.batch_size": 12,
    "train.precision": "float32",
    "evaluate.every": 1,
    "evaluate.resamples": 10,
    "evaluate.batch_size": 32,
}


def parse(text: str) -> Budget:
    """Return the budget of this name, or raise ValueError with the nearest name."""
    check_choice(text, "budget", BUDGETS)
    return cast(Budget, text)


def changes(budget: Budget, dataset: str, method: str) -> Settings:
    """Return what a budget changes in the cells of a dataset.

    Args:
        method: by our name.
    """
    check_choice(budget, "budget", BUDGETS)
    judged = _judged(budget, dataset, method)
    if budget == "paper":
        whole = {} if dataset == "biased-mnist-mini" else {"data.valid_fraction": 0.0}
        return judged | whole
    if budget == "smoke":
        return judged | SMOKE | _smoke_data(dataset) | _stages(budget, method)
    generic = GENERIC_LAPTOP if dataset in GENERIC else {}
    return judged | LAPTOP[dataset] | generic | _stages(budget, method)


def _smoke_data(dataset: str) -> Settings:
    settings: Settings = {"data.valid_fraction": 0.0}
    if dataset == "biased-mnist-mini":
        settings["data.valid_fraction"] = 0.1
    if dataset.startswith("imagenet"):
        # ResNet-50 at 224 pixels needs gigabytes.
        settings["data.size"] = 64
    return settings


def _judged(budget: Budget, dataset: str, method: str) -> Settings:
    """By which classifiers a run is judged, and how they are trained.

    Generic vision judges embeddings by linear evaluation after training; biased data are judged by
    the classifier that is trained along with the method.
    """
    if dataset not in GENERIC or method in CLASSIFYING:
        return {"evaluate.classifiers": ["own"]}
    judged: Settings = {"evaluate.classifiers": ["own", "linear"]} | LINEAR
    if method in LINEAR_LR:
        judged["evaluate.linear_lr"] = LINEAR_LR[method]
    return judged | LINEAR_REDUCED.get(budget, {})


def _stages(budget: Budget, method: str) -> Settings:
    """Shorten a method's first stage, if it has one, to the same share of a reduced run."""
    if method.startswith("learned-mixin"):
        return {"method.pretrain_epochs": 2 if budget == "laptop" else 0}
    if method == "dfa":
        # The presets have it in steps.
        return {"method.swap_start": 0.2}
    return {}


def left_out(budget: Budget, table: str, setting: str) -> str:
    """Return why a budget does not run a cell; empty if it does.

    Args:
        table: of the cell, such as "12".
        setting: of the cell, as published.
    """
    if budget == "laptop" and table in PARTS and not setting.startswith(PARTS[table]):
        return "a grid is run in part"
    return ""


def note(budget: Budget, dataset: str) -> str:
    """Return how a reduced run differs from the published one, for the ledger."""
    if budget == "smoke":
        return "a few steps on generated data, whose accuracies mean nothing"
    return REDUCED.get(dataset, "") if budget == "laptop" else ""


def why_not_run(dataset: str) -> str:
    """Return what the cells of a dataset still need, for the ledger."""
    return ABSENT.get(dataset, TIME)


def at_hand(dataset: str) -> bool:
    """Return whether a dataset can be had, and two cores are enough to train on it."""
    return dataset not in ABSENT


REDUCED = {
    "biased-mnist": f"SimpleConvNet(7) with stride 2, batches of 128, {EPOCHS} epochs",
    "corrupted-cifar10": f"{LAPTOP['corrupted-cifar10']['train.epochs']} epochs of 200",
    "bffhq": "5 epochs of 100",
    "cifar10": "ResNet-20, 10 epochs, and 10 of linear evaluation",
    "cifar100": "ResNet-20, 10 epochs, and 10 of linear evaluation",
    "imagenet100": "64×64 pixels, ResNet-18, 5 epochs, and 10 of linear evaluation",
    "imagenet9": "64×64 pixels, 10 epochs",
}
# What cells need whose data and machine are at hand.
TIME = "computing time"
ABSENT = {
    "imagenet100": "ImageNet, whose licence you must accept (docs/data.md), and a GPU",
    "imagenet9": "ImageNet, whose licence you must accept (docs/data.md)",
    "bffhq": "the images, which you must fetch yourself (docs/data.md)",
    "cifar10": "a GPU: ResNet-50 for 1,000 epochs",
    "cifar100": "a GPU: ResNet-50 for 1,000 epochs",
}
