"""What is wrong with a configuration: every problem at once, each with its key."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from pydantic import ValidationError

from fairmargin.checks import MOST_VALUES
from fairmargin.config import toml

PAGE = "docs/configuration.md"


@dataclass(frozen=True)
class Problem:
    """What is wrong with one key.

    Args:
        path: the key; empty if the problem is with the file or the whole configuration.
        says: what follows the path, such as "must be at least 1; got 0".
        unknown: the key does not exist.
        siblings: keys that exist beside an unknown one.
    """

    path: tuple[str | int, ...]
    says: str = ""
    unknown: bool = False
    siblings: tuple[str, ...] = ()

    def under(self, *parents: str | int) -> "Problem":
        """Return the same problem with these keys in front of its path."""
        return replace(self, path=(*parents, *self.path))

    def __str__(self) -> str:
        # Here, because schema imports this module.
        from fairmargin.config.schema import all_keys

        if not self.unknown:
            return f"{dotted(self.path)} {self.says}".strip()
        *parents, last = self.path
        near = difflib.get_close_matches(str(last), self.siblings, n=1, cutoff=0.6)
        if near:
            meant = [dotted((*parents, near[0]))]
        else:
            meant = [key.path for key in all_keys() if key.name == last]
        hint = ""
        if meant:
            hint = f'did you mean "{meant[0]}"? '
        elif self.siblings:
            hint = f"there are {', '.join(self.siblings)}. "
        return f'unknown key "{dotted(self.path)}"; {hint}See {PAGE}'


class ConfigError(ValueError):
    """Everything that is wrong with a configuration, one problem per line."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems = [Problem((), problems)] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(dict.fromkeys(map(str, self.problems))))


# pydantic's kind of error → what the value must be
KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "sequence_str": "a list",
    "is_instance_of": "a list",
    "model_type": "a table",
    "dict_type": "a table",
}
# pydantic's kind of error → words, and where pydantic keeps the limit
BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def problems_of(error: ValidationError, siblings: tuple[str, ...] = ()) -> list[Problem]:
    """Turn pydantic's errors into problems, one for each key.

    Args:
        siblings: keys that exist, for the hint at an unknown one.
    """
    found: dict[tuple[str | int, ...], list[Problem]] = {}
    for item in error.errors(include_url=False):
        path = item["loc"]
        inner = item.get("ctx", {}).get("error")
        if isinstance(inner, ConfigError):
            # Options are written beside the name.
            parents = path[:-1] if path[-1:] == ("options",) else path
            found[path] = [problem.under(*parents) for problem in inner.problems]
        elif item["type"] == "extra_forbidden":
            found[path] = [Problem(path, unknown=True, siblings=siblings)]
        else:
            says = _says(item["type"], item["input"], item.get("ctx", {}))
            found.setdefault(path, [Problem(path, says)])
    return list(chain.from_iterable(found.values()))


def _says(kind: str, value: Any, context: Mapping[str, Any]) -> str:
    shown = toml.value(value)
    if len(shown) > 60:
        shown = f"{shown[:59]}…"
    got = f"got {shown}"
    if kind == "value_error":
        says = str(context["error"])
        return f"is wrong: {says}" if says.startswith("unknown") else says
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        return f"must be one of {', '.join(map(toml.value, choices))}; {got}{hint}"
    if kind in BOUNDS:
        words, bound = BOUNDS[kind]
        limit = context[bound]
        number = str(limit) if isinstance(limit, int) else f"{limit:g}"
        return f"must be {words} {number}; {got}"
    if kind in ("too_short", "too_long"):
        number = context.get("min_length", context.get("max_length"))
        most = "at most " if number == MOST_VALUES else ""
        return f"must have {most}{number} values; {got}"
    if kind == "missing":
        return "is missing"
    return f"must be {KINDS.get(kind, 'something else')}; {got}"


def dotted(path: Sequence[str | int]) -> str:
    """Write a path with dots, and positions in brackets: "players.probe.betas[0]".

    Args:
        path: names of keys and positions in lists.
    """
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
