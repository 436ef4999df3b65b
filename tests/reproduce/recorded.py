"""Lines of a ledger, and run folders as far as the ledger reads them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairmargin import config as configuration
from fairmargin.reproduce import budgets
from fairmargin.reproduce.cells import Cell
from fairmargin.reproduce.ledger import Line


def line(method: str, published: float, ours: float, **others: object) -> Line:
    """A line of Table 3 with a finished run at the laptop budget, but for `others`."""
    facts = {"budget": "laptop", "epochs": "6 of 6", "seeds": 1, "published_std": 0.5}
    reading = str(others.pop("reading", ""))
    cell = ("3", "biased-mnist", method, "rho=0.99", reading)
    made = Line(*cell, published, None, "paper")
    facts |= others
    budget = budgets.parse(str(facts["budget"])) if facts["budget"] else None
    facts.setdefault("note", budgets.note(budget, "biased-mnist") if budget else "")
    return replace(made, ours=ours, gap=round(ours - published, 2), **facts)  # type: ignore[arg-type]


def run_folder(
    cell: Cell,
    out: Path,
    seed: int,
    accuracy: float | None,
    epochs: int = budgets.EPOCHS,
    extra: Sequence[str] = (),
) -> None:
    """What a run leaves that the ledger reads."""
    folder = cell.folder(out, "laptop", seed)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(configuration.dump(cell.config("laptop", seed, extra)))
    (folder / "environment.json").write_text(json.dumps({"git": {"commit": "0123456789abcdef"}}))
    course = [0.25] if accuracy is None else [accuracy + 0.01, accuracy]
    evaluated = {"event": "evaluation", "epoch": epochs, "step": 10, "valid": {}}
    events = [evaluated | {"test": {"plain": value}} for value in course]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if accuracy is not None:
        records: dict[str, object] = {"last": {}}
        test = {"own": {"accuracy": {"plain": {"value": accuracy}}}}
        result = {
            "epochs": epochs,
            "steps": 100,
            "records": records,
            "test": test,
            "extra_tests": {},
        }
        (folder / "result.json").write_text(json.dumps(result))
