"""The paper's figures from run records."""

from pathlib import Path


def draw(figure: str, out: Path, budget: str) -> list[Path]:
    raise NotImplementedError
