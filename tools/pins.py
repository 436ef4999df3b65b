"""Write requirements/*.txt: what `make` installs, with the SHA-256 of every file that may be used.

    python tools/pins.py            ask the index for the files of each version of constraints.txt
    python tools/pins.py --check    only compare requirements/ with constraints.txt

constraints.txt says which versions. Which packages a group needs is read from the packages that are
installed, so run it where everything is: after `make test`, `make bench` and `make docs`. Wheels of
all systems and of the Pythons of pyproject.toml are taken; a package without wheels is refused,
because a source is a program that runs while it is built. torch is left out (docs/decisions.md).
"""

import argparse
import html.parser
import itertools
import os
import re
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
# Its CPU, CUDA and Mac builds come from different indexes, with different files.
LEFT_OUT = {"torch", "fairmargin"}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SYSTEMS = (
    ("linux", "Linux", "x86_64"),
    ("linux", "Linux", "aarch64"),
    ("darwin", "Darwin", "arm64"),
)
HEADER = "# Written by tools/pins.py from constraints.txt; renew with: make hashes\n"

Fetch = Callable[[str], str]
Requires = Callable[[str], list[str]]


class PinError(ValueError):
    """Something that keeps the files from being written."""


def pinned(text: str) -> dict[str, str]:
    """Return {name: version} of the lines of constraints.txt.

    Args:
        text: of the file.
    """
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


class _Links(html.parser.HTMLParser):
    """Collects the addresses of a page of the index, without those of withdrawn files."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" and values.get("href") and "data-yanked" not in values:
            self.found.append(str(values["href"]))


def hashes(page: str, name: str, version: str) -> list[str]:
    """Return the SHA-256 of each wheel of a version that a supported Python may install, sorted.

    Args:
        page: of the package, from a simple index (PEP 503).
        name: of the package.
        version: to take.
    """
    links = _Links()
    links.feed(page)
    found = set()
    for link in links.found:
        address, fragment = urldefrag(link)
        file = unquote(address.rpartition("/")[2])
        digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        if digest and _is_wanted(file, name, version):
            found.add(digest.group(1))
    if not found:
        raise PinError(f"the index has no wheel of {name} {version} with a SHA-256")
    return sorted(found)


def _is_wanted(file: str, name: str, version: str) -> bool:
    if not file.endswith(".whl"):
        return False
    try:
        of, its, _, tags = parse_wheel_filename(file)
    except ValueError:
        return False
    right = canonicalize_name(of) == name and str(its) == version
    return right and any(_runs(tag.interpreter, tag.abi) for tag in tags)


def _runs(interpreter: str, abi: str) -> bool:
    """Whether a wheel with these tags runs on one of `PYTHONS`; free-threaded ones are left out."""
    ours = {f"cp{python.replace('.', '')}" for python in PYTHONS}
    if interpreter.startswith("py3") or interpreter in ours:
        return not abi.endswith("t")
    return interpreter.startswith("cp3") and abi == "abi3"


def environments() -> Iterator[dict[str, str]]:
    """Yield the variables of markers for every supported Python and system."""
    for python, (platform, system, machine) in itertools.product(PYTHONS, SYSTEMS):
        yield {
            "python_version": python,
            "python_full_version": f"{python}.0",
            "sys_platform": platform,
            "platform_system": system,
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
            "os_name": "posix",
        }


def closure(wanted: Iterable[str], requires: Requires) -> set[str]:
    """Return the names of all packages that requirements lead to, on any supported system.

    Args:
        wanted: requirements, such as "torch>=2.6".
        requires: gives the requirements of a package by its name.
    """
    todo = [Requirement(text) for text in wanted]
    seen: set[tuple[str, str]] = set()
    names: set[str] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            names.add(name)
            for text in requires(name):
                further = Requirement(text)
                if further.marker is None or _applies(further, extra):
                    todo.append(further)
    return names


def _applies(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    assert marker is not None
    return any(marker.evaluate({**here, "extra": extra}) for here in environments())


def installed(name: str) -> list[str]:
    """Return the requirements of an installed package; none if it is not installed here.

    Args:
        name: of the package.
    """
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def surely_installed(name: str) -> list[str]:
    """Return the requirements of a package that must be installed, or raise `PinError`.

    Args:
        name: of the package.
    """
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        raise PinError(
            f"{name} is not installed here, so what it needs is not known; first: "
            "make .venv/.bench .venv/.docs"
        ) from None


def groups(project: Mapping[str, Any], requires: Requires = installed) -> dict[str, set[str]]:
    """Return the names of the packages of each file of requirements/.

    Each of build, runtime, dev and bench has what those before it have not.

    Args:
        project: pyproject.toml, parsed.
        requires: gives the requirements of a package by its name.
    """
    own = project["project"]
    extras = own["optional-dependencies"]

    def of(name: str) -> list[str]:
        if name != "fairmargin":
            return requires(name)
        named = [f'{text} ; extra == "{extra}"' for extra in extras for text in extras[extra]]
        return [*own["dependencies"], *named]

    wanted = {
        "build": project["build-system"]["requires"],
        "runtime": ["fairmargin"],
        "dev": ["fairmargin[dev]"],
        "bench": ["fairmargin[dev,bench]"],
    }
    found = {}
    before = set(LEFT_OUT)
    for group in ("build", "runtime", "dev", "bench"):
        found[group] = closure(wanted[group], of) - before
        before |= found[group]
    # The site's reference is made from the source: its tools need nothing of FairMargin's.
    found["docs"] = closure(extras["docs"], requires)
    return found


def written(
    names: Iterable[str], versions: Mapping[str, str], known: Mapping[str, list[str]]
) -> str:
    """Return the text of a requirements file.

    Args:
        names: of its packages.
        versions: by name.
        known: SHA-256 of the files of each package, by name.
    """
    lines = [HEADER]
    for name in sorted(names):
        parts = [f"{name}=={versions[name]}", *(f"--hash=sha256:{one}" for one in known[name])]
        lines.append(" \\\n    ".join(parts) + "\n")
    return "".join(lines)


def read(text: str) -> dict[str, tuple[str, list[str]]]:
    """Return {name: (version, SHA-256s)} of a requirements file.

    Args:
        text: of the file.
    """
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            pin, *options = line.split()
            name, version = pin.split("==")
            found[name] = (version, [option.removeprefix("--hash=sha256:") for option in options])
    return found


def problems(root: Path, requires: Requires = installed) -> list[str]:
    """Return how requirements/ differs from constraints.txt and pyproject.toml, in sentences.

    Args:
        root: of the project.
        requires: gives the requirements of a package by its name.
    """
    versions = pinned((root / "constraints.txt").read_text("utf-8"))
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    found = []
    for group, names in groups(project, requires).items():
        there = read((root / "requirements" / f"{group}.txt").read_text("utf-8"))
        found += [f"{group}.txt lacks {name}" for name in sorted(names - there.keys())]
        for name, (version, digests) in there.items():
            if versions.get(name) != version:
                found.append(f"{group}.txt has {name} {version}, constraints.txt another")
            if not digests or not all(re.fullmatch("[0-9a-f]{64}", one) for one in digests):
                found.append(f"{group}.txt has {name} without a SHA-256")
    return found


def renew(root: Path, fetch: Fetch, requires: Requires = surely_installed) -> list[Path]:
    """Write every file of requirements/ anew; nothing is written if a package is missing.

    Args:
        root: of the project.
        fetch: gives the page of a package by its name.
        requires: gives the requirements of a package by its name.
    """
    versions = pinned((root / "constraints.txt").read_text("utf-8"))
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    chosen = groups(project, requires)
    every = set().union(*chosen.values())
    missing = sorted(every - versions.keys())
    if missing:
        raise PinError(f"constraints.txt has no version of {', '.join(missing)}; add them")
    known = {}
    for name in sorted(every):
        known[name] = hashes(fetch(name), name, versions[name])
    folder = root / "requirements"
    folder.mkdir(exist_ok=True)
    files = []
    for group, names in chosen.items():
        file = folder / f"{group}.txt"
        file.write_text(written(names, versions, known), encoding="utf-8")
        files.append(file)
    return files


def index() -> str:
    """Return the address of the index that pip asks: that of PIP_INDEX_URL, or pip's own."""
    from pip._internal.models.index import PyPI

    return os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")


def _download(name: str) -> str:
    with urllib.request.urlopen(f"{index()}/{name}/", timeout=60) as answer:
        return answer.read().decode("utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare, without the network")
    if parser.parse_args().check:
        found = problems(ROOT)
        print("\n".join(found) or "requirements/ is as constraints.txt says")
        sys.exit(bool(found))
    try:
        for file in renew(ROOT, _download):
            print(file.relative_to(ROOT))
    except (PinError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
