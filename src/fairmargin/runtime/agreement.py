"""Do the processes of a run agree? Each has its own copy of settings, data and weights.

Nothing in the training compares them: ranks with other seeds, other data or one changed bit would
train on and end without an error. Here they exchange digests, and what differs is named.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fairmargin.runtime.distributed import world_size
from fairmargin.runtime.waiting import arrival

# Differences that a message names.
NAMED = 3


class RanksDifferError(ValueError):
    """Processes of one run hold different things."""


def check_agreement(facts: Mapping[str, str], when: str) -> None:
    """Raise a RanksDifferError on every rank unless all ranks have the same facts.

    One digest is exchanged; only if these differ, all facts are. Every rank has to call it.

    Args:
        facts: by name, in any order.
        when: for the message, such as "at step 100".
    """
    if world_size() == 1:
        return
    whole = hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()
    if len(set(_exchanged(whole))) == 1:
        return
    everyone = _exchanged(dict(facts))
    for other, theirs in enumerate(everyone):
        wrong = _differences(everyone[0], theirs)
        if wrong:
            more = f", and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
            raise RanksDifferError(
                f"the processes of this run do not agree {when}: rank {other} has "
                f"{'; '.join(wrong[:NAMED])}{more}. Start all ranks with the same command, code "
                "and data, and resume from the last checkpoint"
            )


def state_facts(state: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest for every tensor and number of nested dicts and lists, by its place.

    Args:
        state: as `Training.state_dict` returns it.
    """
    return {place: _digest(value) for place, value in _leaves(state, "")}


def _exchanged(value: Any) -> list[Any]:
    """What every rank holds, in their order."""
    found: list[Any] = [None] * world_size()
    with arrival:
        dist.all_gather_object(found, value)
    return found


def _differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What another rank has that rank 0 has not, in words."""
    said = []
    for name in sorted({*ours, *theirs}):
        first, second = ours.get(name, "nothing"), theirs.get(name, "nothing")
        if first != second:
            long = max(len(first), len(second)) > 40
            said.append(f"another {name}" if long else f"{name} = {second}, rank 0 has {first}")
    return said


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{place}[{i}]")
    else:
        yield place, value


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    plain = value.detach().cpu().contiguous()
    content = plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b""
    found = hashlib.sha256(f"{plain.dtype} {list(plain.shape)}\n".encode())
    found.update(content)
    return found.hexdigest()
