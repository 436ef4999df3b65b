"""`fairmargin evaluate`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import Changes, DatasetAgain, NetworkAgain, TrustCode
from fairmargin.cli.tables import accuracy_table
from fairmargin.runtime.terminal import Console
from fairmargin.runtime.whole import write_text

if TYPE_CHECKING:
    from torch import Tensor

    from fairmargin.config import Config
    from fairmargin.data import Data


def _stage(what: str, done: int, of: int) -> None:
    """Print a line at each tenth of a long evaluation."""
    from fairmargin.runs.progress import at_a_tenth

    if at_a_tenth(done, of):
        typer.echo(f"{what}: {done / of:.0%}", err=True)


def evaluate(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    weights: Annotated[
        str, typer.Option(help="Which weights: last, or best on validation.")
    ] = "last",
    changes: Changes = None,
    other: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Evaluate on this table, image folder or .npz instead; its test rows, or all.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write everything measured to this JSON file.")
    ] = None,
    network: NetworkAgain = None,
    dataset: DatasetAgain = None,
    trust_code: TrustCode = False,
) -> None:
    """Evaluate a run's saved weights again, on its own data or on changed data.

    Change the data with --set, such as --set data.test_rho=0.5, or give other data with --data.
    """
    import json

    from fairmargin import config as configuration
    from fairmargin.bias.visible import recorded_groups
    from fairmargin.checks import check_choice
    from fairmargin.config.code import named_again
    from fairmargin.evaluate import evaluate as measure
    from fairmargin.runs import build
    from fairmargin.runs.integrity import check_file
    from fairmargin.runs.network import recorded_network
    from fairmargin.runs.record import BEST, BIAS, CONFIG, WEIGHTS, RunError, RunRecord
    from fairmargin.runtime.files import load_weights

    with exit_on_user_error():
        check_choice(weights, "weights", ("last", "best"))
        before = named_again(
            configuration.load_resolved(folder / CONFIG),
            network=network,
            dataset=dataset,
            trust_code=trust_code,
        )
        config = configuration.override(before, changes or ())
        _same_network(before, config)
        if other is not None:
            _evaluate_on(folder, weights, config, other, changes or (), out)
            return
        recorded = recorded_network(config, folder)
        data = build.data(config, recorded)
        record = RunRecord.read(folder)
        trained = record.data
        if "class_names" not in trained:
            raise RunError(f"{folder} has no data.json, which names its classes; copy all of it")
        warned: list[str] = []
        others = _other_data(record.data_hashes, data.hashes)
        if not others:
            labels = record.arrays(BIAS) if record.has_arrays(BIAS) else {}
            data = recorded_groups(data, trained, labels)
        elif record.data_hashes and not _asked_for_other_data(before, config):
            warned.append(
                f"these are not the data that {folder} was trained and tested on: "
                f"{' and '.join(others)} have changed since, so the numbers may be others"
            )
            typer.echo(f"warning: {warned[0]}", err=True)
        _same_classes(folder, trained["class_names"], data.info.class_names)
        method = build.method(config, data, trained=trained, network=recorded)
        file = folder / (WEIGHTS if weights == "last" else BEST)
        if not file.is_file():
            raise RunError(f"{folder} has no {file.name}; copy the whole folder")
        check_file(file, record.result)
        try:
            method.load_state_dict(load_weights(file)[0])
        except RuntimeError as error:
            raise RunError(
                f"{file} does not hold the weights of the network that {CONFIG} describes: "
                "one of the two has changed. Copy the run folder again"
            ) from error
        device = build.device(config.train.device)
        found = measure(
            method.to(device),
            data,
            classifiers=config.evaluate.classifiers,
            device=device,
            batch_size=config.evaluate.batch_size,
            workers=config.train.workers,
            resamples=config.evaluate.resamples,
            linear=build.linear(config),
            progress=_stage,
            report=config.evaluate.report_classifier,
            probe_weights=_probe_weights(config, data, method.sampler),
        )
        for title, sets in {"test": found.test, **found.extra_tests}.items():
            heading = f"{title}: accuracy in percent, with 95 % intervals"
            Console().print(accuracy_table(sets, heading))
        warnings = [warning for judged in found.test.values() for warning in judged["warnings"]]
        for warning in dict.fromkeys(warnings):
            typer.echo(f"warning: {warning}")
        if out is not None:
            everything = {
                "warnings": warned,
                "test": found.test,
                "extra_tests": found.extra_tests,
                "similarity": found.similarity,
                "ordering": found.ordering,
            }
            write_text(out, json.dumps(everything, indent=1))


def _probe_weights(config: "Config", data: "Data", sampler: str) -> "Tensor | None":
    """The weights that the run gave its fitted classifier; see `build.probe_weights`."""
    from fairmargin.bias.visible import visible_bias
    from fairmargin.data.samplers import GroupBalanced

    drawn = sampler if config.data.sampler == "auto" else config.data.sampler
    if config.evaluate.report_classifier != "fitted" or drawn != "group-balanced":
        return None
    train = visible_bias(config, data).splits["train"]
    return None if train.bias is None else GroupBalanced(train.labels, train.bias).weights


def _evaluate_on(
    folder: Path,
    weights: str,
    config: "Config",
    other: Path,
    changes: Sequence[str],
    out: Path | None,
) -> None:
    """Evaluate the run's own classifier on other data, with the run's preprocessing."""
    import json

    from fairmargin.cli.tables import group_table
    from fairmargin.export.model import info_of, load, which_weights
    from fairmargin.export.other_data import evaluate_on
    from fairmargin.runs import build
    from fairmargin.runs.record import RunRecord

    model = load(folder, weights=which_weights(weights), device=build.device(config.train.device))
    options = dict(config.data.options) if config.data.name == "folder" else {}
    # Paths start from the new table's own folder, not from that of the training data.
    if not any(change.startswith("data.base=") for change in changes):
        options.pop("base", None)
    found = evaluate_on(
        model,
        info_of(RunRecord.read(folder)),
        other,
        options=options,
        batch_size=config.evaluate.batch_size,
        workers=config.train.workers,
        resamples=config.evaluate.resamples,
    )
    typer.echo(f"{other}: {found.samples:,} samples")
    heading = "accuracy in percent, with 95 % intervals"
    Console().print(accuracy_table({"own": found.judged}, heading))
    if found.judged["groups"] is not None:
        names = found.info.class_names, found.info.bias_names
        Console().print(group_table(found.judged["groups"], *names))
    for warning in [*found.notes, *found.judged["warnings"]]:
        typer.echo(f"warning: {warning}")
    if out is not None:
        everything = {
            "data": str(other),
            "samples": found.samples,
            "class_names": found.info.class_names,
            "bias_names": found.info.bias_names,
            "test": {"own": found.judged},
            "notes": found.notes,
        }
        write_text(out, json.dumps(everything, indent=1))


def _same_network(before: "Config", config: "Config") -> None:
    """Refuse changes to the network or the training; only data and evaluation may change."""
    from fairmargin.config import difference

    free = ("data.", "evaluate.", "train.device", "train.workers", "seed ")
    other = [change for change in difference(before, config) if not change.startswith(free)]
    if other:
        raise ValueError(
            f"the weights were trained without it: {other[0]}; evaluate takes data.… and evaluate.…"
        )


def _other_data(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs from the data of a run, in words; runs of older versions know no images."""
    words = {name: f"the {name} samples" for name in ("train", "valid", "test")}
    words["images"] = "the image files"
    differing = [name for name in now if before.get(name) != now[name]]
    return [words[name] for name in differing if name != "images" or name in before]


def _asked_for_other_data(before: "Config", config: "Config") -> bool:
    """True if --set changes what the samples are."""
    from fairmargin.config import difference

    return any(change.startswith(("data.", "seed ")) for change in difference(before, config))


def _same_classes(folder: Path, trained: Sequence[str], class_names: Sequence[str]) -> None:
    if list(trained) != list(class_names):
        raise ValueError(
            f"{folder} was trained to tell {', '.join(trained)}, "
            f"and these data have the classes {', '.join(class_names)}; evaluate it on its own"
        )
