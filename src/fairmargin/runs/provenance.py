"""Where a run was made, part by part: one that is resumed keeps how it began.

environment.json describes the beginning. If the run was resumed, "parts" lists every stretch of it
with the step it began at. What can change the numbers and did change is said.
"""

from collections.abc import Mapping
from typing import Any

# Facts that belong to a stretch of a run, not to the run.
OF_A_PART = (
    "fairmargin", "python", "torch", "numpy", "platform", "device", "threads", "native",
    "deterministic", "world_size", "git", "command", "started",
)  # fmt: skip
# Those of them that can change numbers.
MATTERS = (
    "fairmargin", "torch", "numpy", "platform", "device", "threads", "native", "world_size", "git",
)  # fmt: skip
# What a fact was before runs noted it.
ABSENT = {"native": False}
NAMES = {"world_size": "processes", "git": "the code", "native": "compiled kernels"}

Facts = dict[str, Any]


def appended(before: Mapping[str, Any], now: Facts, step: int) -> tuple[Facts, str]:
    """Return the facts to write, and what has changed that can change numbers; "" if nothing.

    Args:
        before: environment.json as it is; empty for a new run.
        now: the facts about this process.
        step: that the run goes on from; 0 begins it anew.
    """
    parent = {"parent": before["parent"]} if before.get("parent") else {}
    if not step or "torch" not in before:
        return now | parent, ""
    parts = list(before.get("parts") or [_part(before, 0)])
    last = parts[-1]
    changes = [
        f"{NAMES.get(name, name)} changed from {_short(_fact(last, name))} to "
        f"{_short(_fact(now, name))}"
        for name in MATTERS
        if _fact(last, name) != _fact(now, name)
    ]
    first = {name: before.get(name) for name in OF_A_PART}
    whole = now | first | parent | {"parts": [*parts, _part(now, step)]}
    return whole, ", ".join(changes)


def _fact(facts: Mapping[str, Any], name: str) -> Any:
    value = facts.get(name)
    return ABSENT.get(name) if value is None else value


def _part(facts: Mapping[str, Any], step: int) -> Facts:
    return {"from_step": step} | {name: facts.get(name) for name in OF_A_PART}


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        changed = " with changes" if value.get("dirty") else ""
        return f"{str(value.get('commit'))[:10]}{changed}"
    return "unknown" if value is None else str(value)
