"""The cards of all methods, and the table of docs/methods.md."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files

from fairmargin.methods import (
    METHODS,
    badd,
    blind_eye,
    cnc,
    dfa,
    dfr,
    flac,
    group_dro,
    held_out,
    hex,
    jtt,
    lc,
    learned_mixin,
    lff,
    lnl,
    rebias,
    recommended,
    rubi,
    sin,
    xrm,
)
from fairmargin.methods.card import MethodCard, OptionCard
from fairmargin.methods.row_builders import OBJECTIVE_CARDS

# Training time relative to cross-entropy's, written by `python -m benchmarks.methods --write`.
COSTS: dict[str, float] = json.loads(
    (files("fairmargin.methods") / "costs.json").read_text("utf-8")
)


def _with_costs(cards: Mapping[str, MethodCard]) -> dict[str, MethodCard]:
    return {name: replace(card, cost=COSTS.get(name)) for name, card in cards.items()}


CARDS: dict[str, MethodCard] = _with_costs(
    {
        "fairmargin": recommended.CARD,
        **OBJECTIVE_CARDS,  # the rows of objectives.py, also with "+fairkl"
        "lnl": lnl.CARD,
        "blind-eye": blind_eye.CARD,
        "group-dro": group_dro.CARD,
        "dfr": dfr.CARD,
        "badd": badd.CARD,
        "flac": flac.CARD,
        "jtt": jtt.CARD,
        "cnc": cnc.CARD,
        "class-refit": dfr.CLASS_CARD,
        "afr": held_out.AFR_CARD,
        "self": held_out.SELF_CARD,
        "xrm-twins": xrm.CARD,
        "lff": lff.CARD,
        "lc": lc.CARD,
        "dfa": dfa.CARD,
        "sin": sin.CARD,
        "sin-proxy": sin.PROXY_CARD,
        "rebias": rebias.CARD,
        "hex": hex.CARD,
        "rubi": rubi.CARD,
        "learned-mixin": learned_mixin.CARD,
        "learned-mixin+h": learned_mixin.CARD_WITH_ENTROPY,
    }
)


def card_of(name: str) -> MethodCard:
    """Return the card of a method; an empty one, titled `name`, if it was added without."""
    return CARDS.get(name) or MethodCard(name, "–", "–", "–", "–", "–")


def mismatches() -> list[str]:
    """Name every option without a meaning, and every meaning without an option.

    Returns:
        Sentences such as "jtt: the card says nothing about up_weight"; empty if all is well.
    """
    found = []
    for name, card in CARDS.items():
        parameters = inspect.signature(METHODS[name]).parameters.values()
        # `lambda_`, which Python wants, is `lambda` in a configuration.
        options = {
            p.name.removesuffix("_") for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY
        }
        said = {option for option, what in card.options.items() if what.meaning}
        found += [f"{name}: the card says nothing about {o}" for o in sorted(options - said)]
        found += [f"{name}: has no option {o}" for o in sorted(card.options.keys() - options)]
    return found


def titles() -> dict[str, str]:
    """Return the display name of each part of a method's name, for titles.json.

    "eps-supinfonce+fairkl" is "ε-SupInfoNCE + FairKL": the parts are joined by a plus in both.
    """
    found: dict[str, str] = {}
    for name, card in CARDS.items():
        found |= dict(zip(name.split("+"), card.title.split(" + "), strict=True))
    return found


def table() -> str:
    """Return the cards as a Markdown table, with one line for all rows with "+fairkl"."""
    lines = [["method", "paper", "venue", "needs", "networks", "cost", "file"], ["---"] * 7]
    for name, card in CARDS.items():
        if not name.endswith("+fairkl"):
            lines.append(_cells(f"[`{name}`](#{anchor(name)})", card))
    fairkl = replace(CARDS["ce+fairkl"], file="objective.py")
    *cells, cost, file = _cells("[`…+fairkl`](#fairkl)", fairkl)
    lines.append([*cells, f"{cost} with `ce`", file])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(name: str, card: MethodCard) -> list[str]:
    facts = [card.paper, card.venue, card.needs, card.networks, card.cost_text]
    return [name, *facts, f"`{card.file}`"]


def anchor(name: str) -> str:
    """Return the anchor of a heading: "### biascon+ce" is #biasconce."""
    return name.replace("+", "")


__all__ = [
    "CARDS",
    "COSTS",
    "MethodCard",
    "OptionCard",
    "anchor",
    "card_of",
    "mismatches",
    "table",
    "titles",
]
