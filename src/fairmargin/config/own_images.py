"""Defaults for people's own data: by the size and number of images, and what is known of the bias.

    fairmargin train --dataset my.csv

The layers are files: presets/folder.toml for all, folder-KIND.toml for a kind of image, and
folder-labels.toml where bias labels are known. docs/decisions.md has the validation table that they
were chosen by.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairmargin.data.look import OwnFacts, look, marks_test_vectors

# Kinds of images, each with the largest length of the shorter side.
KINDS = (("tiny", 40), ("small", 96), ("photographs", None))
# Tiny images of such sides keep them.
KEPT_SIDES = range(16, 41)
# Training images that a run sees in all, and the epochs that this may lead to.
SEEN_IMAGES = 60_000
LEAST_EPOCHS, MOST_EPOCHS = 8, 60
# What is trained: it uses bias labels or features, and is cross-entropy without either.
METHOD = "fairmargin"
# Share of every (class, bias) group that is held out for the test where none is marked.
HELD_OUT = 0.2
# Settings by which a user says where test samples come from.
ABOUT_TEST = {"test_fraction", "test_needed"}


@dataclass(frozen=True)
class OwnDefaults:
    """Defaults for one table of images.

    Args:
        presets: names of the files that apply, the later ones first to count.
        layer: what does not stand in files: image size, epochs, and the method.
        notes: what was chosen and why, in sentences for the terminal; {"method": …, "size": …,
            "test": …}.
        unknown: nothing is known of the bias, and nobody said that it is to stay so.
    """

    presets: tuple[str, ...]
    layer: dict[str, Any]
    notes: dict[str, str]
    unknown: bool = False


@dataclass(frozen=True)
class Notes:
    """What stands beside a configuration and does not make it another one.

    Args:
        lines: sentences about what was chosen.
        unknown_bias: the method was chosen for the user, without knowledge of the bias.
    """

    lines: tuple[str, ...] = field(default=(), compare=False)
    unknown_bias: bool = field(default=False, compare=False)


def own_defaults(data: Mapping[str, Any]) -> OwnDefaults:
    """Return the defaults for a table or folder of images.

    Args:
        data: the table [data] of the configuration, without presets.
    """
    root = data.get("root")
    facts = None if root is None else look(Path(str(root)), data)
    given_size = data.get("image_size")
    side = given_size if isinstance(given_size, int) else None
    if side is None and facts is not None:
        side = facts.side
    kind = kind_of(side)
    bias = str(data.get("bias", "labels"))
    layer: dict[str, Any] = {"method": {"name": METHOD}}
    if kind == "tiny" and given_size is None and side in KEPT_SIDES:
        layer["data"] = {"image_size": side}
    notes = {"method": f"method: {METHOD}, {how_it_trains(facts, bias)}"}
    if facts is not None and facts.images:
        layer["train"] = {"epochs": epochs_for(facts.images)}
        notes["size"] = (
            f"{facts.images:,} training images of about {facts.side or '?'} pixels: preset "
            f'"folder-{kind}"'
        )
    if held_out := test_held_out("folder", data):
        layer.setdefault("data", {})["test_fraction"] = HELD_OUT
        notes["test"] = held_out
    presets = ["folder", f"folder-{kind}"]
    if gives_labels(facts, bias):
        presets.append("folder-labels")
    unknown = bias == "labels" and facts is not None and not facts.biases
    return OwnDefaults(tuple(presets), layer, notes, unknown)


def vector_defaults(data: Mapping[str, Any]) -> OwnDefaults:
    """Return the defaults for an .npz file of vectors.

    Args:
        data: as in `own_defaults`.
    """
    held_out = test_held_out("embeddings", data)
    if not held_out:
        return OwnDefaults(("embeddings",), {}, {})
    layer = {"data": {"test_fraction": HELD_OUT}}
    return OwnDefaults(("embeddings",), layer, {"test": held_out})


def test_held_out(dataset: str, data: Mapping[str, Any]) -> str:
    """Return a sentence if test samples are to be held out, because none are marked; else "".

    A table with a column of another name that seems to mark them is left to the user.

    Args:
        dataset: "folder" or "embeddings".
        data: as in `own_defaults`.
    """
    root = data.get("root")
    if root is None or ABOUT_TEST & data.keys():
        return ""
    if dataset == "embeddings":
        what, lacking = "vector", marks_test_vectors(Path(str(root))) is False
    else:
        facts = look(Path(str(root)), data)
        what, lacking = "image", facts is not None and not facts.tests and facts.splits_in is None
    if not lacking:
        return ""
    return (
        f"test: no {what} is marked for it, so {HELD_OUT:.0%} of every class and bias are held "
        "out, the same in every run (data.test_fraction)"
    )


def kind_of(side: int | None) -> str:
    """Return the kind of images with this shorter side in pixels; "small" if it is not known."""
    if side is None:
        return "small"
    return next(kind for kind, most in KINDS if most is None or side <= most)


def epochs_for(images: int) -> int:
    """Return a number of epochs that gives sets of all sizes about as many steps.

    Args:
        images: in the training split.
    """
    return min(max(round(SEEN_IMAGES / max(images, 1)), LEAST_EPOCHS), MOST_EPOCHS)


def has_labels(facts: OwnFacts | None) -> bool:
    """True if the training samples have bias labels that can be balanced."""
    return facts is not None and facts.biases >= 2


def gives_labels(facts: OwnFacts | None, bias: str) -> bool:
    """True if methods see bias labels with this setting of `data.bias`."""
    if bias == "labels":
        return has_labels(facts)
    return bias not in ("none", "scores")


def how_it_trains(facts: OwnFacts | None, bias: str) -> str:
    """Return what the method does of itself with what is known of the bias, and why.

    Args:
        facts: of the table; None if it could not be read.
        bias: `data.bias`.
    """
    if bias == "scores":
        return "with the bias scores"
    if bias == "labels" and not has_labels(facts):
        why = "the table has no bias column, and no shortcut is known"
        if facts is not None and facts.biases == 1:
            why = "the bias column has one value only, so nothing can be balanced"
        return f"as plain cross-entropy: {why}"
    if bias == "none":
        return "as plain cross-entropy: --bias none hides what is known of the bias"
    if bias == "labels":
        assert facts is not None
        share = "" if facts.known > 0.999 else f" for {facts.known:.0%} of the training images"
        return f"with the bias that the table names{share} ({facts.biases} values)"
    return f"with the bias labels of --bias {bias}"
