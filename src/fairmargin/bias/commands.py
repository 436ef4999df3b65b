"""Commands that messages tell people to give next, for the data of a configuration."""

import shlex

from fairmargin.config import Config, load, toml
from fairmargin.data import OWN

# What uses inferred bias labels, where the user has named no method.
METHOD = "fairmargin"


def scores_command(config: Config) -> str:
    """Return the command that makes the scores of a run's data."""
    return shlex.join(["fairmargin", "scores", *_of_data(config)])


def train_command(config: Config, bias: str) -> str:
    """Return the command that trains on these data with inferred bias labels.

    Args:
        config: names the data.
        bias: a value of `data.bias`.
    """
    words = ["fairmargin", "train", *_of_data(config), "--method", METHOD, "--bias", bias]
    return shlex.join(words)


def _of_data(config: Config) -> list[str]:
    """Return the words that name the data: dataset, seed, and options that are not the usual."""
    chosen = config.data
    dataset = str(chosen.root) if chosen.name in OWN else chosen.name
    usual = load(dataset=dataset, method=config.method.name).data.options
    changes = {key: value for key, value in chosen.options.items() if usual.get(key) != value}
    if chosen.root is not None and chosen.name not in OWN:
        changes["root"] = str(chosen.root)
    if chosen.inject is not None:
        changes["inject"] = chosen.inject
    words = ["--dataset", dataset, "--seed", str(config.seed)]
    for key, value in changes.items():
        words += ["--set", f"data.{key}={toml.value(value)}"]
    return words
