"""`--bias auto`: choose what tells the bias, by a rule that docs/scores.md states.

1. Bias labels of the training samples, if there are any: people know more than a measurement.
2. Otherwise the audit's first shortcut; or a capture (scores) that is there already, if it tells
   the label clearly better and has not simply learned the task.
3. Otherwise nothing.

Only training and validation samples are looked at.
"""

from dataclasses import dataclass
from pathlib import Path

from fairmargin.bias import audited, score_file
from fairmargin.bias.inferred import Told, has_labels, held_out, told
from fairmargin.bias.score_file import Captured
from fairmargin.config import Config
from fairmargin.data import Data
from fairmargin.methods.catalog import card_of

# Share of the way from chance to perfect from which on a capture counts, as in the audit.
STRONG = 0.5
# A capture must be stronger than an attribute by this much: the attribute has a name.
CLEARLY = 0.05
# A capture that is right on this share of the training samples may have learned the task.
PERFECT = 0.995


@dataclass(frozen=True)
class Choice:
    """What `--bias auto` takes.

    Args:
        source: a value of `data.bias`: "labels", "audit:NAME", "clusters", "scores" or "none".
        why: the reason, in a sentence or two.
    """

    source: str
    why: str


def choose_bias(config: Config, data: Data) -> Choice:
    """Choose what methods see of the bias; the same data and files give the same choice.

    Args:
        config: of the run; its method decides between scores and clusters.
        data: the dataset; test samples are not looked at.
    """
    if has_labels(data.train):
        return Choice("labels", "auto takes the bias labels of the training samples.")
    found = None
    if not data.info.has_vectors:
        shortcuts = audited.shortcuts(config, data)
        found = shortcuts[0] if shortcuts else None
    captured = _usable_capture(config, data)
    known = "the training samples have no bias labels"
    if captured and (found is None or captured.strength > found.strength + CLEARLY):
        needs = card_of(config.method.name).needs
        source = "scores" if "features" in needs and "labels" not in needs else "clusters"
        than = "no attribute of the audit is a shortcut"
        if found is not None:
            than = (
                f"the audit's best attribute, the {found.name}, tells {100 * found.accuracy:.0f} %"
            )
        return Choice(
            source,
            f"auto takes {source}: {known}, the capturing model tells {captured.text}, and {than}.",
        )
    if found is not None:
        chance = 100 / data.info.num_classes
        return Choice(
            f"audit:{found.name}",
            f"auto takes the audit's {found.name}: {known}, and nothing tells the class better "
            f"({100 * found.accuracy:.0f} %; chance {chance:.0f} %).",
        )
    return Choice(
        "none",
        f"auto finds nothing: {known}, the audit sees no shortcut, and there are no scores that "
        "tell the label. A method without bias labels, such as ce, may be right here.",
    )


def capture_told(captured: Captured) -> Told:
    """Return how well a capturing model tells the label, on held-out samples where there are some.

    Args:
        captured: content of a score file.
    """
    labels = {name: captured.splits[name].labels for name in score_file.READ}
    name = held_out(labels)
    said = captured.splits[name].logits.argmax(1)
    return told(said, labels[name], "validation" if name == "valid" else "training")


def _usable_capture(config: Config, data: Data) -> Told | None:
    """Return how well the scores of these data tell the label; None if they are no use."""
    given: Path | None = config.data.scores
    file = score_file.locate_for(config)
    if not file.is_file():
        return None
    captured = score_file.read(file)
    if score_file.mismatch(captured, data, None if given == file else config.seed):
        return None
    train = captured.splits["train"]
    if float((train.logits.argmax(1) == train.labels).float().mean()) >= PERFECT:
        return None
    measured = capture_told(captured)
    return measured if measured.strength >= STRONG else None
