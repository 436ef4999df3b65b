"""What a suite compares: `ce`, `biascon+ce@bias=auto`, `lff@train.epochs=20`.

[TITLE:]NAME[@KEY=VALUE…]: a method and what differs from its defaults. TITLE is what tables call
it, by default all of this. KEY is a key of the configuration, or one of two short ones:

    bias     where its bias labels come from: `data.bias`
    knows    the regime: known, validation or unknown; by default the least that the method needs
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from fairmargin.checks import check_choice
from fairmargin.config import MethodConfig
from fairmargin.data.datasets.suite.compose import REGIMES, Regime
from fairmargin.methods import METHODS
from fairmargin.methods.catalog import card_of

# Values of data.bias that people gave, not a program.
GIVEN = ("labels",)
# Keys that a suite decides itself.
FIXED = ("seed", "method.name", "data.name", "data.root", "data.seed", "data.regime", "data.bias")
TITLES: dict[Regime, str] = {
    "known": "bias labels known in training",
    "validation": "bias labels known only in a small validation set",
    "unknown": "bias labels unknown",
}


@dataclass(frozen=True)
class Entry:
    """One competitor.

    Args:
        label: its name in tables.
        written: how it was written, without a title; names its folder.
        method: name of the method.
        bias: value of `data.bias`.
        changes: further settings, as KEY=VALUE.
        regime: what it may know of the bias.
    """

    label: str
    written: str
    method: str
    bias: str
    changes: tuple[str, ...]
    regime: Regime

    @property
    def folder(self) -> str:
        """Its name as a part of a path."""
        return re.sub(r"[^\w.+@=-]+", "-", self.written)

    @property
    def needs(self) -> str:
        """What it had to know, in a phrase."""
        if self.regime == "unknown":
            return "nothing" if self.bias == "none" else f"nothing; bias from {self.bias}"
        if self.regime == "validation":
            return "bias labels of a small validation set"
        return "bias labels"


def parse_entries(text: str) -> list[Entry]:
    """Return the entries named in "ce,biascon+ce@bias=auto", each once.

    Args:
        text: what follows --methods.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError("--methods is empty; give names, such as ce,group-dro,lff")
    entries = [parse_entry(word) for word in dict.fromkeys(words)]
    labels = [entry.label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f'--methods has two entries with the title "{label}"; give others')
    return entries


def parse_entry(text: str) -> Entry:
    """Return one entry; refuse a regime that does not give the method what it needs.

    Args:
        text: NAME or NAME@KEY=VALUE@KEY=VALUE, with or without TITLE: before it.
    """
    head, *given = text.split("@")
    title, _, name = head.rpartition(":")
    title, name = title.strip(), name.strip()
    written = "@".join([name, *given])
    check_choice(name, "method", METHODS)
    bias, regime, changes = "", "", []
    for change in given:
        key, equals, value = change.partition("=")
        if not equals or not value:
            raise ValueError(f'"{text}": after @ comes KEY=VALUE, such as @bias=auto; got {change}')
        if key == "bias":
            bias = value
        elif key == "knows":
            check_choice(value, "regime", REGIMES)
            regime = value
        elif key in FIXED:
            raise ValueError(f'"{text}": {key} is decided by the suite; leave it out')
        else:
            changes.append(change)
    least = _least(name, bias, changes)
    chosen = cast(Regime, regime or least)
    if REGIMES.index(chosen) > REGIMES.index(least):
        raise ValueError(
            f'"{text}": {name} needs {card_of(name).needs}, which is not there with '
            f"knows={chosen}; leave knows out, or infer the bias: {name}@bias=auto"
        )
    if bias and bias not in GIVEN and chosen != "unknown":
        raise ValueError(
            f'"{text}": a bias that is inferred belongs to the regime unknown; leave knows out'
        )
    if not bias:
        bias = "none" if chosen == "unknown" else "labels"
    return Entry(title or written, written, name, bias, tuple(changes), chosen)


def _least(name: str, bias: str, changes: Sequence[str]) -> Regime:
    """Return the regime with the least knowledge that is enough for a method."""
    if bias:
        return "known" if bias in GIVEN else "unknown"
    card = card_of(name)
    if card.needs == "validation bias labels":
        fit = card.validation_fit
        default = None if fit is None else MethodConfig.known(name)[fit.option].default
        settings = {} if fit is None else {f"method.{fit.option}": default}
        for change in changes:
            key, _, value = change.partition("=")
            settings[key] = value.strip("\"'")
        fits = fit is None or settings[f"method.{fit.option}"] == fit.value
        # Otherwise it learns from the bias labels of the training samples.
        return "validation" if fits else "known"
    return "known" if "bias" in card.needs else "unknown"
