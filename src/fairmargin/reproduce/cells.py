"""Every number of the paper's tables and figures as a run of ours.

    for cell in cells("3"):                      # Table 3: one for each method, ρ and reading
        run(cell.config("laptop", seed=0), cell.folder(out, "laptop", 0))

A cell is a configuration: a dataset's preset with what the table changes. Cells of several tables that are one
configuration have one folder, so nothing is trained twice. `fairmargin reproduce all --write-configs DIR` writes each to a file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fairmargin import config as configuration
from fairmargin.checks import check_choice
from fairmargin.config import Config, toml
from fairmargin.methods.objective import ROWS
from fairmargin.reproduce import budgets
from fairmargin.reproduce.published import Published, published, weights

Settings = dict[str, Any]  # by key of the configuration

TABLES = ("1", "2", "3", "4", "5", "8", "9", "10", "11", "12")
FIGURES = ("figure1", "figure2", "figure3", "figure4", "figure5")
STUDY = "fairkl"  # ours: which FairKL works best
EVERYTHING = (*TABLES, "text", *FIGURES, STUDY)
KEYS = {  # of the published settings
    "rho": "data.rho",
    "ratio_pct": "data.ratio",
    "eps": "method.epsilon",
    "alpha": "method.alpha",
    "lambda": "method.lambda",
}
RHOS, EPSILONS = (0.999, 0.997, 0.995, 0.99), (0.0, 0.1, 0.25, 0.5)
HISTOGRAMS = (0.0, 0.1, 0.25)  # ε of Figure 5, at the highest ρ

# The paper's names of methods that have another one here, and what makes them what they are.
NAMES: dict[str, tuple[str, Settings]] = {
    "vanilla": ("ce", {}),
    "lm": (
        "learned-mixin",
        {"method.entropy_weight": 0.36},
    ),  # clovaai/rebias, from where it came into the table
    "eps-supinfonce+fairkl:with_head": ("eps-supinfonce+fairkl", {"method.head": "mlp"}),
    "eps-supinfonce+fairkl:without_head": ("eps-supinfonce+fairkl", {}),
    "eps-supinfonce+fairkl_mean": ("eps-supinfonce+fairkl", {"method.divergence": "mean"}),
    "eps-supinfonce+fairkl_full": ("eps-supinfonce+fairkl", {}),
}
BEST_EPSILON = {
    ("eps-supcon", "imagenet100"): 0.1,
    ("eps-supinfonce", "imagenet100"): 0.5,
}  # Tables 8 and 9; else:
EPSILON = {
    "cifar10": 0.25,
    "cifar100": 0.25,
    "biased-mnist": 0.5,
    "bffhq": 0.25,
}  # of Table 3 it is not printed

# Of DFA's authors, where a column of Table 4 differs from the dataset's preset.
DFA: dict[tuple[str, str], Settings] = {
    ("corrupted-cifar10", "ratio_pct=0.5"): {"optimizer.lr": 5e-4},
    ("corrupted-cifar10", "ratio_pct=1.0"): {"method.lambda_dis": 5.0, "method.lambda_swap_b": 5.0},
    ("corrupted-cifar10", "ratio_pct=2.0"): {"method.lambda_dis": 5.0, "method.lambda_swap_b": 5.0},
}

# What FairKL is. The paper's text and the authors' released code differ (docs/fidelity.md), and no row mixes them.
#   paper        the printed KL, with α as printed
#   authors      the term of the released code, with α as printed (once, and without the code's factor τ/0.07)
#   released     the released script to the letter: the same term, α twice, and τ/0.07
#   recommended  the best on validation (docs/results/fairkl.md): weights of its own, and batches in which every
#                (label, bias) is as frequent; without them a batch of 128 at ρ = 0.99 often has no conflicting pair
READINGS: dict[str, Settings] = {
    "paper": {"method.variant": "paper", "method.divergence": "kl", "method.negatives": True},
    "authors": {"method.variant": "authors", "method.divergence": "kl", "method.negatives": True},
    "released": {
        "method.variant": "authors",
        "method.divergence": "kl",
        "method.negatives": True,
        "method.weighting": "released",
    },
    "recommended": {
        "method.variant": "paper",
        "method.divergence": "moments",
        "method.negatives": True,
        "method.last_activation": "relu",
        "data.sampler": "group-balanced",
    },
}
# Run unless another is named. The released script's weighting is unlikely to be what was published (docs/fidelity.md).
DEFAULT_READINGS = ("paper", "authors", "recommended")
RECOMMENDED: Settings = {"method.alpha": 0.1, "method.lambda": 1.0, "method.epsilon": 0.5}


@dataclass(frozen=True)
class Cell:
    """One configuration that a table or figure needs, and the published numbers it stands beside."""

    table: str
    dataset: str
    method: str  # by our name
    row: str  # by the paper's
    setting: str  # as published, "rho=0.99"
    reading: str = ""  # of FairKL; empty where there is none
    settings: Settings = field(default_factory=dict, hash=False)
    published: tuple[Published, ...] = ()

    @property
    def name(self) -> str:
        """What --cell finds: "eps-supinfonce+fairkl:rho=0.99@authors"."""
        setting = f":{self.setting}" if self.setting else ""
        return f"{self.dataset}/{self.row}{setting}{f'@{self.reading}' if self.reading else ''}"

    def folder(self, out: Path, budget: str, seed: int) -> Path:
        """The same for cells of equal configuration."""
        changes = self.changes(budget)
        own = {
            key: changes.settings.get(key, value) for key, value in sorted(self.settings.items())
        }
        words = [
            f"{key.partition('.')[2]}={toml.value(value)}".replace('"', "")
            for key, value in own.items()
        ]
        place = out / budget / (changes.dataset or self.dataset) / self.method
        return place / (",".join(words) or "preset") / f"seed-{seed}"

    def changes(self, budget: str) -> budgets.Changes:
        """What a budget makes of it."""
        return budgets.changes(budget, self.table, self.dataset, self.method, self.settings)

    def config(self, budget: str, seed: int, extra: Sequence[str] = ()) -> Config:
        """`extra` are changes that every cell gets, such as data.root=…"""
        changes = self.changes(budget)
        return configuration.load(
            dataset=changes.dataset or self.dataset,
            method=self.method,
            seed=seed,
            overrides=[*_overrides(self.settings | changes.settings), *extra],
        )

    def command(self, budget: str, seeds: Sequence[int] = ()) -> str:
        words = ["fairmargin", "reproduce", self.table, f'--cell "{self.name}"', "--budget", budget]
        first = list(seeds) == list(range(len(seeds)))
        given = (
            str(len(seeds))
            if first
            else f"{','.join(map(str, seeds))}{',' if len(seeds) == 1 else ''}"
        )
        return " ".join([*words, *(["--seeds", given] if seeds else [])])

    @property
    def needs_scores(self) -> bool:
        return self.settings.get("data.bias") == "scores"


def _overrides(settings: Settings) -> list[str]:
    return [f"{key}={toml.value(value)}" for key, value in settings.items()]


def cells(
    what: str, *, pattern: str | None = None, readings: Sequence[str] = tuple(READINGS)
) -> list[Cell]:
    """Of a table, a figure, the study of FairKL, or "all"; those whose name `pattern` matches: "*rho=0.99@authors"."""
    check_choice(what, "table or figure", ("all", *EVERYTHING))
    for reading in readings:
        check_choice(reading, "reading", READINGS)
    names = EVERYTHING if what == "all" else [what]
    found = [
        cell for name in names for cell in _of(name) if not cell.reading or cell.reading in readings
    ]
    if pattern is None:
        return found
    chosen = [
        cell
        for cell in found
        if fnmatch(cell.name, pattern) or fnmatch(cell.name.partition("/")[2], pattern)
    ]
    if not chosen:
        shown = "\n  ".join(cell.name for cell in found[:40])
        raise ValueError(
            f"--cell {pattern!r} matches nothing of {what}; * stands for anything. There are:\n  {shown}"
        )
    return chosen


def _of(name: str) -> list[Cell]:
    if name == "figure2":
        return list(_sweep(RHOS, EPSILONS, name))
    if name == "figure5":
        return list(_sweep(RHOS[:1], HISTOGRAMS, name))
    if name == STUDY:
        return list(_study())
    return list(_table(name))


def _table(name: str) -> Iterable[Cell]:
    together: dict[tuple[str, str, str], list[Published]] = {}
    for number in published():
        if number.table == name:
            # Table 5 prints three accuracies of a run, and 2 one run twice: as quoted and as run again.
            setting = "" if number.measure else number.setting
            together.setdefault((number.dataset, number.method, setting), []).append(number)
    for (dataset, row, setting), numbers in together.items():
        method, settings = NAMES.get(row, (row, {}))
        settings = settings | _stated(dataset, method, setting)
        cell = Cell(name, dataset, method, row, setting, "", settings, tuple(numbers))
        yield from _readings(cell) if method.endswith("+fairkl") else [cell]


def _stated(dataset: str, method: str, setting: str) -> Settings:
    """What the paper says of this cell: in its name, in Tables 6 and 7, or as the best ε of another table."""
    given = dict(word.split("=") for word in setting.split(";") if "=" in word)
    settings: Settings = {KEYS[key]: float(value) for key, value in given.items()}
    if method in ("ce", "supcon"):
        settings.pop("method.epsilon", None)  # "eps=0" says that SupCon is its limit
    if not method.endswith("+fairkl"):
        settings.pop("method.lambda", None)  # "lambda=0" says that there is no FairKL
    settings |= {
        f"method.{key}": v for key, v in weights().get((dataset, method, setting), {}).items()
    }
    row = method.removesuffix("+fairkl")
    if row in ROWS and "epsilon" in _options(row) and "method.epsilon" not in settings:
        settings["method.epsilon"] = BEST_EPSILON.get((row, dataset), EPSILON.get(dataset, 0.25))
    return settings | _also(dataset, method, setting)


def _also(dataset: str, method: str, setting: str) -> Settings:
    """What a dataset's experiments need and the table does not say."""
    if dataset == "imagenet9" and method in ("softcon", "eps-supinfonce+fairkl"):
        return {"data.bias": "scores"}
    if method == "dfa":
        return DFA.get((dataset, setting), {})
    return {}


def _options(row: str) -> set[str]:
    return set(ROWS[row].loss.__kwdefaults__ or {})


def _readings(cell: Cell) -> Iterable[Cell]:
    for reading, settings in READINGS.items():
        if settings["method.variant"] == "authors" and cell.needs_scores:
            continue  # the released term is defined for bias labels
        if reading == "released" and cell.method.startswith("ce"):
            continue  # the released script for cross-entropy has α once: it is the reading "authors"
        if reading == "recommended" and cell.table in ("10", "11", "12"):
            continue  # these tables vary what it fixes
        own = dict(cell.settings) | {k: v for k, v in settings.items() if k not in cell.settings}
        if cell.needs_scores:
            own.pop("data.sampler", None)  # balances groups of labels
        if cell.needs_scores and reading == "paper":
            own["method.normalize"] = "count"  # the soft bias of 9-Class ImageNet, as it is printed
        if reading == "recommended":
            own |= {
                key: value
                for key, value in RECOMMENDED.items()
                if key in own or key != "method.epsilon"
            }
        yield replace(cell, reading=reading, settings=own)


def _sweep(rhos: Sequence[float], epsilons: Sequence[float], figure: str) -> Iterable[Cell]:
    for method in ("eps-supcon", "eps-supinfonce"):
        for rho in rhos:
            for epsilon in epsilons:
                settings = {"data.rho": rho, "method.epsilon": epsilon}
                if (
                    rho == RHOS[0] and epsilon in HISTOGRAMS
                ):  # so that both figures are drawn from the same runs
                    settings |= {"evaluate.similarities": True}
                yield Cell(
                    figure,
                    "biased-mnist",
                    method,
                    method,
                    f"rho={rho};eps={epsilon:g}",
                    "",
                    settings,
                )


def _study() -> Iterable[Cell]:
    """FairKL's own choices, one changed at a time, in the small regime where several seeds can be afforded."""
    base = {
        key: value
        for key, value in (READINGS["recommended"] | RECOMMENDED).items()
        if key != "data.sampler"
    }
    ours = "eps-supinfonce+fairkl"
    for name, change in STUDIED.items():
        yield Cell(STUDY, "biased-mnist-mini", ours, ours, name, "", base | change)
    for name, (method, settings) in CONTROLS.items():
        yield Cell(STUDY, "biased-mnist-mini", method, method, name, "", settings)


PLAIN: Settings = {
    "method.epsilon": RECOMMENDED["method.epsilon"],
    "method.last_activation": "relu",
    "method.temperature": 0.1,
    "optimizer.lr": 3e-3,
}
CONTROLS: dict[str, tuple[str, Settings]] = {  # what sampling does by itself
    "no-fairkl": ("eps-supinfonce", PLAIN),
    "no-fairkl;sampler=group-balanced": (
        "eps-supinfonce",
        PLAIN | {"data.sampler": "group-balanced"},
    ),
    "cross-entropy;sampler=group-balanced": ("group-balanced", {}),
}
STUDIED: dict[str, Settings] = {
    "moments": {},
    "divergence=kl": {"method.divergence": "kl"},
    "divergence=kl;floor=0.01": {"method.divergence": "kl", "method.variance_floor": 0.01},
    "divergence=kl;floor=0.0001": {"method.divergence": "kl", "method.variance_floor": 0.0001},
    "divergence=jeffreys": {"method.divergence": "jeffreys"},
    "divergence=lognormal": {"method.divergence": "lognormal"},
    "divergence=mean": {"method.divergence": "mean"},
    "scope=anchor": {"method.scope": "anchor"},
    "negatives=false": {"method.negatives": False},
    "divergence=kl;negatives=false": {"method.divergence": "kl", "method.negatives": False},
    "variant=authors": {"method.variant": "authors"},
    "variant=authors;weighting=released": {
        "method.variant": "authors",
        "method.weighting": "released",
    },
    "variant=authors;mean": {"method.variant": "authors", "method.divergence": "mean"},
    "sampler=group-balanced": {"data.sampler": "group-balanced"},
    "sampler=bias-aware": {"data.sampler": "bias-aware"},
    "sampler=class-balanced": {"data.sampler": "class-balanced"},
    "activation=tanh": {"method.last_activation": "tanh"},
    "authors;sampler=group-balanced": {
        "method.variant": "authors",
        "data.sampler": "group-balanced",
    },
}
