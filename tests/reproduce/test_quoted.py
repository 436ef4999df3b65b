"""Cells whose number the paper quotes are trained as the code of the quoted publication trains.

The settings were read in the public codes: grayhong/bias-contrastive-learning (Hong & Yang),
kakaoenterprise/Learning-Debiased-Disentangled (Lee et al.), clovaai/rebias (Bahng et al.) and
HobbitLong/SupContrast (Khosla et al.). Methods whose settings are not published are in UNPUBLISHED,
with the row of docs/fidelity.md that says what is done instead.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fairmargin import config as configuration
from fairmargin.reproduce.cells import Cell, cells
from fairmargin.reproduce.published import published
from fairmargin.reproduce.show import recipe

FIDELITY = Path(__file__).parents[2] / "docs" / "fidelity.md"

# Table 3: every script has Adam, decay 1e-4, whole batches of 128, and 80 epochs with the rate
# ×0.1 after a third and two thirds of them.
HONG_MNIST = {
    "network.name": "simple-conv-7",
    "optimizer.name": "adam",
    "optimizer.lr": 1e-3,
    "optimizer.weight_decay": 1e-4,
    "schedule.name": "step",
    "schedule.milestones": [80 // 3, 80 * 2 // 3],
    "schedule.factor": 0.1,
    "train.batch_size": 128,
    "train.drop_last": True,
    "train.epochs": 80,
}
# Table 5: Adam, decay 1e-4, batches of 128, 120 epochs, cosine.
HONG_IMAGENET = {
    "network.name": "resnet18",
    "optimizer.name": "adam",
    "optimizer.lr": 1e-3,
    "optimizer.weight_decay": 1e-4,
    "schedule.name": "cosine",
    "train.batch_size": 128,
    "train.epochs": 120,
    "data.views": "crop-flip",
}
# Table 4: Adam without decay, 50,000 steps of whole batches.
LEE = {
    "network.name": "resnet18",
    "optimizer.name": "adam",
    "optimizer.lr": 1e-3,
    "optimizer.weight_decay": 0.0,
    "schedule.name": "constant",
    "train.steps": 50_000,
    "train.batch_size": 256,
    "train.drop_last": True,
}
LEE_BFFHQ = LEE | {"optimizer.lr": 1e-4, "train.batch_size": 64}
DFA = {
    "schedule.name": "step",
    "schedule.milestones": [0.4, 0.6, 0.8],  # of 50,000 steps
    "schedule.per": "step",
    "schedule.factor": 0.5,
    "method.swap_start": 10_000,
    "method.lambda_dis": 1.0,
    "method.lambda_swap": 1.0,
    "method.lambda_swap_b": 1.0,
    "method.surrogate": True,
}
FIVE = {"method.lambda_dis": 5.0, "method.lambda_swap_b": 5.0}
REBIAS = {"method.bias_network": "bagnet18"}

# By (dataset, the paper's name, setting); without a setting where all columns are alike.
ORIGINS: dict[tuple[str, ...], dict[str, Any]] = {
    ("biased-mnist", "ce"): HONG_MNIST,
    ("biased-mnist", "end"): HONG_MNIST
    | {"method.disentangle": 1.0, "method.entangle": 1.0, "method.pairs": "released"},
    ("biased-mnist", "biasbal"): HONG_MNIST | {"optimizer.lr": 1e-4},
    ("biased-mnist", "lnl"): HONG_MNIST | {"method.lambda": 1.0, "method.reversal": 0.1},
    ("corrupted-cifar10", "vanilla"): LEE,
    ("corrupted-cifar10", "lff"): LEE | {"method.surrogate": True},
    ("corrupted-cifar10", "dfa", "ratio_pct=0.5"): LEE | DFA | {"optimizer.lr": 5e-4},
    ("corrupted-cifar10", "dfa", "ratio_pct=1.0"): LEE | DFA | FIVE,
    ("corrupted-cifar10", "dfa", "ratio_pct=2.0"): LEE | DFA | FIVE,
    ("corrupted-cifar10", "dfa", "ratio_pct=5.0"): LEE | DFA,
    ("bffhq", "vanilla"): LEE_BFFHQ,
    ("bffhq", "lff"): LEE_BFFHQ | {"method.surrogate": True},
    ("bffhq", "dfa"): LEE_BFFHQ
    | DFA
    | {
        "schedule.factor": 0.1,
        "method.lambda_dis": 2.0,
        "method.lambda_swap_b": 2.0,
        "method.lambda_swap": 0.1,
    },
    ("imagenet9", "vanilla"): HONG_IMAGENET,
    ("imagenet9", "softcon"): HONG_IMAGENET
    | {"method.beta": 1.0, "method.second": "shuffled", "method.second_views": "supcon"},
    ("imagenet9", "sin"): HONG_IMAGENET,
    ("imagenet9", "lm"): HONG_IMAGENET
    | REBIAS
    | {"train.epochs": 30 + 120, "method.pretrain_epochs": 30, "method.entropy_weight": 0.36},
    ("imagenet9", "rubi"): HONG_IMAGENET | REBIAS,
    ("imagenet9", "rebias"): HONG_IMAGENET | REBIAS | {"method.sigma": "median"},
    # Like cross-entropy in SupContrast, with which the source of that table trains classifiers.
    ("cifar10", "max-margin"): {
        "data.views": "resized-crop-flip",
        "optimizer.lr": 0.8,
        "train.epochs": 500,
    },
    ("cifar100", "max-margin"): {
        "data.views": "resized-crop-flip",
        "optimizer.lr": 0.8,
        "train.epochs": 500,
    },
    ("cifar10", "simclr"): {"optimizer.name": "sgd", "optimizer.lr": 0.5, "train.epochs": 1000},
    ("cifar100", "simclr"): {"optimizer.name": "sgd", "optimizer.lr": 0.5, "train.epochs": 1000},
}
# (dataset, the paper's name): the row of docs/fidelity.md.
UNPUBLISHED = {
    ("corrupted-cifar10", "end"): 66,
    ("corrupted-cifar10", "hex"): 66,
    ("corrupted-cifar10", "rebias"): 66,
    ("bffhq", "end"): 66,
    ("bffhq", "hex"): 66,
    ("bffhq", "rebias"): 66,
    ("imagenet9", "lff"): 66,
}
QUOTED = [
    cell
    for cell in cells("all")
    if any(number.origin.startswith("quoted") for number in cell.published)
]


def settings(cell: Cell) -> dict[str, Any]:
    """The settings of the run at the published protocol, by dotted key, defaults included."""
    table = tomllib.loads(configuration.dump(cell.config("paper", 0)))
    found = {}
    for section, keys in table.items():
        if isinstance(keys, dict):
            found |= {f"{section}.{key}": value for key, value in keys.items()}
    return found


@pytest.mark.parametrize("cell", QUOTED, ids=lambda cell: cell.name)
def test_a_quoted_cell_is_trained_as_at_its_origin(cell: Cell) -> None:
    keys = (cell.dataset, cell.row, cell.setting), (cell.dataset, cell.row)
    wanted = next((ORIGINS[key] for key in keys if key in ORIGINS), None)
    if wanted is None:
        # A new quoted cell must be in one of the two tables.
        row = UNPUBLISHED[cell.dataset, cell.row]
        assert re.search(rf"^\| {row} \|.*not published", FIDELITY.read_text("utf-8"), re.MULTILINE)
        return
    found = settings(cell)
    assert {key: found.get(key) for key in wanted} == wanted


def test_no_origin_is_left_over() -> None:
    quoted = {(cell.dataset, cell.row) for cell in QUOTED}
    assert {key[:2] for key in ORIGINS} | UNPUBLISHED.keys() == quoted
    numbers = [number for number in published() if number.origin.startswith("quoted")]
    assert sum(len(cell.published) for cell in QUOTED) >= len(numbers) > 60


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "imagenet100"])
def test_generic_vision_has_the_released_scale_and_imagenet_no_warm_up(dataset: str) -> None:
    for cell in (cell for cell in cells("2") if cell.dataset == dataset):
        found = settings(cell)
        contrastive = cell.method in ("supcon", "simclr", "eps-supinfonce")
        # The released weighting is × τ/0.07, which under SGD is part of the rate.
        assert found.get("method.weighting") == ("released" if contrastive else None)
        assert found["schedule.warmup_epochs"] == (0 if dataset == "imagenet100" else 10)
        assert found["data.views"] == ("supcon" if contrastive else "resized-crop-flip")


def test_imagenet9_divides_by_the_number_of_samples() -> None:
    (cell,) = cells("5", pattern="*fairkl@paper")
    assert settings(cell)["method.normalize"] == "count"


def test_a_dry_run_shows_the_settings() -> None:
    (vanilla,) = cells("4", pattern="bffhq/vanilla*")
    assert (
        recipe(vanilla.config("paper", 0))
        == "adam 0.0001, decay 0, constant, batch 64, 50,000 steps"
    )
    (dfa,) = cells("4", pattern="corrupted-cifar10/dfa:ratio_pct=1.0")
    shown = recipe(dfa.config("paper", 0))
    assert shown.startswith(
        "adam 0.001, decay 0, step ×0.5 at 0.4, 0.6, 0.8, batch 256, 50,000 steps; "
    )
    assert "; lambda_dis=5.0; " in shown
    (supcon,) = cells("2", pattern="cifar10/supcon")
    assert "cosine after 10 epochs of warm-up" in recipe(supcon.config("paper", 0))
