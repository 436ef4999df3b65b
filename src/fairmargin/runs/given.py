"""Parts that were given to `fm.train` as Python objects: what the configuration says of them."""

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from fairmargin.config import toml
from fairmargin.config.code import OWN, importable, path_of
from fairmargin.runs.own import GivenDatasets
from fairmargin.runtime import terminal


@dataclass(frozen=True)
class OwnParts:
    """Datasets and an encoder of the user's.

    Args:
        given: objects by part, "data" and "network".
        overrides: settings that record them.
        network: name of the encoder, if it has one.
        lost: what the run folder cannot rebuild.
    """

    given: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    network: str | None = None
    lost: tuple[str, ...] = ()

    @staticmethod
    def of(encoder: Any, datasets: GivenDatasets) -> "OwnParts":
        """Return what the configuration says of an encoder and of datasets, each perhaps None.

        Args:
            encoder: a module, a class or function, an import path, or a name.
            datasets: without a training set, there are none.
        """
        given: dict[str, Any] = {}
        overrides: list[str] = []
        lost: list[str] = []
        network = None
        if _is_given(datasets):
            given["data"] = datasets
            path = path_of(datasets.train)
            overrides += ["data.name=own", f"data.object={toml.value(path)}"]
            if datasets.augment is not None:
                steps = datasets.augment
                if not isinstance(steps, str):
                    steps = ", ".join(map(repr, steps))
                overrides.append(f"data.augment={toml.value(steps)}")
            lost.append(f"the datasets ({path})")
        if isinstance(encoder, str):
            network = encoder
        elif encoder is not None:
            given["network"] = encoder
            path = path_of(encoder)
            if importable(encoder):
                network = path
            else:
                network = OWN
                overrides.append(f"network.object={toml.value(path)}")
                lost.append(f"the encoder ({path})")
        return OwnParts(given, tuple(overrides), network, tuple(lost))

    def check(self, *, dataset: Any, network: Any, config: Any) -> None:
        """Refuse what contradicts the parts.

        Args:
            dataset: the name that was given beside them.
            network: likewise.
            config: a configuration that was given beside them.
        """
        if "data" in self.given and dataset is not None:
            raise ValueError(f"both train and dataset={str(dataset)!r} were given; leave one out")
        if self.network is not None and network is not None:
            raise ValueError(f"both encoder and network={network!r} were given; leave one out")
        if network is not None and not isinstance(network, str):
            raise TypeError("network takes a name; give a module or class as encoder")
        if (self.given or self.network) and config is not None and not _is_file(config):
            raise ValueError(
                "a whole Config takes no other settings; give a file, or the settings as settings"
            )

    def say_what_is_lost(self, console: Console | None) -> None:
        """Print one note on what cannot be rebuilt from the run folder, and what to do then.

        Args:
            console: where to; standard error by default.
        """
        if not self.lost:
            return
        note = f"note: the run folder keeps the name and not the code of {' and '.join(self.lost)};"
        if self.network == OWN:
            note += " load the model with fm.load(run, encoder=…),"
        note += " continue the run with this same call"
        console = console or terminal.Console(stderr=True)
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _is_given(datasets: GivenDatasets) -> bool:
    """Whether there is a training set; a ValueError for some of the arguments without it."""
    if datasets.train is None:
        for name in ("valid", "test", "class_names", "bias_names", "augment"):
            if getattr(datasets, name) is not None:
                raise ValueError(f"{name} belongs to datasets of your own; give train as well")
        return False
    if datasets.test is None:
        raise ValueError(
            "train was given without test; give a test set, without which nothing could be said "
            "of the result"
        )
    return True


def _is_file(config: Any) -> bool:
    return isinstance(config, str) or hasattr(config, "__fspath__")
