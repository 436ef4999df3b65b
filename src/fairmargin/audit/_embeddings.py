"""Audit a trained model, or any embeddings: whom it fails, and what its embedding is organised by.

found = audit_run(Path("runs/biased-mnist-mini/ce/seed-0"))
found = audit_arrays({"embeddings": z, "labels": y, "bias": b, "predicted": answers})
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmargin.audit import geometry, judgement, model_page, model_rows
from fairmargin.audit.section import Found, Progress, silent
from fairmargin.audit.slices import Slice, Slices, find_slices
from fairmargin.data.arrays import Arrays, read
from fairmargin.data.hashes import data_hash
from fairmargin.data.own import for_display
from fairmargin.evaluate import jsonable
from fairmargin.runs.record import CONFIG, TEST, RunError, RunRecord

# Samples of a slice that audit.json lists.
LISTED = 16
# Mistakes that audit.json lists; audit.csv has all.
MISTAKES = 1000

# Positions → images [C, H, W] of those at hand.
Pictures = Callable[[list[int]], dict[int, NDArray[np.uint8]]]


def audit_arrays(
    source: Path | str | Mapping[str, Any],
    *,
    alpha: float = 0.05,
    clusters: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Found:
    """Audit embeddings in an .npz file or a dict.

    Args:
        source: "embeddings", "features" or "X" [N, D]; "labels" or "y" [N]; "bias" [N], −1 for
            unknown; "logits" [N, classes] or "predicted" [N]; "class_names"; "bias_names"; "counts"
            [classes, biases] of the training set. All but the first two may be missing. Without
            answers, those of a cross-validated linear probe are judged.
        alpha: probability of reporting any slice when mistakes are random.
        clusters: of each class, where slices are looked for; None chooses.
        seed: of all that is drawn.
        progress: called with what is being done, how much is done, and of how much.
    """
    name = "these embeddings" if isinstance(source, Mapping) else Path(source).name
    arrays = read(source)
    if arrays.split is not None:
        said = "all samples are looked at, whatever their split"
        arrays = replace(arrays, warnings=(*arrays.warnings, said))
    return _audit(arrays, name, {"kind": "arrays"}, None, alpha, clusters, seed, progress)


def audit_run(
    folder: Path | str,
    *,
    alpha: float = 0.05,
    clusters: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
    dataset: str | None = None,
    trust_code: bool = False,
) -> Found:
    """Audit a finished run: its test set as the run recorded it.

    Pictures come from the dataset if it is at hand, else from those the run has kept. A run whose
    dataset is code of somebody's own is refused until you name it again.

    Args:
        folder: the run folder.
        alpha: probability of reporting any slice when mistakes are random.
        clusters: of each class, where slices are looked for; None chooses.
        seed: of all that is drawn.
        progress: called with what is being done, how much is done, and of how much.
        dataset: import path of the run's dataset, if it has one, to allow importing it.
        trust_code: import whatever code the folder names.
    """
    record = RunRecord.read(Path(folder))
    if record.result is None:
        raise RunError(
            f"{folder} is not finished, and an audit looks at the end. "
            f"Continue it: fairmargin train --resume {folder}"
        )
    name_again = _allowed(record, dataset, trust_code)
    given: dict[str, Any] = dict(record.arrays(TEST))
    for key in ("class_names", "bias_names"):
        if record.data.get(key):
            given[key] = np.array(record.data[key])
    if "bias_names" in given:
        given["counts"] = np.array(record.data["counts"])
    else:
        given.pop("bias", None)
    # Logits that are not finite are no answer, which "predicted" cannot say.
    if "logits" in given:
        given.pop("predicted", None)
    method, dataset, run_seed = (record.outcome[key] for key in ("method", "dataset", "seed"))
    facts = {"kind": "run", "method": method, "dataset": dataset, "seed": run_seed}
    name = f"{method} on {dataset}, seed {run_seed}"
    has_pictures = len(record.data.get("image_shape", ())) == 3
    pictures = partial(_pictures, record, name_again) if has_pictures else None
    return _audit(read(given), name, facts, pictures, alpha, clusters, seed, progress)


def _audit(
    arrays: Arrays,
    name: str,
    facts: dict[str, Any],
    pictures: Pictures | None,
    alpha: float,
    clusters: int | None,
    seed: int,
    progress: Progress,
) -> Found:
    predicted, judge = arrays.predicted, "own"
    if predicted is None:
        predicted = judgement.cross_validated(arrays, seed, progress)
        judge = f"linear probe, {judgement.FOLDS}-fold"
    warnings = list(arrays.warnings)
    judged = judgement.measure(arrays, predicted, seed, warnings)
    pairs = readable = None
    if arrays.bias is not None:
        if int((arrays.bias >= 0).sum()) >= 2:
            pairs = geometry.compare_pairs(arrays, seed, progress)
        readable = geometry.read_bias(arrays, seed, progress)
    slices = find_slices(
        arrays.embeddings,
        arrays.labels.numpy(),
        predicted.numpy(),
        alpha=alpha,
        clusters=clusters,
        seed=seed,
        progress=progress,
    )
    if slices.left_out:
        left_out = [arrays.class_names[y] for y in slices.left_out]
        warnings.append(model_page.without_slices(left_out))
    measured = jsonable(
        {
            **facts,
            "n": len(arrays),
            "dimensions": arrays.embeddings.shape[1],
            "class_names": list(arrays.class_names),
            "bias_names": list(arrays.bias_names),
            "classifier": judge,
            **judged,
            "geometry": pairs,
            "bias_readable": readable,
            "slices": _described(slices, arrays, predicted),
            "mistakes": _mistakes(arrays, predicted),
            "warnings": warnings,
        }
    )
    positions = model_page.pictured(measured)
    images = {}
    if pictures is not None and positions:
        progress("fetching pictures", 0, 1)
        images = pictures(positions)
        progress("fetching pictures", 1, 1)
    samples = model_page.Samples(arrays.labels.tolist(), predicted.tolist(), images, arrays.names)
    return Found(
        f"Audit of {name}",
        model_page.verdict(measured),
        measured,
        model_page.sections(measured, samples, [one.members.tolist() for one in slices.found]),
        tuple(warnings),
        model_rows.columns(arrays, predicted, slices, "test" if facts["kind"] == "run" else None),
    )


def _described(slices: Slices, arrays: Arrays, predicted: Tensor) -> dict[str, Any]:
    """Return the slices for audit.json."""
    entries = []
    for one in slices.found:
        members = torch.from_numpy(one.members)
        bias = None
        if arrays.bias is not None:
            bias = _most_frequent(arrays.bias[members], arrays.bias_names)
        entries.append(
            {
                "class": one.label,
                "n": len(one.members),
                "discovery": asdict(one.discovery),
                "confirmation": asdict(one.confirmation),
                "rest_of_class": asdict(one.rest),
                "p": one.p,
                "p_corrected": one.corrected,
                "answers": _most_frequent(predicted[members], arrays.class_names),
                "bias": bias,
                "central": one.members[:LISTED].tolist(),
                "mistakes": one.mistakes[:LISTED].tolist(),
            }
            | _names(arrays, one)
        )
    return {
        "found": entries,
        "tested": slices.tested,
        "alpha": slices.alpha,
        "clusters": {arrays.class_names[y]: k for y, k in slices.clusters.items()},
        "left_out": [arrays.class_names[y] for y in slices.left_out],
    }


def _names(arrays: Arrays, one: Slice) -> dict[str, Any]:
    """Return the names of all pictures of a slice, if they have some."""
    if arrays.names is None:
        return {}
    names = arrays.names
    return {
        "names": [names[i] for i in one.members.tolist()],
        "mistake_names": [names[i] for i in one.mistakes.tolist()],
    }


def _mistakes(arrays: Arrays, predicted: Tensor) -> list[dict[str, Any]]:
    """Return the samples that the model is wrong about, the most confident mistakes first."""
    wrong = np.flatnonzero((predicted != arrays.labels).numpy())
    sure = arrays.confidence
    if sure is not None:
        wrong = wrong[np.argsort(-np.nan_to_num(sure[wrong]), kind="stable")]
    listed = []
    for i in wrong[:MISTAKES].tolist():
        answer = int(predicted[i])
        entry = {
            "index": i,
            "label": arrays.class_names[int(arrays.labels[i])],
            "predicted": arrays.class_names[answer] if answer >= 0 else None,
        }
        if arrays.names is not None:
            entry["name"] = arrays.names[i]
        if sure is not None:
            entry["confidence"] = float(sure[i])
        listed.append(entry)
    return listed


def _most_frequent(values: Tensor, names: tuple[str, ...], most: int = 3) -> list[dict[str, Any]]:
    """Return the most frequent values and their shares, without "no answer" and unknown bias."""
    n = torch.bincount(values[values >= 0], minlength=len(names))
    top = n.argsort(descending=True, stable=True)[:most].tolist()
    return [{"name": names[k], "share": float(n[k]) / len(values)} for k in top if n[k]]


def _allowed(record: RunRecord, dataset: str | None, trust_code: bool) -> str | None:
    """Return the import path of a run's dataset; refuse one that the user has not named."""
    from fairmargin.config.code import is_import_path, refusal

    name = record.config.get("data", {}).get("name")
    if dataset is not None and dataset != name:
        raise ValueError(
            f"this run's dataset is {name}, not {dataset}; name that one, or leave it out"
        )
    if not is_import_path(name):
        return None
    if dataset is None and not trust_code:
        raise refusal("data", name)
    return str(name)


def _pictures(
    record: RunRecord, trusted: str | None, positions: list[int]
) -> dict[int, NDArray[np.uint8]]:
    """Return test images [C, H, W] by position.

    They come from the dataset if it is at hand and still the same, else from those the run kept.

    Args:
        record: of the run.
        trusted: import path of the dataset, which the user named.
        positions: in the test set.
    """
    from fairmargin.config import load_resolved
    from fairmargin.config.code import named_again
    from fairmargin.runs import build

    try:
        config = named_again(load_resolved(record.path / CONFIG), dataset=trusted)
        test = build.data(config).test
        if data_hash(test) == record.data_hashes.get("test"):
            images = for_display(test.images(torch.tensor(positions))).numpy()
            return dict(zip(positions, images, strict=True))
    except (OSError, ValueError):
        pass
    kept = record.examples
    if not kept:
        return {}
    wanted = set(positions)
    found = zip(kept["index"].tolist(), kept["images"], strict=True)
    return {i: image for i, image in found if i in wanted}
