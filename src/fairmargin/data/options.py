"""Read a dataset's options from the words of a command line.

The options are the builder's own keywords, with their types.
"""

import inspect
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fairmargin.checks import check_choice

YES = ("true", "yes", "1")
NO = ("false", "no", "0")


def keywords(builder: Callable[..., Any]) -> dict[str, Any]:
    """Return the builder's keyword options and their types."""
    hints = get_type_hints(builder)
    parameters = inspect.signature(builder).parameters.values()
    return {p.name: hints[p.name] for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_options(builder: Callable[..., Any], name: str, given: dict[str, Any]) -> None:
    """Raise, with the nearest match, if the builder does not have one of these options.

    Args:
        name: the dataset, for the message.
    """
    for option in given:
        check_choice(option, f"option of {name}", keywords(builder))


def parse(builder: Callable[..., Any], name: str, words: Sequence[str]) -> dict[str, Any]:
    """Turn ["--rho", "0.9"] into {"rho": 0.9}.

    `--skip-bad` alone is True, `--no-background` is False, and several values are written a,b,c.

    Args:
        builder: the dataset's, whose keywords are the options.
        name: the dataset, for messages.
    """
    known = keywords(builder)
    options: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            example = next(iter(known), "seed")
            raise ValueError(f"expected an option of {name} such as --{example}; got {word!r}")
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        positive = key.removeprefix("no_")
        if positive != key and known.get(positive) is bool:
            options[positive] = False
            continue
        check_choice(key, f"option of {name}", known)
        if known[key] is bool and not equals:
            options[key] = True
            continue
        if not equals:
            if not rest:
                raise ValueError(f"--{key.replace('_', '-')} needs a value")
            value = rest.pop(0)
        options[key] = _convert(value, known[key], key)
    return options


def _convert(value: str, kind: Any, key: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        if value.lower() in ("none", "") and type(None) in get_args(kind):
            return None
        kind = next(k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is Literal:
        check_choice(value, key, get_args(kind))
        return value
    # Any other generic type is a sequence.
    if get_origin(kind) is not None and get_origin(kind) not in (Union, types.UnionType):
        inner = (get_args(kind) or (str,))[0]
        return tuple(_convert(part, inner, key) for part in value.split(","))
    if kind is bool:
        if value.lower() not in (*YES, *NO):
            raise ValueError(f"{key} must be true or false; got {value!r}")
        return value.lower() in YES
    if kind in (int, float, Path, str):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{key} must be {kind.__name__}; got {value!r}") from None
    raise ValueError(f"{key} cannot be given on the command line")
