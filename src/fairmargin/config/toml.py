"""TOML text from nested tables. Python reads TOML and does not write it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"} | {
    chr(code): f"\\u{code:04x}" for code in (*range(9), 11, 12, *range(14, 32), 127)
}


def document(tables: Mapping[str, Any]) -> str:
    """The whole file."""
    return "\n".join(_lines(tables)) + "\n"


def value(item: Any) -> str:
    """One value as TOML writes it; of what TOML has no word for, Python's."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str | Path):
        return _quoted(str(item))
    if isinstance(item, list | tuple):
        return f"[{', '.join(map(value, item))}]"
    if isinstance(item, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {value(inner)}' for name, inner in item.items())}}}"
    return repr(item) if isinstance(item, int | float) else str(item)


def leaves(tables: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """("train.epochs", 80), …"""
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
    return f'"{"".join(ESCAPES.get(character, character) for character in text)}"'


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
