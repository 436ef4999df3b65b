"""What the commands of many runs share: `compare`, `tune` and `reproduce`."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fairmargin.cli.errors import exit_on_user_error
from fairmargin.cli.options import Address, Cpus, EngineName, Gpus, Jobs, parse_methods

if TYPE_CHECKING:
    from fairmargin.config import Config
    from fairmargin.sweep.base import Engine

Methods = Annotated[
    str, typer.Option(help='Names from "fairmargin list methods", comma-separated, or all.')
]

# What "fairmargin compare" compares on a dataset of the catalog.
USUAL_METHODS = "ce,eps-supinfonce+fairkl,fairmargin"


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
        from fairmargin.runs.found_bias import with_found_bias

        def loaded(bias: str | None) -> "Config":
            return configuration.load(
                self.file,
                dataset=self.dataset,
                network=self.network,
                bias=bias,
                overrides=self.changes or (),
            )

        chosen = with_found_bias(loaded(self.bias), loaded)
        for note in chosen.notes:
            say(note)
        names, bias = USUAL_METHODS, self.bias
        if chosen.data.name == "folder":
            # Where nothing is known of the bias, the default is cross-entropy by another name.
            others = [] if chosen.unknown_bias else [chosen.method.name]
            names = ",".join(dict.fromkeys(["ce", *others]))
            bias = chosen.data.bias
        return replace(self, methods=names, bias=bias)

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


def with_engine(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --engine, --jobs, --address, --cpus and --gpus.

    Args:
        command: its argument `engine` is the engine that these options name.
    """
    given = inspect.signature(command)
    own = [one for name, one in given.parameters.items() if name != "engine"]
    more = list(inspect.signature(choose_engine).parameters.values())
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *more)]

    @wraps(command)
    def with_options(**options: Any) -> None:
        chosen = {one.name: options.pop(one.name) for one in more}
        with exit_on_user_error():
            engine = choose_engine(**chosen)
        command(engine=engine, **options)

    # Typer reads a command's options from these.
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    with_options.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_options


def choose_engine(
    engine: EngineName = "local",
    jobs: Jobs = None,
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
) -> "Engine":
    """Return the engine that --engine names, with the options that belong to it.

    Args:
        engine: its name.
        jobs, address, cpus, gpus: values of these options; None if not given.
    """
    from fairmargin.sweep import engines

    # The name is checked there, with a message that has the nearest one.
    name = cast("engines.EngineName", engine)
    return engines.engine(name, jobs=jobs, address=address, cpus=cpus, gpus=gpus)
