"""`fm.audit.dataset`, `fm.audit.run` and `fm.audit.embeddings`: what `fairmargin audit` does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmargin import config as configuration
from fairmargin.audit._dataset import audit_data
from fairmargin.audit._embeddings import audit_arrays, audit_run
from fairmargin.audit.attributes import manifest_columns
from fairmargin.audit.section import Found, Progress, silent
from fairmargin.config import Config, toml
from fairmargin.data.embedded import holds_images
from fairmargin.data.own import FloatViews, from_datasets
from fairmargin.data.split import Data, FileSplit
from fairmargin.data.webdataset import shard_fields, shards
from fairmargin.runs import build


def dataset(
    source: Any,
    *,
    inject: str | None = None,
    settings: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    permutations: int = 999,
    alpha: float = 0.01,
    strength: float = 0.5,
    samples: int = 60_000,
    seed: int = 0,
    leave_out: Sequence[str] = (),
    progress: Progress = silent,
) -> Found:
    """Find which simple attributes of a dataset's training images tell the label too well.

        found = fm.audit.dataset("photos.csv")
        print(found.verdict)
        found.findings[0].attribute, found.findings[0].verdict
        found.save("audit.html")

    Args:
        source: a name from `fm.data.DATASETS`; the path of a table or a folder of images; a
            `Data`; or a torch Dataset of (uint8 image, label[, bias]).
        inject: plant a shortcut first, as a control: KIND:RHO, such as "colour:0.95".
        settings: keys of docs/configuration.md, such as {"data.rho": 0.9}.
        config: a TOML file below these.
        permutations: of the labels, for the p-values; at least 1/alpha.
        alpha: level of the corrected p-values.
        strength: share of the gap between chance and perfect that a shortcut closes.
        samples: how many at most are looked at, drawn at random.
        seed: of everything that is drawn.
        leave_out: "copies" and "problems" are not looked for if they are named here.
        progress: called with what is being done, how much is done, and of how much.
    """
    columns: dict[str, list[str]] = {}
    if isinstance(source, str | Path):
        overrides = [f"{key}={toml.value(value)}" for key, value in (settings or {}).items()]
        file = None if config is None else Path(config)
        chosen = configuration_of(str(source), file, seed, inject, False, overrides, None)
        data = build.data(chosen)
        columns = columns_of(chosen, data)
    else:
        if inject is not None or settings or config is not None:
            raise ValueError(
                "inject, settings and config are for datasets with a name or a path; "
                "leave them out, or see fairmargin.data.inject"
            )
        data = source if isinstance(source, Data) else from_datasets(source, [], [], seed=seed)
    if isinstance(data.eval_views, FloatViews):
        raise ValueError("an audit of a dataset measures uint8 images and these are floats")
    return audit_data(
        data,
        columns=columns,
        permutations=permutations,
        alpha=alpha,
        strong=strength,
        samples=samples,
        seed=seed,
        leave_out=leave_out,
        progress=progress,
    )


def run(
    folder: str | Path,
    *,
    alpha: float = 0.05,
    clusters: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
    dataset: str | None = None,
    trust_code: bool = False,
) -> Found:
    """Find whom a trained model fails, what its embedding is organised by, and weak slices.

        found = fm.audit.run("runs/mine")
        found.verdict, found.findings

    Args:
        folder: of a finished run.
        alpha: probability of reporting any slice when mistakes are random.
        clusters: of each class, where slices are looked for; None chooses.
        seed: of all that is drawn.
        progress: called with what is being done, how much is done, and of how much.
        dataset: import path of the run's dataset, if it has one, to allow importing it.
        trust_code: import whatever code the folder names.
    """
    return audit_run(
        folder,
        alpha=alpha,
        clusters=clusters,
        seed=seed,
        progress=progress,
        dataset=dataset,
        trust_code=trust_code,
    )


def embeddings(
    source: str | Path | Mapping[str, Any],
    *,
    alpha: float = 0.05,
    clusters: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Found:
    """Do the same as `run` for any embeddings and labels.

        found = fm.audit.embeddings({"embeddings": z, "labels": y, "bias": b})

    Args:
        source: an .npz file, or arrays or tensors by name: "embeddings" [N, D] and "labels" [N];
            perhaps "bias", "predicted" or "logits", "class_names", "bias_names", "counts".
        alpha: probability of reporting any slice when mistakes are random.
        clusters: of each class, where slices are looked for; None chooses.
        seed: of all that is drawn.
        progress: called with what is being done, how much is done, and of how much.
    """
    given: Any = source
    if isinstance(source, Mapping):
        given = {key: _array(value) for key, value in source.items()}
    return audit_arrays(given, alpha=alpha, clusters=clusters, seed=seed, progress=progress)


def _array(value: Any) -> Any:
    """Tensors on any device, with or without gradient, as arrays; other values stay."""
    detach = getattr(value, "detach", None)
    return value if detach is None else detach().cpu().numpy()


def configuration_of(
    target: str,
    file: Path | None,
    seed: int,
    inject: str | None,
    cure: bool,
    changes: Sequence[str],
    method: str | None,
) -> Config:
    """Return the configuration of a dataset that is to be audited.

    Args:
        target: name or path of the dataset.
        file: a TOML file below the rest.
        seed: of the dataset.
        inject: shortcut to plant.
        cure: whether methods are trained on it, which needs test samples.
        changes: such as "data.rho=0.9".
        method: that is trained.
    """
    config = configuration.load(
        file, dataset=target, method=method, seed=seed, overrides=changes, first_look=cure
    )
    if config.data.name == "folder":
        # Images stay files, whose sizes and types can be audited too, and nothing is held out for
        # validation. Only a cure needs test samples.
        wanted = {"memory_limit": "0", "valid_fraction": "0"}
        if not cure:
            wanted["test_needed"] = "false"
        missing = [key for key in wanted if key not in config.data.options]
        config = configuration.override(config, [f"data.{key}={wanted[key]}" for key in missing])
    if inject is None:
        return config
    if config.data.inject is not None:
        raise ValueError(
            f"--inject {inject} and data.inject={config.data.inject} would both be planted; "
            "give one"
        )
    return configuration.override(config, [f"data.inject={inject}"])


def columns_of(config: Config, data: Data) -> dict[str, list[str]]:
    """Return the columns of a manifest except path, label and split, for the training samples.

    Args:
        config: of the dataset.
        data: the dataset.
    """
    table, options = config.data.root, config.data.options
    if config.data.name != "folder" or table is None or not isinstance(data.train, FileSplit):
        return {}
    used = [options.get("label_column", "label"), options.get("split_column", "split")]
    used.append(options.get("weight_column"))
    embedded = holds_images(table)
    if embedded and shards(table):
        fields = shard_fields(table, data.train.paths)
        return {name: cells for name, cells in fields.items() if name not in used}
    if embedded or table.is_dir():
        return {}
    path_column = options.get("path_column", "path")
    base = options.get("base", table.parent)
    return manifest_columns(
        table, data.train.paths, base=base, path_column=path_column, leave_out=used
    )
