"""Write nested tables as TOML text: Python's standard library only reads it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Control characters without a short form.
_CONTROL = (*range(9), 11, 12, *range(14, 32), 127)
ESCAPES = {chr(code): f"\\u{code:04x}" for code in _CONTROL}
ESCAPES |= {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def document(tables: Mapping[str, Any]) -> str:
    """Return the text of a whole file.

    Args:
        tables: nested mappings of values.
    """
    return "\n".join(_lines(tables)) + "\n"


def value(item: Any) -> str:
    """Return one value as TOML writes it, or as Python does if TOML has no word for it."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str | Path):
        return _quoted(str(item))
    if isinstance(item, list | tuple):
        return f"[{', '.join(map(value, item))}]"
    if isinstance(item, Mapping):
        pairs = [f"{_key(name)} = {value(inner)}" for name, inner in item.items()]
        return f"{{{', '.join(pairs)}}}"
    return repr(item) if isinstance(item, int | float) else str(item)


def leaves(tables: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted name: ("train.epochs", 80), …

    Args:
        path: what the names start with.
    """
    for name, item in tables.items():
        dotted = f"{path}.{name}" if path else name
        if isinstance(item, Mapping):
            yield from leaves(item, dotted)
        else:
            yield dotted, item


def _lines(tables: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, item in tables.items():
        if not isinstance(item, Mapping):
            yield f"{_key(name)} = {value(item)}"
    for name, item in tables.items():
        if isinstance(item, Mapping):
            inner = f"{path}.{_key(name)}" if path else _key(name)
            yield from ("", f"[{inner}]", *_lines(item, inner))


def _quoted(text: str) -> str:
    escaped = "".join(ESCAPES.get(character, character) for character in text)
    return f'"{escaped}"'


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
