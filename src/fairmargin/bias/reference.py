"""Bias labels from a reference model that is trained first: `--bias jtt|eiil|george|spare|xrm`.

The reference is an ordinary run with the data, network, optimizer and batches of the run that asks,
in runs/references/DATASET/seed-SEED/…, where the next run finds it. It sees training samples only,
and no bias label. Its score file is that of `fairmargin scores`.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fairmargin.bias import capture, published
from fairmargin.bias.inferred import Inferred, Told
from fairmargin.bias.published import clusters_by_silhouette
from fairmargin.bias.score_file import READ, Captured
from fairmargin.bias.usefulness import best_of, complaints
from fairmargin.config import Config, MethodConfig, dataset_name, settings_of
from fairmargin.data import Data
from fairmargin.methods.xrm import XRMTwins
from fairmargin.runs import build
from fairmargin.runs.folder import Locked, RunFolder
from fairmargin.runs.record import RunRecord
from fairmargin.runtime import distributed
from fairmargin.runtime.files import load_weights
from fairmargin.runtime.signals import Interrupted
from fairmargin.runtime.terminal import Console

FOLDER = Path("runs") / "references"
# Seconds between looks at a reference that another process is training.
PATIENCE = 1.0
# Group of "train" and "valid", and what to say about them.
Found = tuple[dict[str, Tensor], str]


@dataclass(frozen=True)
class Reference:
    """One published way to find groups with a reference model.

    Args:
        title: what the groups are, for people.
        derive: from the configuration, the reference's folder and what it says, to groups.
        names: of the groups; empty: clusters, numbered.
        method: that the reference is trained with.
        epochs: of the reference by default; None: as many as the run has.
    """

    title: str
    derive: Callable[[Config, Path, Captured], Found]
    names: tuple[str, ...] = ()
    method: str = "ce"
    epochs: int | None = None


def infer(config: Config, data: Data, name: str) -> Inferred:
    """Train the reference model if it is not there, and return groups of every sample.

    Args:
        config: of the run that asks.
        data: its dataset; bias labels are not looked at.
        name: one of REFERENCES.
    """
    reference = REFERENCES[name]
    chosen = configuration(config, reference)
    folder = folder_of(chosen)
    captured = _made(chosen, folder, f"--bias {name}")
    inferred = None
    if distributed.is_first():
        inferred = _inferred(chosen, folder, captured, name)
    answer: Inferred = distributed.from_first_rank(inferred)
    return answer


def proxy_answers(config: Config) -> Tensor:
    """Return what uLA's proxy network calls each validation sample, [N].

    Tsirigotis et al. (NeurIPS 2023) take these answers for the bias, and choose by the accuracy in
    the mean over the groups (label, answer).
    Note: their proxy is a linear classifier on features that were learned without labels; this one
    is the reference model of `--bias jtt`.

    Args:
        config: of the run that asks.
    """
    chosen = configuration(config, REFERENCES["jtt"])
    captured = _made(chosen, folder_of(chosen), "evaluate.select=ula")
    said = captured.splits["valid"].logits.argmax(1) if distributed.is_first() else None
    answer: Tensor = distributed.from_first_rank(said)
    return answer


def configuration(config: Config, reference: Reference) -> Config:
    """Return the configuration of the reference: the run's, with another method and length.

    Args:
        config: of the run that asks.
        reference: what the reference is for.
    """
    epochs = config.data.reference_epochs or reference.epochs or config.train.epochs
    hidden = {"bias": "none", "sampler": "shuffled", "scores": None, "reference_epochs": None}
    cheap = {"every": 0, "classifiers": ("own",), "select": "plain", "report": "last"}
    cheap |= {"report_classifier": "online", "similarities": False, "resamples": 10}
    changes = {
        "data": config.data.model_copy(update=hidden),
        "method": MethodConfig(name=reference.method),
        "players": {},
        "train": config.train.model_copy(update={"epochs": epochs, "steps": None, "trackers": ()}),
        "evaluate": config.evaluate.model_copy(update=cheap),
    }
    return config.model_copy(update=changes)


def folder_of(chosen: Config) -> Path:
    """Return the folder of a reference: equal settings share it, others have another.

    Args:
        chosen: of `configuration`.
    """
    settings = settings_of(chosen).items()
    told = sorted((key, repr(value)) for key, value in settings if key not in build.HARMLESS)
    digest = hashlib.sha256(repr(told).encode()).hexdigest()[:10]
    dataset = dataset_name(chosen).replace(":", "-").replace("/", "-")
    name = f"{chosen.method.name}-{chosen.train.epochs}-{digest}"
    return FOLDER / dataset / f"seed-{chosen.seed}" / name


def _made(chosen: Config, folder: Path, asker: str) -> Captured:
    """Train the reference, or wait for the process that does."""
    if distributed.is_first() and not RunFolder(folder).finished:
        epochs = _epochs(chosen)
        Console(stderr=True, soft_wrap=True).print(
            f"bias: {asker} trains a reference model first, {chosen.method.name} for "
            f"{epochs}, in {folder}",
            highlight=False,
        )
    # Only a live panel is worth seeing; what the run says at its end is about another model.
    console = None if Console().is_terminal else Console(quiet=True)
    command = ("fairmargin", *asker.split())
    while True:
        try:
            return capture.make(chosen, folder, command=command, console=console)
        except Locked:
            time.sleep(PATIENCE)
        except Interrupted as error:
            raise Interrupted(
                f"stopped while the reference model of {asker} was training, and saved; "
                "give the same command again to continue",
                error.number,
            ) from error


def _epochs(chosen: Config) -> str:
    number = chosen.train.epochs
    return "1 epoch" if number == 1 else f"{number} epochs"


def _inferred(chosen: Config, folder: Path, captured: Captured, name: str) -> Inferred:
    reference = REFERENCES[name]
    groups, remark = reference.derive(chosen, folder, captured)
    if int(groups["train"].max()) == 0:
        raise ValueError(
            f"--bias {name} finds one group only: after {_epochs(chosen)} the reference "
            "model sets no training sample apart. Train it for fewer epochs with --set "
            "data.reference_epochs=…, or take another --bias (fairmargin list biases)"
        )
    number = 1 + max(int(group.max()) for group in groups.values() if len(group))
    names = reference.names or tuple(f"cluster {k}" for k in range(number))
    seconds = RunRecord.read(folder).outcome["seconds"]
    title = f"{reference.title} after {_epochs(chosen)} ({seconds:.0f} s of training{remark})"
    said = captured.facts["told"]
    measured = Told(said["accuracy"], said["classes"], said["samples"], said["of"])
    warnings = complaints(
        measured, best_of(captured.facts), chosen, model="the reference model", made="groups"
    )
    return Inferred(title, names, groups, told=measured, warnings=tuple(warnings))


def _jtt(config: Config, folder: Path, captured: Captured) -> Found:
    return {
        name: published.error_set(captured.splits[name].logits, captured.splits[name].labels)
        for name in READ
    }, ""


def _eiil(config: Config, folder: Path, captured: Captured) -> Found:
    train, valid = (captured.splits[name] for name in READ)
    groups = published.environments(train.logits, train.labels, seed=config.seed)
    g, others = (published.slopes(x.logits, x.labels) for x in (train, valid))
    return {"train": groups, "valid": published.environments_like(groups, g, others)}, ""


def _george(config: Config, folder: Path, captured: Captured) -> Found:
    features = {name: captured.splits[name].features for name in READ}
    return _clustered(config, captured, features, each_cluster=True)


def _spare(config: Config, folder: Path, captured: Captured) -> Found:
    outputs = {name: captured.splits[name].logits.softmax(1) for name in READ}
    return _clustered(config, captured, outputs, each_cluster=False)


def _clustered(
    config: Config, captured: Captured, features: dict[str, Tensor], *, each_cluster: bool
) -> Found:
    labels = {name: captured.splits[name].labels for name in READ}
    number = config.data.clusters
    groups, silhouette = clusters_by_silhouette(
        features, labels, seed=config.seed, number=number, each_cluster=each_cluster
    )
    return groups, f"; silhouette {silhouette:.2f}"


def _xrm(config: Config, folder: Path, captured: Captured) -> Found:
    method = build.method(config, build.data(config))
    method.load_state_dict(load_weights(RunFolder(folder).weights)[0])
    assert isinstance(method, XRMTwins)
    groups = {}
    with torch.inference_mode():
        for name in READ:
            said = captured.splits[name]
            seen = method.in_first if name == "train" else None
            twins = method.twins(said.features)
            groups[name] = published.cross_mistakes(twins, said.labels, seen).clone()
    share = float((method.flipped >= 0).double().mean())
    return groups, f"; {100 * share:.0f} % of the labels were flipped at least once"


REFERENCES: dict[str, Reference] = {
    "jtt": Reference("JTT's error set of ce", _jtt, ("right", "wrong"), epochs=1),
    "eiil": Reference(
        "EIIL's environments of ce", _eiil, ("environment 0", "environment 1"), epochs=1
    ),
    "george": Reference("GEORGE's clusters of the features of ce", _george),
    "spare": Reference("SPARE's clusters of the outputs of ce", _spare, epochs=1),
    "xrm": Reference("XRM's cross-mistakes of twins", _xrm, ("right", "wrong"), "xrm-twins"),
}
