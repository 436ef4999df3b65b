"""Options of a dataset, a network or a method.

They are the keywords of its builder that a configuration can express.
"""

import inspect
import keyword
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, Field, Strict, TypeAdapter

from fairmargin.checks import MOST_VALUES, Range
from fairmargin.data.options import keywords


@dataclass(frozen=True)
class Option:
    """A keyword of a builder, with its type (`kind`), default, and the range of its numbers."""

    parameter: str
    kind: Any
    default: Any
    range: Range | None = None

    @property
    def written(self) -> str:
        """Its name in a configuration."""
        return written(self.parameter)

    @property
    def several_kinds(self) -> bool:
        """Whether it takes values of several types, None aside."""
        return _is_union(self.kind) and len(set(get_args(self.kind)) - {type(None)}) > 1

    def convert(self, value: Any) -> Any:
        """Return the value as the builder wants it, or raise pydantic's ValidationError.

        Args:
            value: as TOML gives it.
        """
        if type(None) in get_args(self.kind):
            value = parse_none(value)
        if value is not None and _is_list(self.kind):
            value = as_list(value)
        return _tuples(_adapter(self.kind, self.range).validate_python(value))


def written(parameter: str) -> str:
    """Return a parameter's name in a configuration: `lambda_` in Python is `lambda` there.

    Args:
        parameter: name of a builder's parameter.
    """
    bare = parameter.removesuffix("_")
    return bare if keyword.iskeyword(bare) else parameter


def parse_none(value: Any) -> Any:
    """Return None for the word "none", which stands for it because TOML has no null."""
    return None if isinstance(value, str) and value == "none" else value


def as_list(value: Any) -> Any:
    """Return a value where a list is wanted: one alone is a list of one, "a, b" one of two.

    Args:
        value: as TOML gives it. None, lists and tables stay as they are; the word "none" is an
            empty list.
    """
    if isinstance(value, str):
        parts = [] if value == "none" else value.split(",")
        return tuple(_number_or_text(part.strip()) for part in parts)
    if value is None or isinstance(value, list | tuple | dict):
        return value
    return (value,)


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def options_of(
    builder: Callable[..., Any], ranges: Mapping[str, Range] | None = None
) -> dict[str, Option]:
    """Return the options of a builder, by their names in a configuration.

    Of a class, such as a network, all parameters may be set, except those that a partial has filled
    in by position; of a function, its keywords.

    Args:
        builder: a function, a class, or a partial of either.
        ranges: of options that are numbers, by their names in a configuration.
    """
    limits = ranges or {}
    made = builder.func if isinstance(builder, partial) else builder
    if isinstance(made, type):
        known = get_type_hints(made.__init__)  # type: ignore[misc]
    else:
        known = keywords(made)
    parameters = inspect.signature(builder).parameters.values()
    options = [
        Option(p.name, known[p.name], p.default, limits.get(written(p.name)))
        for p in parameters
        if p.name in known
    ]
    return {option.written: option for option in options if _expressible(option.kind)}


def _is_list(kind: Any) -> bool:
    """True for lists of any length, and for these or None."""
    if _is_union(kind):
        kinds = [member for member in get_args(kind) if member is not type(None)]
        return len(kinds) == 1 and _is_list(kinds[0])
    if get_origin(kind) is tuple:
        return get_args(kind)[-1] is ...
    return get_origin(kind) in (Sequence, list)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _expressible(kind: Any) -> bool:
    if get_origin(kind) is Literal or kind in (bool, int, float, str, Path, type(None), Any, ...):
        return True
    holds = _is_union(kind) or get_origin(kind) in (Sequence, tuple, list)
    return holds and all(map(_expressible, get_args(kind)))


@cache
def _adapter(kind: Any, range: Range | None) -> TypeAdapter[Any]:
    # A type of None says only that the default is None.
    accepted = Any if kind is type(None) else _strictly(kind, range)
    return TypeAdapter(accepted)


def _strictly(kind: Any, range: Range | None) -> Any:
    """Return the type without conversions: "3" is not a number, and 1 is not true."""
    limits = () if range is None else (Field(**range.bounds),)
    if kind is float:
        endless = range is not None and range.high == math.inf
        real = AfterValidator(_not_nan) if endless else Field(allow_inf_nan=False)
        return Annotated[float, Strict(), real, *limits]
    if kind is int:
        whole = () if range is None else (Field(**_whole(range.bounds)),)
        return Annotated[int, Strict(), *whole]
    if kind in (bool, str):
        return Annotated[kind, Strict()]
    inner = tuple(_strictly(one, range) for one in get_args(kind))
    if _is_union(kind):
        return Union[inner]  # noqa: UP007 — a tuple of types
    if get_origin(kind) not in (Sequence, tuple, list):
        return kind
    many = get_origin(kind)[inner]
    return Annotated[many, Field(max_length=MOST_VALUES)] if _is_list(kind) else many


def _whole(bounds: Mapping[str, float]) -> dict[str, Any]:
    """Return limits as whole numbers, which compare exactly with whole numbers of any size."""
    return {name: int(limit) for name, limit in bounds.items()}


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("must be a number; got nan")
    return value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
