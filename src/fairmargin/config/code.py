"""Code that a configuration names: import paths such as "my_package.nets:Backbone".

Reading a configuration imports nothing. A part is imported when it is built, and only if the user
named it: on the command line, in Python, or in a configuration file of their own. What a run folder
says is data, and never enough.
"""

import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

if TYPE_CHECKING:
    from fairmargin.config.schema import Config

# The name of a dataset or an encoder that was given as an object and has no import path.
OWN = "own"
# Prefixes of networks and datasets that other libraries made.
LIBRARIES = ("hf", "timm", "torchvision")
PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

Part = Literal["data", "network"]
PARTS: tuple[Part, ...] = ("data", "network")
# How the user names each again: on the command line, in Python.
OPTIONS = {"data": "--dataset", "network": "--network"}
KEYWORDS = {"data": "dataset", "network": "encoder"}
CALLED = {"data": "dataset", "network": "encoder"}


class UntrustedCode(ValueError):
    """A configuration names code that the user has not named; it was not imported."""


class MissingPart(ValueError):
    """A run's dataset or encoder was given as a Python object, and is not at hand now."""


@dataclass(frozen=True)
class Code:
    """What the user gave along with a configuration. It is no setting, so all are equal.

    Args:
        trusted: import paths that the user named.
        given: objects for `data` and `network`, which take the place of an import.
    """

    trusted: frozenset[str] = field(default=frozenset(), compare=False)
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)


def is_import_path(name: object) -> bool:
    """True for text of the form module:attribute; hf:NAME and the like are no modules."""
    if not isinstance(name, str) or name.partition(":")[0] in LIBRARIES:
        return False
    return PATH.fullmatch(name) is not None


def is_code(name: object) -> bool:
    """True if this name of a dataset or an encoder stands for code of the user's own."""
    return name == OWN or is_import_path(name)


def allowed(
    config: "Config", *, trusted: Iterable[str] = (), given: Mapping[str, Any] | None = None
) -> "Config":
    """Return the configuration with more that the user trusts or gave.

    Args:
        trusted: import paths that the user named.
        given: objects by part, "data" or "network".
    """
    before = config._code
    copied = config.model_copy()
    copied._code = Code(
        before.trusted | frozenset(filter(is_import_path, trusted)),
        {**before.given, **(given or {})},
    )
    return copied


def named_again(
    config: "Config",
    *,
    network: Any = None,
    dataset: str | None = None,
    trust_code: bool = False,
) -> "Config":
    """Return the configuration of a run folder, with the code that the user named again.

    Args:
        config: as the folder has it.
        network: the import path that it names, or the encoder itself.
        dataset: the import path that it names.
        trust_code: trust every import path that it names.
    """
    trusted: list[str] = []
    given: dict[str, Any] = {}
    for part, again in (("network", network), ("data", dataset)):
        name = getattr(config, part).name
        if trust_code:
            trusted.append(name)
        if again is None:
            continue
        if isinstance(again, str):
            if again != name:
                raise ValueError(
                    f"this run's {CALLED[part]} is {name}, not {again}; name that one, "
                    "or leave it out"
                )
            trusted.append(name)
        elif is_code(name):
            given[part] = again
        else:
            raise ValueError(
                f"this run's {CALLED[part]} is {name}, which comes with FairMargin; "
                f"leave {KEYWORDS[part]} out"
            )
    return allowed(config, trusted=trusted, given=given)


def named_part(config: "Config", part: Part) -> Any:
    """Return the object that the user gave, or the import path that they named; else None.

    Args:
        config: of the run.
        part: "data" or "network".
    """
    name = getattr(config, part).name
    named = name if name in config._code.trusted else None
    return config._code.given.get(part, named)


def part_of(config: "Config", part: Part) -> Any:
    """Return the user's own dataset builder or encoder that a configuration names.

    It is the object that the user gave, or else it is imported, if the user named it.

    Args:
        config: of the run.
        part: "data" or "network".
    """
    section = getattr(config, part)
    if part in config._code.given:
        return config._code.given[part]
    if section.name == OWN:
        raise MissingPart(_missing(part, section.options.get("object", "a Python object")))
    if section.name not in config._code.trusted:
        raise refusal(part, section.name)
    return imported(section.name)


def refusal(part: Part, name: str) -> UntrustedCode:
    """Return the error that says what would be imported, and how to allow it.

    Args:
        part: "data" or "network".
        name: the import path.
    """
    module, _, attribute = name.partition(":")
    return UntrustedCode(
        f'{part}.name = "{name}" would import the module {module} and call its {attribute}, '
        "which may do anything. Nothing was imported. If you trust it, name it again with "
        f"{OPTIONS[part]} {name}, or say --trust-code (in Python: "
        f'{KEYWORDS[part]}="{name}" or trust_code=True)'
    )


def _missing(part: Part, path: str) -> str:
    if part == "network":
        return (
            f"the encoder of this run was given as a Python object ({path}) and cannot be rebuilt "
            "from the folder; give it from Python: fm.load(run, encoder=…), or "
            "fm.train(…, encoder=…) to continue"
        )
    return (
        f"the data of this run were given as Python objects ({path}) and cannot be rebuilt from "
        "the folder; give them from Python: fm.train(train=…, test=…, …), with the same folder as "
        "out to continue"
    )


def imported(path: str) -> Any:
    """Import what an import path names. Modules in the working folder are found, too.

    Args:
        path: module:attribute, which the user trusts.
    """
    module, _, attribute = path.partition(":")
    # The command has its own folder on the path where "python -m" has the working folder. Last, so
    # that nothing that is installed is hidden.
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(f"{missing}."):
            raise ValueError(
                f"{path} names the module {module}, and there is no {missing}; "
                "install it, or run in the folder that holds it"
            ) from error
        raise
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ValueError(f"{path}: {getattr(found, '__name__', found)} has no {name}")
        found = getattr(found, name)
    return found


def path_of(part: Any) -> str:
    """Return module:name of a class or function; of anything else, those of its class."""
    named = part if hasattr(part, "__qualname__") else type(part)
    return f"{named.__module__}:{named.__qualname__}"


def importable(part: Any) -> bool:
    """True if the import path of a class or function leads to it, in any process.

    Notebook and local classes, lambdas and instances cannot be imported.
    """
    path = path_of(part)
    if not hasattr(part, "__qualname__") or not is_import_path(path):
        return False
    module, _, attribute = path.partition(":")
    found = sys.modules.get(module)
    for name in attribute.split("."):
        found = getattr(found, name, None)
    return found is part and module != "__main__"


def source_hash(part: Any) -> str | None:
    """Return the sha256 of a part's source; None if there is none, as for some notebooks.

    Args:
        part: a class, a function, or an object, whose class counts; of a module, its layers and the
            classes of all its parts, except PyTorch's own.
    """
    named = [part if hasattr(part, "__qualname__") else type(part)]
    text = ""
    if isinstance(part, nn.Module):
        text = repr(part)
        classes = {type(inner) for inner in part.modules()}
        theirs = [kind for kind in classes if not kind.__module__.startswith("torch.")]
        named = sorted(theirs, key=path_of)
    try:
        sources = [inspect.getsource(one) for one in named]
    except (OSError, TypeError):
        return None
    return hashlib.sha256("\0".join([text, *sources]).encode()).hexdigest()


def facts(config: "Config") -> dict[str, dict[str, str | None]]:
    """Return import path and hash of the source of each part that is the user's own code."""
    found: dict[str, dict[str, str | None]] = {}
    for part in PARTS:
        section = getattr(config, part)
        if not is_code(section.name):
            continue
        built = part_of(config, part)
        path = section.options.get("object") if section.name == OWN else section.name
        # Of datasets that were given, the class of the training set counts.
        source = getattr(built, "code", built) if part == "data" else built
        found[part] = {"path": path, "sha256": source_hash(source)}
    return found
