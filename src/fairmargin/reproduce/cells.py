"""Every number of the paper's tables and figures as a run of ours.

    for cell in cells("3"):                      # Table 3: one for each method, ρ and reading
        run(cell.config("laptop", seed=0), cell.folder(out, "laptop", 0))

A cell is a configuration: a dataset's preset and what the table changes in it. Cells of several
tables that have the same configuration share one folder, so nothing is trained twice.
`fairmargin reproduce all --write-configs DIR` writes each cell to a file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

from fairmargin import config as configuration
from fairmargin.checks import check_choice
from fairmargin.config import Config, toml
from fairmargin.methods.objective import ROWS
from fairmargin.reproduce import budgets
from fairmargin.reproduce.budgets import Budget
from fairmargin.reproduce.published import Published, published, weights
from fairmargin.reproduce.readings import (
    CONTROLS,
    READINGS,
    RECOMMENDED_WEIGHTS,
    STUDIED,
    Settings,
    studied_settings,
)

TABLES = ("1", "2", "3", "4", "5", "8", "9", "10", "11", "12")
FIGURES = ("figure1", "figure2", "figure3", "figure4", "figure5")
# Our own study: which form of FairKL works best.
STUDY = "fairkl"
EVERYTHING = (*TABLES, "text", *FIGURES, STUDY)
# Tables that vary what the recommended reading fixes.
WITHOUT_RECOMMENDED = ("10", "11", "12")

# Names in the published settings → keys of the configuration.
KEYS = {
    "rho": "data.rho",
    "ratio_pct": "data.ratio",
    "eps": "method.epsilon",
    "alpha": "method.alpha",
    "lambda": "method.lambda",
}
RHOS = (0.999, 0.997, 0.995, 0.99)
EPSILONS = (0.0, 0.1, 0.25, 0.5)
# ε of Figure 5, at the highest ρ.
HISTOGRAM_EPSILONS = (0.0, 0.1, 0.25)

# The paper's names of methods that are called something else here, and the settings they imply.
# LearnedMixin's entropy weight is that of clovaai/rebias, from where the table quotes it.
NAMES: dict[str, tuple[str, Settings]] = {
    "vanilla": ("ce", {}),
    "lm": ("learned-mixin", {"method.entropy_weight": 0.36}),
    "eps-supinfonce+fairkl:with_head": ("eps-supinfonce+fairkl", {"method.head": "mlp"}),
    "eps-supinfonce+fairkl:without_head": ("eps-supinfonce+fairkl", {}),
    "eps-supinfonce+fairkl_mean": ("eps-supinfonce+fairkl", {"method.divergence": "mean"}),
    "eps-supinfonce+fairkl_full": ("eps-supinfonce+fairkl", {}),
}
# The best ε by (method, dataset), from Tables 8 and 9; for all other methods by dataset.
# Table 3 does not print the ε of biased-mnist.
BEST_EPSILON = {("eps-supcon", "imagenet100"): 0.1, ("eps-supinfonce", "imagenet100"): 0.5}
EPSILON = {"cifar10": 0.25, "cifar100": 0.25, "biased-mnist": 0.5, "bffhq": 0.25}

# The settings of DFA's authors, where a column of Table 4 differs from the dataset's preset.
FIVEFOLD: Settings = {"method.lambda_dis": 5.0, "method.lambda_swap_b": 5.0}
DFA: dict[tuple[str, str], Settings] = {
    ("corrupted-cifar10", "ratio_pct=0.5"): {"optimizer.lr": 5e-4},
    ("corrupted-cifar10", "ratio_pct=1.0"): FIVEFOLD,
    ("corrupted-cifar10", "ratio_pct=2.0"): FIVEFOLD,
}


@dataclass(frozen=True)
class Cell:
    """One configuration that a table or figure needs, and the published numbers it belongs to.

    Args:
        method: by our name.
        row: the method by the paper's name.
        setting: as published, such as "rho=0.99".
        reading: of FairKL (see `readings`); empty for methods without it.
        settings: what the cell changes in its dataset's preset.
    """

    table: str
    dataset: str
    method: str
    row: str
    setting: str
    reading: str = ""
    settings: Settings = field(default_factory=dict, hash=False)
    published: tuple[Published, ...] = ()

    @property
    def name(self) -> str:
        """The name that --cell matches: "biased-mnist/eps-supinfonce+fairkl:rho=0.99@authors"."""
        setting = f":{self.setting}" if self.setting else ""
        reading = f"@{self.reading}" if self.reading else ""
        return f"{self.dataset}/{self.row}{setting}{reading}"

    @property
    def needs_scores(self) -> bool:
        """True if the method sees the bias through the features of a bias-capturing model."""
        return self.settings.get("data.bias") == "scores"

    def folder(self, out: Path, budget: Budget, seed: int) -> Path:
        """Return the run folder, which is the same for cells of equal configuration.

        Args:
            out: the folder of all runs.
        """
        changes = self.changes(budget)
        words = []
        for key, value in sorted(self.settings.items()):
            text = toml.value(changes.get(key, value)).replace('"', "")
            words.append(f"{key.partition('.')[2]}={text}")
        place = out / budget / self.dataset / self.method
        return place / (",".join(words) or "preset") / f"seed-{seed}"

    def changes(self, budget: Budget) -> Settings:
        """Return what a budget changes in this cell."""
        return budgets.changes(budget, self.dataset, self.method)

    def config(self, budget: Budget, seed: int, extra: Sequence[str] = ()) -> Config:
        """Return the configuration of the cell under a budget.

        Args:
            extra: changes that every cell gets, such as "data.root=…"
        """
        settings = self.settings | self.changes(budget)
        own = [f"{key}={toml.value(value)}" for key, value in settings.items()]
        return configuration.load(
            dataset=self.dataset,
            method=self.method,
            seed=seed,
            overrides=[*own, *extra],
        )

    def command(self, budget: Budget, seeds: Sequence[int] = ()) -> str:
        """Return the command that runs this cell; without seeds, it has no --seeds option.

        Args:
            seeds: which; 0, 1, 2 are written as their number, 3.
        """
        words = ["fairmargin", "reproduce", self.table, f'--cell "{self.name}"', "--budget", budget]
        if seeds:
            words += ["--seeds", _seeds_option(seeds)]
        return " ".join(words)


def _seeds_option(seeds: Sequence[int]) -> str:
    """How --seeds names these: "3" for 0, 1, 2; "0,5" for others; "7," for one that is not 0."""
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    listed = ",".join(map(str, seeds))
    return f"{listed}," if len(seeds) == 1 else listed


def cells(
    what: str, *, pattern: str | None = None, readings: Sequence[str] = tuple(READINGS)
) -> list[Cell]:
    """Return the cells of a table or a figure.

    Args:
        what: a table, a figure, "fairkl" for the study, or "all".
        pattern: only cells whose name matches, with or without the dataset: "*rho=0.99@authors".
        readings: of FairKL; cells without FairKL are always included.
    """
    check_choice(what, "table or figure", ("all", *EVERYTHING))
    for reading in readings:
        check_choice(reading, "reading", READINGS)
    names = EVERYTHING if what == "all" else [what]
    found: list[Cell] = []
    for name in names:
        found += [cell for cell in _cells_of(name) if cell.reading in ("", *readings)]
    if pattern is None:
        return found
    chosen = [cell for cell in found if _matches(cell, pattern)]
    if not chosen:
        shown = "\n  ".join(cell.name for cell in found[:40])
        raise ValueError(
            f"--cell {pattern!r} matches nothing of {what}; "
            f"* stands for anything. There are:\n  {shown}"
        )
    return chosen


def _matches(cell: Cell, pattern: str) -> bool:
    return fnmatch(cell.name, pattern) or fnmatch(cell.name.partition("/")[2], pattern)


def _cells_of(name: str) -> Iterable[Cell]:
    if name == "figure2":
        return _sweep(RHOS, EPSILONS, name)
    if name == "figure5":
        return _sweep(RHOS[:1], HISTOGRAM_EPSILONS, name)
    if name == STUDY:
        return _study()
    return _table(name)


def _table(name: str) -> Iterable[Cell]:
    # Several numbers may be of one run: Table 5 prints three accuracies of each, and Table 2 prints
    # some numbers twice, as quoted and as run again.
    together: dict[tuple[str, str, str], list[Published]] = {}
    for number in published():
        if number.table == name:
            setting = "" if number.measure else number.setting
            together.setdefault((number.dataset, number.method, setting), []).append(number)
    for (dataset, row, setting), numbers in together.items():
        method, settings = NAMES.get(row, (row, {}))
        settings = settings | _stated(dataset, method, setting)
        cell = Cell(name, dataset, method, row, setting, "", settings, tuple(numbers))
        if method.endswith("+fairkl"):
            yield from _in_each_reading(cell)
        else:
            yield cell


def _stated(dataset: str, method: str, setting: str) -> Settings:
    """What the paper says of a cell: in its name, in Tables 6 and 7, or another table's best ε."""
    given = dict(word.split("=") for word in setting.split(";") if "=" in word)
    settings: Settings = {KEYS[key]: float(value) for key, value in given.items()}
    if method in ("ce", "supcon"):
        # "eps=0" says that SupCon is the limit of the ε losses; it has no option ε.
        settings.pop("method.epsilon", None)
    if not method.endswith("+fairkl"):
        # "lambda=0" says that there is no FairKL.
        settings.pop("method.lambda", None)
    for key, value in weights().get((dataset, method, setting), {}).items():
        settings[f"method.{key}"] = value
    row = method.removesuffix("+fairkl")
    if row in ROWS and "epsilon" in _options(row) and "method.epsilon" not in settings:
        settings["method.epsilon"] = BEST_EPSILON.get((row, dataset), EPSILON.get(dataset, 0.25))
    return settings | _unstated(dataset, method, setting)


def _unstated(dataset: str, method: str, setting: str) -> Settings:
    """What a dataset's experiments need and the table does not say."""
    if dataset == "imagenet9" and method in ("softcon", "eps-supinfonce+fairkl"):
        return {"data.bias": "scores"}
    if method == "dfa":
        return DFA.get((dataset, setting), {})
    return {}


def _options(row: str) -> set[str]:
    return set(ROWS[row].loss.__kwdefaults__ or {})


def _in_each_reading(cell: Cell) -> Iterable[Cell]:
    for reading, settings in READINGS.items():
        if _is_defined(cell, reading):
            own = dict(cell.settings)
            for key, value in settings.items():
                # What the table states goes before what the reading says.
                own.setdefault(key, value)
            yield replace(cell, reading=reading, settings=_adapted(own, cell, reading))


def _is_defined(cell: Cell, reading: str) -> bool:
    """Whether a cell can be read in this way."""
    if READINGS[reading]["method.variant"] == "authors" and cell.needs_scores:
        # The released term is defined for bias labels only.
        return False
    if reading == "released" and cell.method.startswith("ce"):
        # The released script for cross-entropy has α once, so it equals the reading "authors".
        return False
    return reading != "recommended" or cell.table not in WITHOUT_RECOMMENDED


def _adapted(settings: Settings, cell: Cell, reading: str) -> Settings:
    """The settings of a reading, as far as they apply to the cell."""
    if cell.needs_scores:
        # The sampler balances groups of bias labels.
        settings.pop("data.sampler", None)
    if cell.needs_scores and reading == "paper":
        # The soft bias of 9-Class ImageNet, as printed.
        settings["method.normalize"] = "count"
    if reading == "recommended":
        for key, value in RECOMMENDED_WEIGHTS.items():
            if key in settings or key != "method.epsilon":
                settings[key] = value
    return settings


def _sweep(rhos: Sequence[float], epsilons: Sequence[float], figure: str) -> Iterable[Cell]:
    for method in ("eps-supcon", "eps-supinfonce"):
        for rho in rhos:
            for epsilon in epsilons:
                settings: Settings = {"data.rho": rho, "method.epsilon": epsilon}
                if rho == RHOS[0] and epsilon in HISTOGRAM_EPSILONS:
                    # So that both figures are drawn from the same runs.
                    settings["evaluate.similarities"] = True
                setting = f"rho={rho};eps={epsilon:g}"
                yield Cell(figure, "biased-mnist", method, method, setting, "", settings)


def _study() -> Iterable[Cell]:
    """FairKL's choices, changed one at a time, on data small enough for several seeds."""
    dataset = "biased-mnist-mini"
    ours = "eps-supinfonce+fairkl"
    shared = studied_settings()
    for name, change in STUDIED.items():
        yield Cell(STUDY, dataset, ours, ours, name, "", shared | change)
    for name, (method, settings) in CONTROLS.items():
        yield Cell(STUDY, dataset, method, method, name, "", settings)
