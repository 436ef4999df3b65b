"""Which two methods a report's first sentence compares, and whether they trained alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairmargin.report.runs import BASELINE, Group, Part, estimate
from fairmargin.runs.record import RunRecord


@dataclass(frozen=True)
class Compared:
    """The methods of the first sentence.

    Args:
        first: the one to beat.
        second: the other one; `first` again if there is one method only.
        chosen: how `second` was chosen, as a sentence; empty if the user named it or nothing was to
            be chosen.
    """

    first: Group
    second: Group
    chosen: str = ""


def compared(part: Part, named: Sequence[str] = ()) -> Compared:
    """Return cross-entropy and the best other method, or the methods that the user named.

    The best is chosen on validation images if every run has such a number, else on the test images.
    Without cross-entropy, the two best are compared.

    Args:
        part: a dataset's groups.
        named: one or two methods, such as "ce"; of one alone, it is compared with cross-entropy.
    """
    found = [_best(part, [g for g in part.groups if g.first.method == name]) for name in named]
    given = [group for group in found if group is not None]
    if given and len(given) == len(named):
        others = [group for group in _of(part, BASELINE) if group is not given[0]]
        pair = given if len(given) > 1 else [*others[:1], given[0]]
        return Compared(pair[0], pair[-1])
    ranked, where = by_validation(part)
    baseline = _best(part, _of(part, BASELINE))
    rivals = [group for group in ranked if group is not baseline]
    if not rivals:
        return Compared(ranked[0], ranked[0])
    if baseline is None:
        if len(rivals) == 1:
            return Compared(rivals[0], rivals[0])
        return Compared(rivals[1], rivals[0], f"They are the two best methods by {where}.")
    chosen = ""
    if len(rivals) > 1:
        how = "is" if _validation(rivals[0]) != _validation(rivals[1]) else "is among"
        chosen = f"{rivals[0].name} {how} the best of the other {len(rivals)} methods by {where}."
    return Compared(baseline, rivals[0], chosen)


def check_named(parts: Sequence[Part], named: Sequence[str]) -> None:
    """Refuse names for the first sentence that no part has.

    Args:
        parts: of the report.
        named: methods that the user named.
    """
    if len(named) > 2:
        raise ValueError(f"--headline compares two methods; got {', '.join(named)}")
    there = dict.fromkeys(run.method for part in parts for run in part.runs)
    for name in named:
        if parts and name not in there:
            raise ValueError(
                f"--headline: there is no finished run of {name}; there are {', '.join(there)}"
            )


def by_validation(part: Part) -> tuple[list[Group], str]:
    """Return the groups, best first, and by which accuracy of which images they are ordered.

    Args:
        part: a dataset's groups.
    """
    values = {group.name: _validation(group) for group in part.groups}
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < len(values):
        return part.ranked, f"“{part.headline[1]}” accuracy on the test images"
    select = _select(part.groups[0].first)
    ranked = sorted(part.groups, key=lambda group: -known[group.name])
    return ranked, f"“{select}” accuracy on the validation images"


def unlike(part: Part) -> list[str]:
    """Return in what the methods differ besides themselves: "epochs 24 (SupCon), 80 (EnD)".

    Args:
        part: a dataset's groups.
    """
    said: list[str] = []
    for name in ("epochs", "steps", "training images", "test images", "network", "seeds", "data"):
        holders: dict[str, list[str]] = {}
        for group in part.groups:
            holders.setdefault(_condition(group, name), []).append(group.name)
        if len(holders) < 2:
            continue
        # Epochs say it already.
        if name == "steps" and any(line.startswith("epochs") for line in said):
            continue
        if name == "data":
            said.append("other samples under the same seed")
            continue
        parts = [f"{value} ({_listed(names)})" for value, names in holders.items()]
        said.append(f"{name} {', '.join(parts)}")
    return said


def _of(part: Part, method: str) -> list[Group]:
    return [group for group in part.groups if group.first.method == method]


def _best(part: Part, groups: Sequence[Group]) -> Group | None:
    """Return the best of these by validation; None of none."""
    order = [group.name for group in by_validation(part)[0]]
    return min(groups, key=lambda group: order.index(group.name), default=None)


def _select(run: RunRecord) -> str:
    """The accuracy by which the run's best epoch was chosen."""
    wanted = str(run.config.get("evaluate", {}).get("select", "cell-mean"))
    return wanted if wanted in _valid(run) else "plain"


def _valid(run: RunRecord) -> dict[str, Any]:
    """The accuracies on validation images of the weights that the result is about."""
    records = run.outcome.get("records") or {}
    reported = records.get(run.outcome.get("reported", "last")) or {}
    return reported.get("valid") or {}


def _validation(group: Group) -> float | None:
    values = [_valid(run).get(_select(run)) for run in group.runs]
    if any(value is None for value in values):
        return None
    found = estimate(values)
    return None if found is None else found.value


def _condition(group: Group, name: str) -> str:
    """Return one condition of training as text: a value, or those of all seeds."""
    runs = group.runs
    if name == "seeds":
        return ", ".join(str(run.seed) for run in runs)
    if name == "network":
        return str(group.first.config.get("network", {}).get("name", "?"))
    if name == "data":
        # Which samples are held out may depend on the seed.
        shared = {run.seed: run.data_hashes.get("test", "") for run in runs}
        return shared[min(shared)]
    if name in ("training images", "test images"):
        key = name.partition(" ")[0].removesuffix("ing")
        sizes = {run.data.get("sizes", {}).get(key, 0) for run in runs}
        return _span(sizes)
    return _span({run.outcome[name] for run in runs})


def _span(values: set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _listed(names: Sequence[str]) -> str:
    """Return up to two names, or one and how many more."""
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]} and {len(names) - 1} others"
