"""Training from Python: what `fairmargin train` does, with the same folder and the same result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from fairmargin import config as configuration
from fairmargin.config import Config, toml
from fairmargin.config.code import allowed, named_again, named_part
from fairmargin.data.views import Step
from fairmargin.export.audits import Named
from fairmargin.export.card import model_card
from fairmargin.export.model import Model, load
from fairmargin.report import write_report
from fairmargin.run import run as run_config
from fairmargin.runs.found_bias import with_found_bias
from fairmargin.runs.given import OwnParts
from fairmargin.runs.own import GivenDatasets
from fairmargin.runs.record import RunRecord
from fairmargin.runtime import terminal
from fairmargin.runtime.whole import write_bytes
from fairmargin.sweep.compare import default_out, folder_of


@dataclass(frozen=True)
class TrainedRun:
    """A finished run: its folder, its accuracies, its model."""

    path: Path
    record: RunRecord
    # Of the user's own, for `model`.
    encoder: Any = field(default=None, repr=False)

    @property
    def accuracy(self) -> dict[str, float]:
        """Accuracies on the test set by name, of the classifier that the run reports."""
        result = self.record.outcome
        judged = result["test"][result["headline"]["classifier"]]
        return {name: float(value["value"]) for name, value in judged["accuracy"].items()}

    @cached_property
    def model(self) -> Model:
        """The trained model, with its preprocessing and class names; see `fairmargin.load`."""
        return load(self.path, encoder=self.encoder)

    def table(self) -> str:
        """Accuracies in percent as a Markdown table, a column for each classifier."""
        judged = self.record.outcome["test"]
        lines = ["| accuracy | " + " | ".join(judged) + " |", "|---" * (1 + len(judged)) + "|"]
        for name in self.accuracy:
            values = [one["accuracy"][name] for one in judged.values()]
            cells = [
                f"{100 * x['value']:.1f} ({100 * x['low']:.1f} to {100 * x['high']:.1f})"
                for x in values
            ]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def report(self, file: str | Path = "report.html") -> Path:
        """Write one self-contained page about the run and return its path."""
        return write_report([self.path], Path(file))

    def card(
        self, file: str | Path = "README.md", *, name: str | None = None, audit: Named = ()
    ) -> Path:
        """Write a model card in the format of the Hugging Face Hub and return its path.

        Args:
            file: to write.
            name: of the model; made of method and dataset if not given.
            audit: audit.json of the run or its data, whose findings go into the card; by default
                those that `fairmargin audit` wrote.
        """
        text = model_card(self.path, name=name, audit=audit)
        file = Path(file)
        write_bytes(file, text.encode("utf-8"))
        return file

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return f"**{self.record.method}** on {self.record.dataset}: `{self.path}`\n\n{self.table()}"


def train(
    *,
    dataset: str | Path | None = None,
    method: str | None = None,
    network: str | None = None,
    bias: str | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    settings: Mapping[str, Any] | None = None,
    config: str | Path | Config | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
    train: Any = None,
    valid: Any = None,
    test: Any = None,
    encoder: Any = None,
    class_names: Sequence[str] | None = None,
    bias_names: Sequence[str] | None = None,
    augment: Sequence[Step] | str | None = None,
    trust_code: bool = False,
) -> TrainedRun:
    """Train one method on one dataset, evaluate it, and record everything in a folder.

        run = fm.train(dataset="photos.csv", method="eps-supinfonce+fairkl", epochs=20)
        run.accuracy["worst-group"], run.table(), run.report("report.html")
        run.model.predict(["a.jpg"])

        fm.train(train=my_dataset, test=my_test, encoder=my_module, method="ce+fairkl", epochs=20)

    The same call again continues an interrupted run, and only reads a finished one. Settings and
    results are those of `fairmargin train` with the same words.

    Args:
        dataset: a name from `fm.data.DATASETS`, or the path of a table or folder of images.
        method: a name from `fm.methods.METHODS`; by default "fairmargin", which uses what is known
            of the bias. For a table or folder of images, what that is gets printed.
        network: a name from `fm.networks.ENCODERS`, or "hf:NAME", "timm:NAME", "torchvision:NAME";
            the dataset's preset by default.
        bias: what methods see of the bias: "labels", "none", "scores", "clusters",
            "audit:ATTRIBUTE", "jtt", "eiil", "george", "spare", "xrm" or "auto"; see
            docs/scores.md.
        seed: random seed for data, weights and batches.
        epochs: passes over the training set.
        settings: further keys of docs/configuration.md, such as {"train.batch_size": 64}.
        config: a TOML file below all of these, or a whole `Config`, which takes no others.
        out: run folder; runs/DATASET/METHOD/seed-SEED by default.
        console: where progress is shown; the terminal or the notebook by default.
        train: your own training set instead of `dataset`: a torch Dataset, or anything with a
            length, of (image, label) or (image, label, bias); see `data.own.from_datasets`.
        valid: your validation set; by default a tenth of every (label, bias) cell of `train`.
        test: your test set.
        encoder: your own network instead of `network`: a module from images to features [N, D], a
            class or function that makes one, its import path, or a name.
        class_names: one for each label of `train`.
        bias_names: one for each bias value of `train`.
        augment: of `train`: a name such as "supcon" (`data.augment`), or steps of
            `fairmargin.data.views`.
        trust_code: import code that `config` names, if that is the file of a run.
    """
    own = OwnParts.of(encoder, GivenDatasets(train, valid, test, class_names, bias_names, augment))
    own.check(dataset=dataset, network=network, config=config)
    overrides = [f"{key}={toml.value(_none(value))}" for key, value in (settings or {}).items()]
    overrides += own.overrides
    if epochs is not None:
        overrides.append(f"train.epochs={epochs}")
    if isinstance(config, Config):
        if overrides or any(x is not None for x in (dataset, method, network, bias, seed)):
            raise ValueError(
                "a whole Config takes no other settings; change it with config.override"
            )
        chosen = config
    else:
        file = None if config is None else Path(config)

        def loaded(bias: str | None) -> Config:
            return configuration.load(
                file,
                dataset=None if dataset is None else str(dataset),
                network=own.network or network,
                method=method,
                bias=bias,
                seed=seed,
                overrides=overrides,
            )

        chosen = with_found_bias(loaded(bias), loaded)
    chosen = named_again(allowed(chosen, given=own.given), trust_code=trust_code)
    own.say_what_is_lost(console)
    for note in chosen.notes:
        (console or terminal.Console()).print(note, highlight=False, markup=False, soft_wrap=True)
    folder = folder_of(chosen, default_out(chosen)) if out is None else Path(out)
    record = run_config(chosen, folder, command=("fairmargin.train",), console=console)
    return TrainedRun(folder, record, named_part(chosen, "network"))


def _none(value: Any) -> Any:
    """TOML has no null; the word "none" stands for it."""
    return "none" if value is None else value
