"""What the commands of many runs share: `compare`, `tune` and `reproduce`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fairmargin.cli.options import parse_methods

if TYPE_CHECKING:
    from fairmargin.config import Config
    from fairmargin.sweep.base import Engine
    from fairmargin.sweep.engines import EngineName

Methods = Annotated[
    str, typer.Option(help='Names from "fairmargin list methods", comma-separated, or all.')
]

# What "fairmargin compare" compares on a dataset of the catalog.
USUAL_METHODS = "ce,eps-supinfonce,eps-supinfonce+fairkl"


@dataclass(frozen=True)
class RunOptions:
    """The options that say what the runs of a command are, as they were given.

    Args:
        file: a configuration file.
        methods: comma-separated names, or "all".
        changes: values of --set.
    """

    file: Path | None
    dataset: str | None
    methods: str
    network: str | None
    bias: str | None
    changes: list[str] | None

    @property
    def names(self) -> list[str]:
        """The methods' names, each once."""
        return parse_methods(self.methods)

    @property
    def all_methods(self) -> bool:
        """True if every method is to run: those that do not suit the dataset are then left out."""
        return self.methods == "all"

    def with_usual_methods(self, say: Callable[[str], None]) -> "RunOptions":
        """Return the options with the methods that are compared when none are named.

        Args:
            say: gets a line about what was chosen for people's own images.
        """
        from fairmargin import config as configuration

        chosen = configuration.load(
            self.file,
            dataset=self.dataset,
            network=self.network,
            bias=self.bias,
            overrides=self.changes or (),
        )
        for note in chosen.notes:
            say(note)
        names = USUAL_METHODS
        if chosen.data.name == "folder":
            names = ",".join(dict.fromkeys(["ce", chosen.method.name]))
        return replace(self, methods=names)

    def configs(self, seeds: Sequence[int | None] = (None,)) -> list["Config"]:
        """Load a configuration for each method and seed.

        Args:
            seeds: by default one for each method, with the seed of the file or preset.
        """
        from fairmargin import config as configuration

        loaded = []
        for name in self.names:
            for seed in seeds:
                config = configuration.load(
                    self.file,
                    dataset=self.dataset,
                    network=self.network,
                    method=name,
                    bias=self.bias,
                    seed=seed,
                    overrides=self.changes or (),
                )
                loaded.append(config)
        return loaded


def choose_engine(
    name: str, jobs: int | None, address: str | None, cpus: int | None, gpus: float | None
) -> "Engine":
    """Return the engine that --engine names, with the options that belong to it.

    Args:
        name: the value of --engine.
        jobs, address, cpus, gpus: values of these options; None if not given.
    """
    from fairmargin.sweep.engines import engine

    # The name is checked there, with a message that has the nearest one.
    return engine(cast("EngineName", name), jobs=jobs, address=address, cpus=cpus, gpus=gpus)
