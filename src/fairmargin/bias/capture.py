"""Bias scores: train a model that sees little but the shortcut, and keep its features.

config = configuration(dataset="biased-mnist-mini")      # of the capturing model: an ordinary run
found = make(config, Path("runs/scores/biased-mnist-mini/seed-0"))

`data.bias = "scores"` then gives the features to methods, and "clusters" makes bias labels of them
(visible.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fairmargin.bias import score_file
from fairmargin.bias.score_file import FEATURES, FILE, Answers, Captured
from fairmargin.bias.usefulness import usefulness
from fairmargin.checks import check_choice
from fairmargin.config import Config, dataset_name, load, toml
from fairmargin.data import Data, Split
from fairmargin.data.split import as_evaluated
from fairmargin.evaluate import answers, collect
from fairmargin.evaluate.accuracy import values
from fairmargin.run import run
from fairmargin.runs import build
from fairmargin.runs.folder import RunFolder
from fairmargin.runtime import distributed
from fairmargin.runtime.files import load_weights
from fairmargin.vectors import unit
from fairmargin.version import __version__

# Pixels: up to this side the shortcut is taken to be a colour or its place, in larger pictures a
# texture.
SMALL = 64
# Training samples whose cosines are summarized.
LOOKED_AT = 1000
# Accuracy on conflicting training samples above which a capturing model has learnt the task.
TASK = 0.5
# Cosine above which nearly all pairs of a class look alike.
ALIKE = 0.9


@dataclass(frozen=True)
class Capture:
    """A model made blind to the task, or quick to take the shortcut.

    Args:
        sees: what the model sees, in a few words.
        network: the run's own if None.
        changes: overrides of its configuration.
    """

    sees: str
    network: str | None = None
    method: str = "ce"
    changes: tuple[str, ...] = ()


CAPTURES = {
    "colours-and-places": Capture(
        "one pixel at a time, and where in the picture: colours and places, no shapes",
        network="simple-conv-1",
        changes=("network.places=true",),
    ),
    "simple-conv-1": Capture("one pixel at a time: colours, no shapes", network="simple-conv-1"),
    # Weight decay 0 as in the paper's setup for 9-Class ImageNet.
    "bagnet18": Capture(
        "patches of 5×5 pixels: textures, no shapes",
        network="bagnet18",
        changes=("optimizer.weight_decay=0.0",),
    ),
    "early-stopped": Capture(
        "what the run's own network learns in one epoch", changes=("train.epochs=1",)
    ),
    "gce": Capture(
        "what the run's own network finds easy (generalized cross-entropy)", method="gce"
    ),
}
# The capturing model may not see the bias labels either, and needs no probes or neighbours.
ALWAYS = ("data.bias=none", 'evaluate.classifiers=["own"]')


def configuration(
    file: Path | None = None,
    *,
    dataset: str | None = None,
    capture: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Return the configuration of the run that trains the capturing model.

    Other arguments as in `config.load`.

    Args:
        capture: one of CAPTURES; by the size of the images if None.
    """
    if capture is not None:
        check_choice(capture, "capture", CAPTURES)
    base = load(file, dataset=dataset, method="ce", seed=seed, overrides=overrides)
    if base.data.name == "embeddings":
        raise ValueError(
            "a bias-capturing model sees small patches of an image and embeddings have none; "
            'give the .npz file an array "bias", or train with --bias none'
        )
    chosen = CAPTURES[capture or usual(build.data(base).info.image_shape)]
    changes = []
    # As wide and with the same stride as the run's network, if that is of the same family.
    if chosen.network == "simple-conv-1" and base.network.name.startswith("simple-conv"):
        own = base.network.options
        shape = [key for key in ("stride", "widths") if key in own]
        changes = [f"network.{key}={toml.value(own[key])}" for key in shape]
    return load(
        file,
        dataset=dataset,
        network=chosen.network,
        method=chosen.method,
        seed=seed,
        overrides=[*ALWAYS, *chosen.changes, *changes, *overrides],
    )


def usual(image_shape: Sequence[int]) -> str:
    """Return what captures by default: colours and their places, or textures of photographs.

    The paper's model for digits, simple-conv-1, sees colours alone.

    Args:
        image_shape: channels, height and width.
    """
    return "colours-and-places" if max(image_shape[1:]) <= SMALL else "bagnet18"


def folder_of(config: Config) -> Path:
    """Return the folder in which runs look for these scores by default."""
    return score_file.locate(None, dataset_name(config), config.seed).parent


def make(
    config: Config,
    folder: Path,
    *,
    command: Sequence[str] = ("fairmargin.bias.capture",),
    console: Console | None = None,
) -> Captured:
    """Train the capturing model in `folder`, and write what it says of every sample.

    Only what is missing is done. Processes other than the first return nothing.

    Args:
        config: as `configuration` returns it.
        command: recorded in the run folder.
    """
    run(config, folder, command=command, console=console)
    if not distributed.is_first():
        return Captured({}, {})
    data = build.data(config)
    file = folder / FILE
    if not file.is_file():
        _export(config, data, file)
    found = score_file.read(file)
    if why := score_file.mismatch(found, data, config.seed):
        raise ValueError(
            f"{file} was made from other data: {why}. Remove its folder, or choose another --out"
        )
    return found


def _export(config: Config, data: Data, file: Path) -> None:
    method = build.method(config, data)
    method.load_state_dict(load_weights(RunFolder(file.parent).weights)[0])
    device = build.device(config.train.device)
    method = method.to(device)
    splits: dict[str, Split] = {
        "train": as_evaluated(data.train),
        "valid": data.valid,
        "test": data.test,
    }
    said: dict[str, Answers] = {}
    accuracy = {}
    for name, split in splits.items():
        found = collect(
            method,
            split,
            data.eval_views,
            batch_size=config.evaluate.batch_size,
            device=device,
            workers=config.train.workers,
        )
        # An empty split has no row to take widths from.
        width = found.features.shape[1] if len(split) else said["train"].features.shape[1]
        features = found.features.view(len(split), width)
        logits = found.logits.view(len(split), data.info.num_classes)
        said[name] = Answers(features, logits, split.labels.cpu())
        accuracy[name] = _accuracies(said[name], split, data)
    facts = {
        "fairmargin": __version__,
        "dataset": data.info.name,
        "options": toml.document({"data": config.data.options}) if config.data.options else "",
        "seed": config.seed,
        "capture": {
            "network": config.network.name,
            "method": config.method.name,
            "epochs": config.train.epochs,
        },
        "hashes": data.hashes,
        "accuracy": accuracy,
        "cosines": cosines(said["train"], data.train.bias),
    }
    facts |= usefulness(Captured(said, facts), config, data)
    score_file.write(file, said, facts)


def _accuracies(said: Answers, split: Split, data: Data) -> dict[str, float]:
    bias = split.bias if data.info.num_biases else None
    if not len(split):
        return {}
    return values(answers(said.logits), said.labels, bias, data.info.counts)


def cosines(train: Answers, bias: Tensor | None) -> dict[str, dict[str, float | None]]:
    """Summarize the cosines of samples of one class, for every way to read the scores.

    The summary holds quantiles, and means where the bias is known. It is only for people to look
    at: no training reads it.

    Args:
        bias: of the training samples, [N]; None if unknown.
    """
    n = len(train.labels)
    index = torch.linspace(0, n - 1, min(LOOKED_AT, n)).long()
    y = train.labels[index]
    b = None if bias is None else bias[index].cpu()
    pairs = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
    summaries = {}
    for kind, read in FEATURES.items():
        summaries[str(kind)] = _summary(unit(read(train, train)[index]), pairs, b)
    return summaries


def _summary(z: Tensor, pairs: Tensor, bias: Tensor | None) -> dict[str, float | None]:
    s = z @ z.T
    heads = ("5 %", "median", "95 %", "same bias", "other bias")
    found: dict[str, float | None] = dict.fromkeys(heads)
    if bool(pairs.any()):
        ordered = s[pairs].sort().values
        for name, share in (("5 %", 0.05), ("median", 0.5), ("95 %", 0.95)):
            found[name] = float(ordered[round(share * (len(ordered) - 1))])
    if bias is not None:
        known = pairs & (bias[:, None] >= 0) & (bias >= 0)
        same = bias[:, None] == bias
        found["same bias"] = _mean(s[known & same])
        found["other bias"] = _mean(s[known & ~same])
    return found


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def tables(found: Captured) -> list[Table]:
    """Return the tables that a person should look at before using the scores.

    Args:
        found: what `make` returned.
    """
    accuracy = found.facts["accuracy"]
    present = set().union(*accuracy.values())
    names = [name for name in ("plain", "aligned", "conflicting") if name in present]
    right = Table("", *names, title="the capturing model, accuracy in %")
    for split, accuracies in accuracy.items():
        percent = {name: 100 * value for name, value in accuracies.items()}
        right.add_row(split, *(_cell(percent.get(name), 1) for name in names))
    heads = list(next(iter(found.facts["cosines"].values())))
    alike = Table("", *heads, title="cosines of training samples of one class")
    for kind, cosine in found.facts["cosines"].items():
        alike.add_row(kind, *(_cell(cosine[head], 2) for head in heads))
    return [right, alike]


def _cell(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def doubts(found: Captured) -> list[str]:
    """Return signs that the scores are not about a shortcut, one sentence each.

    Args:
        found: what `make` returned.
    """
    train: dict[str, Any] = found.facts["accuracy"]["train"]
    cosine = found.facts["cosines"]["raw"]
    signs = list(found.facts.get("useless", ()))
    if train.get("conflicting", 0.0) > TASK:
        signs.append(
            f"the capturing model is right on {train['conflicting']:.0%} of the conflicting "
            "training samples: it has learnt the task too, and its features are not bias alone. "
            "Choose a model that sees less, or fewer epochs"
        )
    elif "conflicting" not in train and train["plain"] == 1:
        signs.append(
            "the capturing model is right on every training sample: either the shortcut is "
            "perfect, and no sample contradicts it, or the model has learnt the task. "
            "Choose a model that sees less, or fewer epochs"
        )
    if cosine["5 %"] is not None and cosine["5 %"] > ALIKE:
        signs.append(
            "raw cosines of samples of one class are all near 1, so FairKL would see no "
            "conflicting pair; read the scores with --set data.score_features=centred"
        )
    return signs
