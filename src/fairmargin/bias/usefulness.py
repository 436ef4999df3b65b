"""Is a capture worth using? What it tells of the label, beside chance and the audit's best."""

from typing import Any

from fairmargin.bias import audited
from fairmargin.bias.audited import has_pictures
from fairmargin.bias.auto import CLEARLY, STRONG, capture_told
from fairmargin.bias.commands import scores_command, train_command
from fairmargin.bias.inferred import Told
from fairmargin.bias.score_file import Captured
from fairmargin.config import Config
from fairmargin.data import Data


def usefulness(captured: Captured, config: Config, data: Data) -> dict[str, Any]:
    """Return "told", "audit" and "useless" of a score file's facts.

    A capture that tells the label worse than the audit's strongest shortcut has missed it.

    Args:
        captured: what the capturing model says.
        config: of the capturing model's run.
        data: the dataset; of the bias only what the audit finds is looked at.
    """
    measured = capture_told(captured)
    found = audited.shortcuts(config, data) if has_pictures(data) else []
    best = found[0] if found else None
    return {
        "told": measured.as_json(),
        "audit": None if best is None else vars(best),
        "useless": complaints(measured, best, config),
    }


def best_of(facts: dict[str, Any]) -> audited.Shortcut | None:
    """Return the audit's strongest shortcut that the facts of a score file name, if any."""
    best = facts.get("audit")
    return None if best is None else audited.Shortcut(**best)


def complaints(
    measured: Told,
    best: audited.Shortcut | None,
    config: Config,
    *,
    model: str = "the capturing model",
    made: str = "scores",
) -> list[str]:
    """Return why a capture is of no use, in a sentence; empty if it may be.

    Args:
        measured: what the model tells of the label.
        best: the audit's strongest shortcut.
        config: names the data.
        model: what the model is called.
        made: what was made of it.
    """
    doubt = CLEARLY + 2 * measured.error
    if best is not None and measured.strength < best.strength - doubt:
        return [
            f"{model} tells {measured.text}, and the audit's {best.name} alone "
            f"{100 * best.accuracy:.0f} %: these {made} miss the shortcut and are of no use. "
            f"Use the attribute instead: {train_command(config, f'audit:{best.name}')}"
        ]
    if best is None and measured.strength < STRONG:
        return [
            f"{model} tells {measured.text}, and the audit finds no shortcut either: "
            f"there may be none, and these {made} are hardly about one. To look for one that only "
            f"a network sees: {scores_command(config)} --capture gce --out OTHER"
        ]
    return []


def verdict(facts: dict[str, Any]) -> str:
    """Return one line about a capture that is of use; empty if it is not, or was not compared.

    Args:
        facts: of a score file.
    """
    said = facts.get("told")
    if said is None or facts.get("useless"):
        return ""
    best = facts.get("audit")
    beside = "no shortcut found by the audit"
    if best is not None:
        beside = f"the audit's {best['name']} {100 * best['accuracy']:.0f} %"
    chance = f"chance {100 * said['chance']:.0f} %"
    return f"tells:  {100 * said['accuracy']:.0f} % of the {said['of']} labels ({chance}; {beside})"
