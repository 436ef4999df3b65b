"""Values for keys and options: good ones, ones at the edge, and ones of the wrong kind."""

import random
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fairmargin.checks import Range

# As TOML writes them.
WHOLE = ["0", "1", "2", "3", "5", "8", "16", "-1", "-7"]
LARGE = ["100", "1000", "65536", "1000000", "2147483647", "4294967295", "9223372036854775807"]
HUGE = ["9223372036854775808", "100000000000000000000000000", "1e18", "1e300", "inf", "-inf", "nan"]
DECIMAL = ["0.0", "1.0", "0.5", "0.01", "-0.5", "1e-300", "1e-8", "-0.0", "2.5", "0.999999999"]
WRONG = [
    '"text"', '""', '"none"', "true", "false", "[]", "[1]", "[[1]]", "{}", "{a = 1}", "1979-05-27",
    "07:32:00", '"\\u0000"', '"1"', "[true]", '["a", "b"]', "[1, 2.5]", '"../x"', '"é☃"', "[inf]",
    "0x10", "[0]", "[-1, 1]", '"\\u001b[31m"', "1e400", "[1, 1, 1, 1, 1, 1, 1]",
]  # fmt: skip


def deep(draw: random.Random) -> str:
    """A list in a list in a list …, or a table in a table."""
    depth = draw.choice([5, 60, 150, 5000])
    if draw.random() < 0.5:
        return "[" * depth + "]" * depth
    return "{a=" * depth + "1" + "}" * depth


def long(draw: random.Random) -> str:
    """Many numbers, a long text, or a number of many digits."""
    number = draw.choice([50, 5000])
    return draw.choice([f"[{', '.join(['4'] * number)}]", f'"{"x" * number}"', "9" * number])


def likely(kind: Any, draw: random.Random) -> str:
    """A value that is of the right kind, often a good one."""
    origin = get_origin(kind)
    if origin is Annotated:
        return likely(get_args(kind)[0], draw)
    if origin is Literal:
        return f'"{draw.choice(get_args(kind))}"'
    if origin in (Union, types.UnionType):
        return likely(draw.choice(get_args(kind)), draw)
    if origin in (Sequence, tuple, list):
        inner = [a for a in get_args(kind) if a is not ...] or [int]
        count = draw.choice([0, 1, 2, 3, 4])
        return f"[{', '.join(likely(draw.choice(inner), draw) for _ in range(count))}]"
    if kind is bool:
        return draw.choice(["true", "false"])
    if kind is int:
        return draw.choice(WHOLE + LARGE[:2])
    if kind is float:
        return draw.choice(DECIMAL + WHOLE)
    if kind in (str, Path):
        return draw.choice(['"a"', '"x/y"', '"label"', '"none"', '"."', '"no-such-file"'])
    return draw.choice(['"none"', "1"])


def within(limits: Range, kind: Any, draw: random.Random) -> str:
    """A number in a range, often at one of its ends; of a list, a list of such numbers.

    Args:
        limits: the range.
        kind: the type that it should be.
        draw: the stream of the case.
    """
    if get_origin(kind) in (Sequence, tuple, list):
        count = len([a for a in get_args(kind) if a is not ...])
        number = draw.choice([1, 2, 3]) if get_args(kind)[-1] is ... or count == 1 else count
        return f"[{', '.join(within(limits, int, draw) for _ in range(number))}]"
    low, high = limits.low, min(limits.high, 1e9)
    real = kind is float or (get_origin(kind) is not None and float in get_args(kind))
    small = [low, low + 1, low + 2, low + 3, min(8, high), high, (low + min(high, 16)) / 2]
    if real:
        small += [low + 1e-9, low + 0.1, low + 0.5, high - 1e-9]
    number = draw.choice([one for one in small if one in limits] or [high])
    return repr(float(number)) if real and draw.random() < 0.7 else str(int(number))


def value(kind: Any, draw: random.Random) -> str:
    """A value for a key, as TOML text.

    Args:
        kind: the type that it should be.
        draw: the stream of the case.
    """
    luck = draw.random()
    if luck < 0.5:
        return likely(kind, draw)
    if luck < 0.72:
        return draw.choice(LARGE + HUGE)
    if luck < 0.82:
        return draw.choice(DECIMAL + WHOLE)
    if luck < 0.95:
        return draw.choice(WRONG)
    return deep(draw) if luck < 0.975 else long(draw)
