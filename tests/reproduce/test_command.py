"""Which cells `fairmargin reproduce` takes, and what it says before it runs them."""

from collections import Counter
from pathlib import Path

import pytest

from fairmargin.networks.native import library
from fairmargin.reproduce import command
from fairmargin.reproduce.cells import RHOS
from fairmargin.reproduce.command import chosen
from tests.reproduce.recorded import run_folder


def test_several_patterns_give_their_cells_in_this_order_and_once() -> None:
    found = chosen("3", "end:rho=0.99, ce:rho=0.99*,*:rho=0.99", None)
    names = [cell.name.partition("/")[2] for cell in found]
    assert names[:5] == ["end:rho=0.99", *(f"ce:rho={rho}" for rho in RHOS)]
    assert len(set(names)) == len(names) == 5 + 6


def test_a_pattern_with_a_reading_may_be_of_any_and_others_have_the_usual() -> None:
    found = chosen("3", "*+fairkl:rho=0.99@released,ce+fairkl:rho=0.99*", None)
    readings = Counter(cell.reading for cell in found)
    assert readings == {"released": 2, "paper": 4, "authors": 4, "recommended": 4}


@pytest.mark.parametrize("pattern", ["ce:*,nothing", "", ","])
def test_each_pattern_must_match(pattern: str) -> None:
    with pytest.raises(ValueError, match="matches nothing of 3"):
        chosen("3", pattern, None)


def planned(what: str, pattern: str, out: Path, budget: str = "laptop") -> list[str]:
    said: list[str] = []
    command.reproduce(
        what,
        budget=budget,
        seeds=[0],
        pattern=pattern,
        reading=None,
        dry_run=True,
        out=out,
        extra=[],
        command=[],
        say=said.append,
    )
    return said


def test_compiled_kernels_are_proposed_where_they_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_print_plan", lambda *arguments: None)
    monkeypatch.setattr(library, "can_compile", lambda: True)
    monkeypatch.delenv(library.VARIABLE, raising=False)
    (cell,) = chosen("3", "ce:rho=0.99", None)
    network = ("3", "ce:rho=0.99", tmp_path)
    assert "FAIRMARGIN_NATIVE=1 trains this network faster" in planned(*network)[0]
    assert not planned(*network, budget="smoke")
    assert not planned("4", "corrupted-cifar10/vanilla:*", tmp_path)
    with monkeypatch.context() as context:
        context.setenv(library.VARIABLE, "1")
        assert not planned(*network)
    with monkeypatch.context() as context:
        context.setattr(library, "can_compile", lambda: False)
        assert not planned(*network)
    run_folder(cell, tmp_path, 0, 0.9)
    assert not planned(*network)
