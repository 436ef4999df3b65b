"""What to train people's own images with when nobody knows the bias: the audit looks for one.

`fairmargin train --dataset my.csv`, with a table that names no bias and a user who names no method:
if the audit of the training images finds a shortcut, its groups become the bias labels. Otherwise
the default method trains as plain cross-entropy, and both are said.
"""

from collections.abc import Callable

from fairmargin.bias.auto import choose_bias
from fairmargin.config import Config
from fairmargin.runs import build


def with_found_bias(config: Config, again: Callable[[str], Config]) -> Config:
    """Return the configuration to train with, and what was found in its notes.

    Args:
        config: as the user's words make it.
        again: makes it again with another value of `data.bias`.
    """
    if not config.unknown_bias:
        return config
    choice = choose_bias(config, build.data(config))
    if choice.source in ("none", "labels"):
        return config.with_notes(*config.notes, f"bias: {choice.why}")
    chosen = again(choice.source)
    return chosen.with_notes(f"bias: {choice.why}", *chosen.notes)
