"""Bias scores: a model that sees little but the shortcut is trained, and its features are kept for every sample.

config = configuration(dataset="biased-mnist-mini")      # of the capturing model: an ordinary run
found = make(config, Path("runs/scores/biased-mnist-mini/seed-0"))

`data.bias = "scores"` then gives the features to methods, and "clusters" makes bias labels of them (captured.py).
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
from fairmargin.checks import check_choice
from fairmargin.config import Config, load, toml
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

SMALL = 64  # pixels: up to this side one of them tells the colour; larger pictures have textures
LOOKED_AT = 1000  # training samples whose cosines are summarised
TASK = (
    0.5  # accuracy on conflicting training samples from which a capturing model has learnt the task
)


@dataclass(frozen=True)
class Capture:
    """A model made blind to the task, or quick to take the shortcut."""

    sees: str
    network: str | None = None  # the run's own, if None
    method: str = "ce"
    changes: tuple[str, ...] = ()


CAPTURES = {
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
# The capturing model may not see the bias labels either; its probes and neighbours interest nobody.
ALWAYS = ("data.bias=none", 'evaluate.classifiers=["own"]')


def configuration(
    file: Path | None = None,
    *,
    dataset: str | None = None,
    capture: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Of the run that trains the capturing model. `capture` None: by the size of the images."""
    if capture is not None:
        check_choice(capture, "capture", CAPTURES)
    base = load(file, dataset=dataset, method="ce", seed=seed, overrides=overrides)
    chosen = CAPTURES[capture or usual(build.data(base).info.image_shape)]
    # As wide and with the same stride as the network it stands in for, if that is of the same family.
    alike = chosen.network == "simple-conv-1" and base.network.name.startswith("simple-conv")
    shape = {
        key: base.network.options[key]
        for key in ("stride", "widths")
        if alike and key in base.network.options
    }
    changes = [f"network.{key}={toml.value(value)}" for key, value in shape.items()]
    return load(
        file,
        dataset=dataset,
        network=chosen.network,
        method=chosen.method,
        seed=seed,
        overrides=[*ALWAYS, *chosen.changes, *changes, *overrides],
    )


def usual(image_shape: Sequence[int]) -> str:
    """The paper's: SimpleConvNet(1) for digits, BagNet-18 for photographs."""
    return "simple-conv-1" if max(image_shape[1:]) <= SMALL else "bagnet18"


def folder_of(config: Config) -> Path:
    return score_file.locate(None, config.data.name, config.seed).parent


def make(
    config: Config,
    folder: Path,
    *,
    command: Sequence[str] = ("fairmargin.bias.capture",),
    console: Console | None = None,
) -> Captured:
    """Train the capturing model in `folder`, as far as it is not trained yet, and keep what it says of every sample."""
    run(config, folder, command=command, console=console)
    if not distributed.is_first():
        return Captured({}, {})
    data, file = build.data(config), folder / FILE
    if not file.is_file():
        _export(config, data, file)
    found = score_file.read(file)
    if why := score_file.mismatch(found, data, config.seed):
        raise ValueError(
            f"{file} was made when the data were others: {why}. Remove its folder, or choose another --out"
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
    said, accuracy = {}, {}
    for name, split in splits.items():
        found = collect(
            method,
            split,
            data.eval_views,
            batch_size=config.evaluate.batch_size,
            device=device,
            workers=config.train.workers,
        )
        width = len(split), method.encoder.dim, data.info.num_classes
        said[name] = Answers(
            found.features.view(width[:2]), found.logits.view(width[::2]), split.labels.cpu()
        )
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
    score_file.write(file, said, facts)


def _accuracies(said: Answers, split: Split, data: Data) -> dict[str, float]:
    bias = split.bias if data.info.num_biases else None
    return values(answers(said.logits), said.labels, bias, data.info.counts) if len(split) else {}


def cosines(train: Answers, bias: Tensor | None) -> dict[str, dict[str, float | None]]:
    """Of every way to read the scores: quantiles of the cosines of samples of one class; their means where bias is known.

    Only for people to look at: no training reads it.
    """
    index = torch.linspace(0, len(train.labels) - 1, min(LOOKED_AT, len(train.labels))).long()
    y, b = train.labels[index], None if bias is None else bias[index].cpu()
    pairs = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
    return {kind: _summary(unit(x(train, train)[index]), pairs, b) for kind, x in FEATURES.items()}


def _summary(z: Tensor, pairs: Tensor, bias: Tensor | None) -> dict[str, float | None]:
    s = z @ z.T
    mean = lambda mask: float(s[mask].mean()) if bool(mask.any()) else None
    found: dict[str, float | None] = dict.fromkeys(
        ("5 %", "median", "95 %", "same bias", "other bias")
    )
    if bool(pairs.any()):
        ordered = s[pairs].sort().values
        for name, share in (("5 %", 0.05), ("median", 0.5), ("95 %", 0.95)):
            found[name] = float(ordered[round(share * (len(ordered) - 1))])
    if bias is not None:
        known, same = pairs & (bias[:, None] >= 0) & (bias >= 0), bias[:, None] == bias
        found |= {"same bias": mean(known & same), "other bias": mean(known & ~same)}
    return found


def tables(found: Captured) -> list[Table]:
    """What a person should look at before using the scores."""
    accuracy = found.facts["accuracy"]
    names = [
        name
        for name in ("plain", "aligned", "conflicting")
        if any(name in x for x in accuracy.values())
    ]
    right = Table("", *names, title="the capturing model, accuracy in %")
    for split, x in accuracy.items():
        right.add_row(split, *(f"{100 * x[name]:.1f}" if name in x else "–" for name in names))
    heads = list(next(iter(found.facts["cosines"].values())))
    alike = Table("", *heads, title="cosines of training samples of one class")
    for kind, x in found.facts["cosines"].items():
        alike.add_row(kind, *("–" if x[head] is None else f"{x[head]:.2f}" for head in heads))
    return [right, alike]


def doubts(found: Captured) -> list[str]:
    """Signs that the scores are not about a shortcut."""
    train: dict[str, Any] = found.facts["accuracy"]["train"]
    cosine = found.facts["cosines"]["raw"]
    said = []
    if train.get("conflicting", 0.0) > TASK:
        said.append(
            f"the capturing model is right on {train['conflicting']:.0%} of the conflicting training samples: it has learnt "
            "the task too, and its features are no pure bias. Choose a blinder one, or fewer epochs"
        )
    elif "conflicting" not in train and train["plain"] == 1:
        said.append(
            "the capturing model is right on every training sample: either the shortcut is perfect, and no sample "
            "contradicts it, or the model has learnt the task. Choose a blinder one, or fewer epochs"
        )
    if cosine["5 %"] is not None and cosine["5 %"] > 0.9:
        said.append(
            "raw cosines of samples of one class are all near 1, so FairKL would see no conflicting pair; "
            "read the scores with --set data.score_features=centred"
        )
    return said
