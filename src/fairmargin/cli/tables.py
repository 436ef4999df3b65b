"""Tables of accuracies for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fairmargin.cli.listing import plain_table


def accuracy_table(sets: dict[str, dict[str, Any]], title: str) -> Table:
    """Return a table with one column for each classifier.

    Args:
        sets: what was measured, by classifier.
        title: above the table.
    """
    shown = plain_table(title)
    shown.add_column("", no_wrap=True)
    for name in sets:
        shown.add_column(classifier_title(name))
    for name in next(iter(sets.values()))["accuracy"]:
        shown.add_row(name, *(with_interval(judged["accuracy"][name]) for judged in sets.values()))
    gaps = [judged["equalised_odds_gap"] for judged in sets.values()]
    errors = [judged["calibration"] and judged["calibration"]["ece"] for judged in sets.values()]
    for name, numbers in (("equalised-odds gap", gaps), ("calibration error", errors)):
        if any(number is not None for number in numbers):
            cells = ["–" if number is None else f"{100 * number:.1f}" for number in numbers]
            shown.add_row(name, *cells)
    return shown


def group_table(
    groups: dict[str, Any], class_names: Sequence[str], bias_names: Sequence[str]
) -> Table:
    """Return a table of right answers, a row for each class and a column for each bias.

    Args:
        groups: "n" and "correct", each [classes, biases].
        class_names: of the rows.
        bias_names: of the columns.
    """
    shown = plain_table("% right by group")
    shown.add_column("class")
    for name in bias_names:
        shown.add_column(name)
    for name, sizes, right in zip(class_names, groups["n"], groups["correct"], strict=True):
        cells = []
        for n, correct in zip(sizes, right, strict=True):
            cells.append(f"{100 * correct / n:.1f} of {n:,}" if n else "–")
        shown.add_row(name, *cells)
    return shown


def classifier_title(name: str) -> str:
    """Return the name of a classifier in words."""
    return {
        "own": "own classifier",
        "probe": "linear probe",
        "knn": "nearest neighbours",
        "linear": "linear evaluation",
        "reported": "reported classifier",
    }[name]


def with_interval(x: dict[str, float]) -> str:
    """Return an accuracy in per cent with its interval: "91.2 (90.1–92.3)".

    Args:
        x: "value", "low" and "high" as fractions.
    """
    return f"{100 * x['value']:.1f} ({100 * x['low']:.1f}–{100 * x['high']:.1f})"


def shown_classifier(classifiers: Sequence[str]) -> str:
    """Return the classifier to show: the method's own if it was evaluated, else the first.

    Args:
        classifiers: those that were evaluated.
    """
    return "own" if "own" in classifiers else classifiers[0]
