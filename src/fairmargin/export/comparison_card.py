"""A card that compares methods: all finished runs below a folder, on one dataset.

The method to use is chosen on validation samples; the test set only measures it.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmargin.export.audits import Named, audit_section
from fairmargin.export.card import cell, head, loading, provenance, training_data, uses
from fairmargin.methods.catalog import CARDS
from fairmargin.report.grouping import parts_of, read_runs
from fairmargin.report.runs import Estimate, Group, Part, estimate
from fairmargin.runs.record import RunError, RunRecord, find_runs

# Rows of the table of groups; of more groups the weakest are shown.
MOST_GROUPS = 16
MOST_WARNINGS = 12
# Samplers that need to know the bias.
BY_BIAS = ("group-balanced", "bias-aware")


@dataclass(frozen=True)
class Choice:
    """What validation samples say.

    Args:
        accuracy: name of the accuracy that chooses.
        values: its mean over seeds, by the method's name; None where it cannot be compared.
        best: the method with the highest; None if validation cannot choose.
        run: of that method, the seed with the highest.
    """

    accuracy: str
    values: Mapping[str, float | None]
    best: Group | None = None
    run: RunRecord | None = None


def comparison_card(runs: str | Path, *, name: str | None = None, audit: Named = ()) -> str:
    """Markdown that compares the finished runs below a folder, and says how to load the best.

    The best is chosen on validation samples, never on the test set.

    Args:
        runs: folder of run folders, such as `fairmargin compare` makes.
        name: title; made of the dataset's name if not given.
        audit: file audit.json of the data or of the best run, or both; see `card.model_card`.
    """
    folder = Path(runs)
    records = read_runs(find_runs([folder]))
    finished = [record for record in records if record.finished]
    if not finished:
        raise RunError(
            f"{folder} has no finished runs, so there is nothing to compare; "
            "give a folder that `fairmargin train` or `fairmargin compare` wrote"
        )
    parts = parts_of(finished)
    if len(parts) > 1:
        titles = ", ".join(part.title for part in parts)
        raise RunError(
            f"{folder} has runs on {len(parts)} datasets ({titles}), and a card compares methods "
            "on one; give the folder of one dataset"
        )
    part = parts[0]
    choice = choose(part)
    title = name or f"{_counted(len(part.groups), 'method')} on {part.dataset}"
    shown = choice.run or part.groups[0].first
    sections = [
        head({group.name: _means(part, group) for group in part.groups}, part.data),
        f"# {cell(title)}",
        _summary(part, choice),
        uses(part.data),
        training_data(part.data),
        _methods(part, choice),
        _groups(part, choice),
        audit_section(shown, audit),
        _warnings(part, len(records) - len(finished)),
        _loading(folder, choice),
        provenance(shown),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def choose(part: Part) -> Choice:
    """Choose a method by its accuracy on validation samples, mean over its seeds.

    Methods that learn from these samples cannot be compared on them. Equal ones: the first.

    Args:
        part: the runs.
    """
    measured = {group.name: _validation(group) for group in part.groups}
    comparable = [found for found in measured.values() if found is not None]
    wanted = str(part.groups[0].first.config.get("evaluate", {}).get("select", "plain"))
    if not all(wanted in one for found in comparable for one in found):
        wanted = "plain"
    if not comparable or not all(wanted in one for found in comparable for one in found):
        return Choice(wanted, dict.fromkeys(measured))
    values: dict[str, float | None] = {}
    for name, found in measured.items():
        values[name] = None if found is None else statistics.fmean(one[wanted] for one in found)
    ranked = [group for group in part.groups if values[group.name] is not None]
    best = max(ranked, key=lambda group: values[group.name] or 0.0)
    of_seed = [one[wanted] for one in measured[best.name] or ()]
    return Choice(wanted, values, best, best.runs[of_seed.index(max(of_seed))])


def _validation(group: Group) -> list[dict[str, float]] | None:
    """Accuracies on validation of the reported weights, by seed; None if they were learned from."""
    found = []
    for run in group.runs:
        fit = CARDS[run.method].validation_fit if run.method in CARDS else None
        source = run.config.get("method", {}).get(fit.option, fit.value) if fit else None
        if fit is not None and source == fit.value:
            return None
        record = (run.outcome.get("records") or {}).get(run.outcome["reported"]) or {}
        valid = record.get("valid") or {}
        found.append({name: float(x) for name, x in valid.items() if x is not None})
    return found


def knew_bias(run: RunRecord) -> str:
    """Say what a run's method knew of the bias in training: "yes", "no", or what instead.

    Args:
        run: finished or not.
    """
    data = run.config.get("data", {})
    given = str(data.get("bias", "labels"))
    card = CARDS.get(run.method)
    if card is None:
        return "not known"
    if card.needs == "validation bias labels":
        return "of validation samples"
    uses = card.uses_bias_labels or card.needs == "bias features"
    if not uses and data.get("sampler") not in BY_BIAS:
        return "no"
    return {"labels": "yes", "none": "no"}.get(given, f"no; {given}")


def _means(part: Part, group: Group) -> dict[str, float]:
    classifier = part.headline[0]
    found = {name: group.accuracy(classifier, name) for name in part.accuracies}
    return {name: one.value for name, one in found.items() if one is not None}


def _summary(part: Part, choice: Choice) -> str:
    seeds = sorted({run.seed for run in part.runs})
    several = len(seeds) > 1
    said = (
        f"{_counted(len(part.runs), 'run')} of {_counted(len(part.groups), 'method')}, "
        f"{'seeds' if several else 'seed'} {', '.join(map(str, seeds))}. "
    )
    best = choice.best
    if best is None:
        return said + (
            "There are no validation accuracies of all runs, so none is called the best here: the "
            "test set measures and does not choose."
        )
    chosen = choice.values[best.name] or 0.0
    said += (
        f"**{cell(best.name)}** is the best on validation samples ({choice.accuracy} "
        f"{100 * chosen:.1f} %{', mean over seeds' if several else ''}). "
        "They alone chose it; the test set did not. "
        f"Its {part.headline[1]} accuracy on the test set: "
        f"**{_shown(part.headline_of(best))}** percent."
    )
    if choice.accuracy != "plain":
        said += " The choice uses the bias labels of the validation samples."
    return said


def _methods(part: Part, choice: Choice) -> str:
    classifier = part.headline[0]
    columns = ["method", "seeds", "knew bias labels", f"validation {choice.accuracy}"]
    columns += part.accuracies
    lines = [
        "## Methods",
        "",
        _interval_words(part),
        "",
        _row(columns),
        "|---" * len(columns) + "|",
    ]
    for group in part.groups:
        found = [group.accuracy(classifier, name) for name in part.accuracies]
        chosen = choice.values[group.name]
        knew = dict.fromkeys(knew_bias(run) for run in group.runs)
        name = f"**{cell(group.name)}**" if group is choice.best else cell(group.name)
        seeds = ", ".join(str(run.seed) for run in group.runs)
        validation = "–" if chosen is None else f"{100 * chosen:.1f}"
        lines.append(_row([name, seeds, ", ".join(knew), validation, *map(_shown, found)]))
    return "\n".join(lines)


def _interval_words(part: Part) -> str:
    several = any(len(group.runs) > 1 for group in part.groups)
    one = any(len(group.runs) == 1 for group in part.groups)
    words = []
    if several:
        words.append("mean ± standard deviation over seeds")
    if one:
        words.append("of one seed, the 95 % interval over test samples")
    return f"Test accuracy in percent: {'; '.join(words)}."


@dataclass(frozen=True)
class _Cell:
    """One class and bias: its test samples, and the accuracy of each method."""

    name: str
    n: int
    accuracy: tuple[Estimate | None, ...]


def _groups(part: Part, choice: Choice) -> str:
    cells = _cells(part)
    if not cells:
        return ""
    judge = 0 if choice.best is None else part.groups.index(choice.best)

    def of_judge(one: _Cell) -> float:
        found = one.accuracy[judge]
        return 2.0 if found is None else found.value

    lead = (
        f"Test accuracy of each class and bias, weakest of {cell(part.groups[judge].name)} first."
    )
    if len(cells) > MOST_GROUPS:
        lead += f" {MOST_GROUPS} of {len(cells)} are shown."
    columns = ["class, bias", "test samples", *(cell(group.name) for group in part.groups)]
    lines = ["## Groups", "", lead, "", _row(columns), "|---" * len(columns) + "|"]
    for one in sorted(cells, key=of_judge)[:MOST_GROUPS]:
        shown = [_shown(found) for found in one.accuracy]
        lines.append(_row([cell(one.name), f"{one.n:,}", *shown]))
    return "\n".join(lines)


def _cells(part: Part) -> list[_Cell]:
    """Return every class and bias with test samples; empty if the bias is not known."""
    tables = []
    for group in part.groups:
        judged = group.judged(part.headline[0])
        tables.append([one["groups"] for one in judged if one["groups"]])
    if not part.bias_names or not any(tables):
        return []
    cells = []
    for y, label in enumerate(part.class_names):
        for b, bias in enumerate(part.bias_names):
            n = max(found["n"][y][b] for table in tables for found in table)
            if n:
                accuracy = tuple(_in_cell(table, y, b) for table in tables)
                cells.append(_Cell(f"{label}, {bias}", n, accuracy))
    return cells


def _in_cell(tables: Sequence[Mapping[str, Any]], y: int, b: int) -> Estimate | None:
    """Return a method's accuracy in one group: over seeds, or of one seed with its interval."""
    found = [table for table in tables if table["n"][y][b]]
    if not found:
        return None
    shares = [table["correct"][y][b] / table["n"][y][b] for table in found]
    return estimate(shares, found[0]["low"][y][b], found[0]["high"][y][b])


def _warnings(part: Part, unfinished: int) -> str:
    lines = []
    for group in part.groups:
        said = [text for run in group.runs for text in run.outcome.get("warnings") or ()]
        lines += [f"- {cell(group.name)}: {cell(text)}" for text in dict.fromkeys(said)]
    if len(lines) > MOST_WARNINGS:
        more = f"- … and {len(lines) - MOST_WARNINGS} more in the runs' result.json"
        lines = [*lines[:MOST_WARNINGS], more]
    if unfinished:
        verb = "runs are" if unfinished > 1 else "run is"
        lines.append(f"- {unfinished} {verb} not finished and left out")
    return "\n".join(["## Warnings", "", *lines]) if lines else ""


def _loading(folder: Path, choice: Choice) -> str:
    if choice.run is None or choice.best is None:
        return ""
    inside = choice.run.path.resolve().relative_to(folder.resolve())
    lead = f"{cell(choice.best.name)}, seed {choice.run.seed}"
    if len(choice.best.runs) > 1:
        lead += ", the best of its seeds on validation"
    return f"## How to use the best\n\n{lead}:\n\n{loading(choice.run, inside.as_posix())}"


def _shown(found: Estimate | None) -> str:
    """Return "91.2 ± 0.4" over seeds, or "91.2 (90.1 to 92.0)" of one, in percent."""
    if found is None:
        return "–"
    value = f"{100 * found.value:.1f}"
    if found.spread is not None:
        return f"{value} ± {100 * found.spread:.1f}"
    if found.low is None or found.high is None:
        return value
    return f"{value} ({100 * found.low:.1f} to {100 * found.high:.1f})"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
