"""Checks that all parts of the package share."""

import difflib
from collections.abc import Iterable


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
