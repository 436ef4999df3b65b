"""Is a capture worth using? What it tells of the label, beside chance and the audit's best."""

from typing import Any

from fairmargin.bias import audited
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
    found = audited.shortcuts(config, data)
    best = found[0] if found else None
    return {
        "told": measured.as_json(),
        "audit": None if best is None else vars(best),
        "useless": _complaints(measured, best, config),
    }


def _complaints(measured: Told, best: audited.Shortcut | None, config: Config) -> list[str]:
    doubt = CLEARLY + 2 * measured.error
    if best is not None and measured.strength < best.strength - doubt:
        return [
            f"the capturing model tells {measured.text}, and the audit's {best.name} alone "
            f"{100 * best.accuracy:.0f} %: these scores miss the shortcut and are of no use. "
            f"Use the attribute instead: {train_command(config, f'audit:{best.name}')}"
        ]
    if best is None and measured.strength < STRONG:
        return [
            f"the capturing model tells {measured.text}, and the audit finds no shortcut either: "
            "there may be none, and these scores are hardly about one. To look for one that only "
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
