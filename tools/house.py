"""Measure how a Python package is built: its modules, names, docstrings and dense lines.

    python tools/house.py                        # this package
    python tools/house.py path/to/other/package  # any other, by the same measure
    python tools/house.py --check                # exit code 1 if a limit is broken

The files are parsed and never imported. Folders named `tests` and hidden folders are left out.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "fairmargin"
MAX_MODULES = 10
MAX_COLUMNS = 100
MIN_ARGS = 0.5

# Google ("Args:"), NumPy ("Parameters" underlined) and Sphinx (":param x:") sections.
ARGS_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters):?\s*$|:param ", re.MULTILINE)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Documented by PyTorch: a one-line override needs no text of its own.
DOCUMENTED_ELSEWHERE = {"forward", "extra_repr"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Classes = dict[str, list[ast.ClassDef]]


@dataclass
class House:
    """What was counted in one package."""

    top_modules: list[str] = field(default_factory=list)
    lines: int = 0
    long_lines: list[str] = field(default_factory=list)
    comprehensions: int = 0
    conditionals: int = 0
    definitions: Counter[str] = field(default_factory=Counter)
    functions: int = 0
    undocumented: list[str] = field(default_factory=list)
    with_parameters: int = 0
    with_args: int = 0

    @property
    def repeated(self) -> list[str]:
        """Names that several modules define, most repeated first."""
        return [f"{name} ({n})" for name, n in self.definitions.most_common() if n > 1]


def measure(package: Path) -> House:
    """Count everything in the `.py` files under `package`."""
    trees: dict[Path, ast.Module] = {}
    house = House()
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        if any(part == "tests" or part.startswith(".") for part in parts):
            continue
        text = path.read_text("utf-8")
        trees[path] = ast.parse(text, str(path))
        _count_lines(house, str(path), text)
        if len(parts) == 1 and not path.name.startswith("__"):
            house.top_modules.append(path.stem)
    classes = _classes(trees.values())
    for path, tree in trees.items():
        for node in ast.walk(tree):
            house.comprehensions += isinstance(node, COMPREHENSIONS)
            house.conditionals += isinstance(node, ast.IfExp)
        house.definitions.update(_public_names(tree))
        for owner, function in _public_functions(tree):
            _count_function(house, f"{path}:{function.lineno}", owner, function, classes)
    return house


def _count_lines(house: House, path: str, text: str) -> None:
    for number, line in enumerate(text.splitlines(), start=1):
        house.lines += 1
        if len(line) > MAX_COLUMNS:
            house.long_lines.append(f"{path}:{number}")


def _classes(trees: Iterable[ast.Module]) -> Classes:
    """The classes of the package by name, which several may share."""
    found: Classes = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def _public_names(tree: ast.Module) -> set[str]:
    """Functions and classes that a module defines at its top, without a leading underscore."""
    defined = (node for node in tree.body if isinstance(node, Function | ast.ClassDef))
    return {node.name for node in defined if not node.name.startswith("_")}


def _public_functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """(class or None, function) of the public functions, and public methods of public classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for item in node.body:
                if isinstance(item, Function) and _is_public(item):
                    yield node, item
        elif isinstance(node, Function) and _is_public(node):
            yield None, node


def _is_public(function: Function) -> bool:
    # Overloads and setters are further faces of a function that is counted already.
    faces = {ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list}
    return not function.name.startswith("_") and not faces & {"overload", "setter", "deleter"}


def _count_function(
    house: House,
    place: str,
    owner: ast.ClassDef | None,
    function: Function,
    classes: Classes,
) -> None:
    text = ast.get_docstring(function) or ""
    is_short = not text and len(function.body) == 1
    if owner and is_short and _is_documented_above(owner, function.name, classes):
        return
    house.functions += 1
    if not text:
        house.undocumented.append(f"{place} {function.name}")
    if _parameters(function) - {"self", "cls"}:
        house.with_parameters += 1
        house.with_args += bool(ARGS_SECTION.search(text))


def _is_documented_above(owner: ast.ClassDef, name: str, classes: Classes) -> bool:
    """Whether a class above `owner` documents the method `name`."""
    waiting = [owner]
    seen: set[ast.ClassDef] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.bases and name in DOCUMENTED_ELSEWHERE:
            return True
        for item in node.body:
            if isinstance(item, Function) and item.name == name and ast.get_docstring(item):
                return True
        for base in node.bases:
            base_name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            waiting.extend(classes.get(base_name, []))
    return False


def _parameters(function: Function) -> set[str]:
    a = function.args
    stars = [star for star in (a.vararg, a.kwarg) if star]
    return {arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs, *stars)}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def rows(house: House) -> list[tuple[str, str]]:
    """(measure, value) for a table."""
    documented = house.functions - len(house.undocumented)
    thousands = max(house.lines, 1) / 1000
    return [
        ("lines", f"{house.lines:,}"),
        ("top-level modules", f"{len(house.top_modules)}"),
        ("public names defined in several modules", f"{len(house.repeated)}"),
        ("public functions and methods", f"{house.functions:,}"),
        ("… with a docstring", f"{_share(documented, house.functions):.1%}"),
        (
            "… with parameters and an Args section",
            f"{_share(house.with_args, house.with_parameters):.1%}",
        ),
        (
            f"lines over {MAX_COLUMNS} columns",
            f"{_share(len(house.long_lines), house.lines):.2%}",
        ),
        ("comprehensions per 1,000 lines", f"{house.comprehensions / thousands:.1f}"),
        ("conditional expressions per 1,000 lines", f"{house.conditionals / thousands:.1f}"),
    ]


def problems(house: House) -> list[str]:
    """What breaks a limit, one line each."""
    found = [f"{place}: longer than {MAX_COLUMNS} columns" for place in house.long_lines]
    found += [f"{place}: no docstring" for place in house.undocumented]
    if len(house.top_modules) > MAX_MODULES:
        names = ", ".join(house.top_modules)
        found.append(f"{len(house.top_modules)} top-level modules, at most {MAX_MODULES}: {names}")
    share = _share(house.with_args, house.with_parameters)
    if share < MIN_ARGS:
        found.append(f"{share:.1%} of public functions have an Args section, at least 50 % should")
    return found


def main() -> int:
    """Print the table; with `--check` also the problems, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description="Measure how a Python package is built.")
    parser.add_argument("package", nargs="?", type=Path, default=PACKAGE, help="its folder")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is broken")
    parser.add_argument("--names", action="store_true", help="list the repeated names")
    options = parser.parse_args()
    if not options.package.is_dir():
        parser.error(f"{options.package} is not a folder; give the folder of a package")
    house = measure(options.package)
    for name, value in rows(house):
        print(f"{name:42}{value:>10}")
    if options.names:
        print("\n".join(house.repeated))
    found = problems(house) if options.check else []
    for problem in found:
        print(problem, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
