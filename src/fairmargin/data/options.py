"""A dataset's options from the words of a command line: the builder's own keywords, with their types."""

import inspect
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from fairmargin.checks import check_choice


def keywords(builder: Callable[..., Any]) -> dict[str, Any]:
    """The builder's keyword options and their types."""
    hints = get_type_hints(builder)
    parameters = inspect.signature(builder).parameters.values()
    return {p.name: hints[p.name] for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def nearest_option(builder: Callable[..., Any], name: str, given: dict[str, Any]) -> None:
    for option in given:
        check_choice(option, f"option of {name}", keywords(builder))


def parse(builder: Callable[..., Any], name: str, words: Sequence[str]) -> dict[str, Any]:
    """{"rho": 0.9} from ["--rho", "0.9"]; `--skip-bad` alone is True, `--no-background` False; several values: a,b,c."""
    known = keywords(builder)
    options: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(
                f"expected an option of {name} such as --{next(iter(known), 'seed')}; got {word!r}"
            )
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        if (
            key.removeprefix("no_") in known
            and key.startswith("no_")
            and known[key.removeprefix("no_")] is bool
        ):
            options[key.removeprefix("no_")] = False
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
    if get_origin(kind) is not None and get_origin(kind) not in (
        Union,
        types.UnionType,
    ):  # a sequence
        return tuple(
            _convert(part, (get_args(kind) or (str,))[0], key) for part in value.split(",")
        )
    if kind is bool:
        if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError(f"{key} must be true or false; got {value!r}")
        return value.lower() in ("true", "yes", "1")
    if kind in (int, float, Path, str):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{key} must be {kind.__name__}; got {value!r}") from None
    raise ValueError(f"{key} cannot be given on the command line")
