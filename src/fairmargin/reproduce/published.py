"""The numbers that the paper prints, as it prints them: one CSV file for each table."""

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

MEASURES = ("biased", "unb", "imagenet-a")  # of 9-Class ImageNet


@dataclass(frozen=True)
class Published:
    """One number of the paper, in percent."""

    table: str  # "3", or "text"
    dataset: str
    method: str  # by the paper's name
    setting: str  # "rho=0.999", "rho=0.99;lambda=1;alpha=0.1;eps=0", "unb", …
    mean: float
    std: float | None
    origin: str  # "paper", or whose number the paper repeats

    @property
    def measure(self) -> str:
        """Which accuracy of its run it is, where a table prints several."""
        return self.setting if self.setting in MEASURES else ""

    @property
    def band(self) -> float:
        """How far another run of the same thing may be away: two deviations, and a point at least; three where few
        conflicting samples make the number uneven from seed to seed."""
        uneven = (
            self.dataset in ("corrupted-cifar10", "bffhq")
            or "0.997" in self.setting
            or "0.999" in self.setting
        )
        return max(2 * (self.std or 0.0), 3.0 if uneven else 1.0)


def as_printed(mean: float, std: float | None = None) -> str:
    """With two decimals, or one where the second is zero: the paper prints 97.86 ± 0.02, and 90.8 ± 0.3 of others."""
    return " ± ".join(_decimals(value) for value in (mean, std) if value is not None)


def _decimals(value: float) -> str:
    return f"{value:.1f}" if round(value, 1) == round(value, 2) else f"{value:.2f}"


@lru_cache(maxsize=1)
def published() -> tuple[Published, ...]:
    """All of them, table by table."""
    found = []
    for row in _rows("table"):
        std = float(row["std"]) if row["std"] else None
        facts = (row["table"], row["dataset"], row["method"], row["setting"])
        found.append(Published(*facts, float(row["mean"]), std, row["origin"]))
    return tuple(found)


@lru_cache(maxsize=1)
def weights() -> dict[tuple[str, str, str], dict[str, float]]:
    """α, λ and ε of Tables 6 and 7 and of the text, by (dataset, method, setting)."""
    return {
        (row["dataset"], row["method"], row["setting"]): {
            key: float(row[key]) for key in ("alpha", "lambda", "epsilon")
        }
        for row in _rows("hyperparameters")
    }


def _rows(kind: str) -> list[dict[str, str]]:
    folder = files("fairmargin.reproduce") / "published"
    named = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".csv")),
        key=lambda file: file.name,
    )
    wanted = [
        file for file in named if ("hyperparameters" in file.name) == (kind == "hyperparameters")
    ]
    return [row for file in wanted for row in csv.DictReader(file.read_text("utf-8").splitlines())]
