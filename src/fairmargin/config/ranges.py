"""Ranges of the numbers that a configuration may hold, read from the types of its keys."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from fairmargin.checks import Range


def ranges_of(kind: Any, limits: Sequence[Any] = ()) -> Iterator[Range | None]:
    """Yield the range of every number that a type has; None for a number without both ends.

    Args:
        kind: a type, with limits in `Annotated`.
        limits: what an outer `Annotated` says of it.
    """
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        yield from ranges_of(inner, [*limits, *more])
    elif kind in (int, float):
        yield _range(list(_flat(limits)))
    elif get_origin(kind) is not Literal:
        for member in get_args(kind):
            yield from ranges_of(member)


def in_words(kind: Any, limits: Sequence[Any] = ()) -> str:
    """Return the range of a type's numbers as docs/configuration.md shows it; "" without numbers.

    Args:
        kind: a type, with limits in `Annotated`.
        limits: what an outer `Annotated` says of it.
    """
    found = [str(one) for one in ranges_of(kind, limits) if one is not None]
    return " or ".join(dict.fromkeys(found))


def _flat(limits: Sequence[Any]) -> Iterator[Any]:
    for limit in limits:
        if isinstance(limit, FieldInfo):
            yield from limit.metadata
        else:
            yield limit


def _range(limits: list[Any]) -> Range | None:
    low = next((limit for limit in limits if isinstance(limit, Ge | Gt)), None)
    high = next((limit for limit in limits if isinstance(limit, Le | Lt)), None)
    if low is None or high is None:
        return None
    above, below = isinstance(low, Gt), isinstance(high, Lt)
    smallest: Any = low.gt if isinstance(low, Gt) else low.ge
    largest: Any = high.lt if isinstance(high, Lt) else high.le
    return Range(smallest, largest, above, below)
