"""Checks that all parts of the package share."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Where a range has no end of its own. Nothing that anybody trains needs more.
LARGEST = 1e9
# Most values that a list may have: layers of a network, columns of a table.
MOST_VALUES = 1000


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: every number that comes from outside has one.

    Args:
        low: the smallest number, or the limit that is not reached if `above`.
        high: the largest number, or the limit that is not reached if `below`.
        words: what is said of it instead of the two numbers.
    """

    low: float
    high: float = LARGEST
    above: bool = False
    below: bool = False
    words: str = ""

    def __contains__(self, value: float) -> bool:
        if value == self.low:
            return not self.above
        if value == self.high:
            return not self.below
        return self.low < value < self.high

    def __str__(self) -> str:
        if self.words:
            return self.words
        if self.high == LARGEST:
            return f"{'>' if self.above else '≥'} {self.low:g}"
        left = "(" if self.above else "["
        right = ")" if self.below else "]"
        return f"{left}{_plain(self.low)}, {_plain(self.high)}{right}"

    @property
    def bounds(self) -> dict[str, Any]:
        """The two limits by the names that pydantic has for them: {"ge": 0, "lt": 1}."""
        return {"gt" if self.above else "ge": self.low, "lt" if self.below else "le": self.high}

    def problem(self, value: float) -> str:
        """Say why a number is not in the range: "must be at most 1; got 2"; empty if it is.

        Args:
            value: the number.
        """
        if value in self:
            return ""
        too_high = value >= self.high
        limit = self.high if too_high else self.low
        if too_high:
            words = "below" if self.below else "at most"
        else:
            words = "above" if self.above else "at least"
        return f"must be {words} {_plain(limit)}; got {value!r}"


def _plain(limit: float) -> str:
    return f"{limit:.0f}" if limit == int(limit) else f"{limit:g}"


FROM_ZERO = Range(0)
FROM_ONE = Range(1)
ABOVE_ZERO = Range(0, above=True)
SHARE = Range(0, 1)


def check_choice(value: str, name: str, choices: Iterable[str]) -> None:
    """Raise a ValueError with the nearest match unless `value` is one of `choices`.

    Args:
        name: of the argument, for the message.
    """
    options = list(choices)
    if value not in options:
        near = difflib.get_close_matches(str(value), options, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"unknown {name} {value!r}: {hint}Choose from {', '.join(map(repr, options))}"
        )
