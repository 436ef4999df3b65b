"""Prepare the pages of the documentation site: `make docs` runs this, then builds the site.

    python tools/docs_site.py           # writes build/docs
    zensical build --strict        # build/docs -> build/site (zensical.toml)

Three things happen to the pages of `docs/`. Links to files outside of it become links to the
repository. The changelog and the contributor's pages join them. And an API reference is written
from the docstrings of the package, which is parsed and never imported. Nothing written here is
committed.
"""

import ast
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "docs"
SOURCE = ROOT / "src"
REPOSITORY = "https://github.com/fairmargin/fairmargin/blob/main"
COPIED = {".md", ".css", ".png", ".svg", ".csv", ".json"}
PAGES_OF_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md")

# The pages of the reference: what each is about, and its modules. A module with `__all__` shows
# the names in it; another shows the public functions and classes that it defines.
REFERENCE = {
    "losses": ("Pure functions and their module shells", ["losses"]),
    "methods": ("Training methods by name, and what every method is", ["methods", "methods.base"]),
    "data": (
        "Datasets by name, splits, loaders, samplers and views",
        ["data", "data.loader", "data.samplers", "data.views", "batch"],
    ),
    "networks": ("Encoders by name, and heads", ["networks"]),
    "evaluate": (
        "Accuracies under named conventions, probes, similarities",
        ["evaluate", "evaluate.accuracy", "evaluate.probe", "evaluate.similarity"],
    ),
    "audit": ("What gives the label away", ["audit", "audit._dataset", "audit._embeddings"]),
    "sklearn": ("The scikit-learn classifier and transformer", ["sklearn"]),
    "running": (
        "Training and using models, configuration, one run, the training loop, processes",
        ["api", "export", "config", "run", "loop", "optim", "runtime.distributed"],
    ),
}

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
SECTIONS = ("Args", "Returns", "Yields", "Raises", "Note", "Example", "Examples")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def prepare(out: Path = OUT) -> list[Path]:
    """Write every page into `out`, which is emptied first, and return the Markdown files."""
    shutil.rmtree(out, ignore_errors=True)
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in COPIED:
            _copy(path, out / path.relative_to(ROOT / "docs"), path.parent)
    for name in PAGES_OF_ROOT:
        if (ROOT / name).is_file():
            _copy(ROOT / name, out / "project" / name.lower().replace("_", "-"), ROOT)
    (out / "api").mkdir(parents=True)
    for name, (title, modules) in REFERENCE.items():
        lines = [f"# fairmargin.{name}" if name != "running" else "# Running", "", f"{title}."]
        for module in modules:
            lines += reference(module, alone=len(modules) == 1)
        (out / "api" / f"{name}.md").write_text("\n".join(lines) + "\n", "utf-8")
    return sorted(out.rglob("*.md"))


def _copy(source: Path, target: Path, folder: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix != ".md":
        shutil.copyfile(source, target)
        return
    text = source.read_text("utf-8")
    target.write_text(rewrite_links(text, folder), "utf-8")


def rewrite_links(text: str, folder: Path) -> str:
    """Point links that leave `docs/` to the repository, or to the page's new place.

    Args:
        text: a Markdown page.
        folder: where the page lies, which its links start from.

    Raises:
        FileNotFoundError: if a link's target does not exist.
    """

    def moved(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        path, hash_, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:") or not path:
            return match.group(0)
        target = (folder / path).resolve()
        if not target.exists():
            raise FileNotFoundError(f"{folder.relative_to(ROOT)}: the link {link} leads nowhere")
        if folder != ROOT and target.is_relative_to(ROOT / "docs"):
            return match.group(0)
        if folder == ROOT and target.is_relative_to(ROOT / "docs") and target.suffix == ".md":
            inside = target.relative_to(ROOT / "docs").as_posix()
            return f"{before}{posixpath.join('..', inside)}{hash_}{anchor}{after}"
        if folder == ROOT and target.name in PAGES_OF_ROOT:
            name = target.name.lower().replace("_", "-")
            return f"{before}{name}{hash_}{anchor}{after}"
        inside = target.relative_to(ROOT).as_posix()
        return f"{before}{REPOSITORY}/{inside}{hash_}{anchor}{after}"

    return _outside_code(text, lambda part: LINK.sub(moved, part))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to a page, except inside fenced blocks and code spans."""
    parts = re.split(r"(^```.*?^```|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("`") else change(part) for part in parts)


class Found(NamedTuple):
    """A public name, the definition behind it and the file that holds it."""

    name: str
    node: Definition
    file: Path


def _with_borrowed_arguments(node: Definition, tree: ast.Module) -> Definition:
    """The definition with the arguments that it takes from another function of its module's names.

    `@arguments_of(f)` gives a function the arguments of f; `class C(…, of=f)` gives the
    constructor of a loss module the keyword arguments of f.
    """
    if isinstance(node, ast.ClassDef):
        lender = next((ast.unparse(word.value) for word in node.keywords if word.arg == "of"), "")
    else:
        calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
        named = [one for one in calls if ast.unparse(one.func) == "arguments_of"]
        lender = ast.unparse(named[0].args[0]) if named else ""
    found = _named(tree, lender) if lender else None
    if not isinstance(found, ast.FunctionDef):
        return node
    if not isinstance(node, ast.ClassDef):
        return ast.copy_location(_function(node.name, found.args, node), node)
    # Names that a call of the module takes, and not its constructor.
    at_call: list[str] = []
    for word in node.keywords:
        if word.arg == "at_call":
            at_call += ast.literal_eval(word.value)
    given = zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
    kept = [pair for pair in given if pair[0].arg not in at_call]
    keywords = ast.arguments(
        posonlyargs=[],
        args=[ast.arg("self")],
        kwonlyargs=[argument for argument, _ in kept],
        kw_defaults=[default for _, default in kept],
        defaults=[],
    )
    others = [
        item
        for item in node.body
        if not (isinstance(item, ast.FunctionDef) and item.name == "__init__")
    ]
    maker = ast.copy_location(_function("__init__", keywords, found), node)
    changed = ast.ClassDef(node.name, node.bases, [], [*others, maker], [])
    return ast.copy_location(changed, node)


def _function(name: str, arguments: ast.arguments, like: Function) -> ast.FunctionDef:
    return ast.FunctionDef(name, arguments, like.body, [], like.returns)


def _named(tree: ast.Module, name: str) -> Definition | None:
    """The definition of a name, in this module or in the one that it is imported from."""
    if name in _definitions(tree):
        return _with_borrowed_arguments(_definitions(tree)[name], tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            source = _file_of(node.module or "")
            if source.is_file():
                return _named(ast.parse(source.read_text("utf-8")), name)
    return None


def reference(module: str, *, alone: bool) -> list[str]:
    """Write the Markdown lines about one module of the package.

    Args:
        module: its name without "fairmargin.".
        alone: whether the page is about this module only, and needs no heading for it.
    """
    file = _file_of(f"fairmargin.{module}")
    tree = ast.parse(file.read_text("utf-8"))
    level = 2 if alone else 3
    lines = [] if alone else ["", f"## fairmargin.{module.replace('._', '.')}"]
    lines += ["", *docstring(ast.get_docstring(tree) or "")]
    for found in _public(tree, file):
        lines += _entry(found, level, found.name)
        if isinstance(found.node, ast.ClassDef):
            for item in found.node.body:
                if not isinstance(item, Function) or item.name.startswith("_"):
                    continue
                if ast.get_docstring(item):
                    method = Found(item.name, item, found.file)
                    lines += _entry(method, level + 1, f"{found.name}.{item.name}")
    return lines


def _file_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    if path.is_dir():
        return path / "__init__.py"
    return path.with_suffix(".py")


def _public(tree: ast.Module, file: Path) -> Iterator[Found]:
    """The functions and classes that a module offers, from wherever it imports them."""
    defined = _definitions(tree)
    names = _exported(tree)
    if names is None:
        names = [name for name in defined if not name.startswith("_")]
    # Functions first, then classes.
    names = sorted(names, key=lambda name: name[0].isupper())
    origins = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                origins[alias.asname or alias.name] = (node.module, alias.name)
    for name in names:
        if name in defined:
            yield Found(name, _with_borrowed_arguments(defined[name], tree), file)
        elif name in origins:
            module, original = origins[name]
            source = _file_of(module)
            if not source.is_file():
                continue
            inside = ast.parse(source.read_text("utf-8"))
            node = _definitions(inside).get(original)
            if node is not None:
                yield Found(name, _with_borrowed_arguments(node, inside), source)


def _definitions(tree: ast.Module) -> dict[str, Definition]:
    """Return the functions and classes of a module by name; of overloads the last, the real one."""
    return {node.name: node for node in tree.body if isinstance(node, Definition)}


def _exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def _entry(found: Found, level: int, title: str) -> list[str]:
    link = f"{REPOSITORY}/{found.file.relative_to(ROOT).as_posix()}#L{found.node.lineno}"
    lines = ["", f"{'#' * level} `{title}`", "", "```python", signature(found.node), "```", ""]
    lines += docstring(ast.get_docstring(found.node) or "")
    return [*lines, "", f"[source]({link})"]


def signature(node: Definition) -> str:
    """Return the signature of a function or of a class, on one line or one for each argument."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        makers = [item for item in node.body if isinstance(item, Function)]
        maker = next((item for item in makers if item.name == "__init__"), None)
        if maker is None:
            fields = [ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign)]
            head = f"class {node.name}({bases})" if bases else f"class {node.name}"
            return "\n    ".join([head + ":" if fields else head, *fields])
        name, function = f"class {node.name}", maker
    else:
        name, function = node.name, node
    arguments = [
        argument for argument in _arguments(function.args) if argument not in ("self", "cls")
    ]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    if name.startswith("class"):
        returns = ""
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= 88:
        return line
    return (
        "\n    ".join([f"{name}(", *(f"{argument}," for argument in arguments)]) + f"\n){returns}"
    )


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Each argument with its type and default, and the marks / and * between them."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = len(positional) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [*([None] * missing), *arguments.defaults]
    for number, (argument, default) in enumerate(zip(positional, defaults, strict=True), start=1):
        yield _argument(argument, default)
        if number == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(argument, default)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    if default is None:
        return text
    equals = " = " if argument.annotation else "="
    return f"{text}{equals}{ast.unparse(default)}"


def docstring(text: str) -> list[str]:
    """Write a docstring as Markdown: Google sections become lists, indented text stays code."""
    lines: list[str] = []
    in_arguments = False
    for line in text.splitlines():
        heading = line.rstrip().removesuffix(":")
        if heading in SECTIONS and line.rstrip().endswith(":"):
            in_arguments = heading in ("Args", "Raises")
            lines += ["", f"**{heading}**", ""]
            continue
        if line and not line.startswith(" "):
            in_arguments = False
        entry = re.match(r"    (\*{0,2}\w[\w, ]*):\s+(.*)", line)
        if in_arguments and entry:
            lines.append(f"- `{entry.group(1)}`: {_plain(entry.group(2))}")
        elif in_arguments and line.strip():
            lines.append(f"    {_plain(line.strip())}")
        elif line.startswith("    "):
            if lines and lines[-1] and not lines[-1].startswith("    "):
                lines.append("")
            lines.append(line)
        else:
            lines.append(_plain(line))
    return lines


def _plain(text: str) -> str:
    """Keep shapes such as [N, D](…) and Python's < and * from being read as Markdown."""
    escape: Callable[[str], str] = lambda part: re.sub(r"([*<\[\]_])", r"\\\1", part)
    return _outside_code(text, escape)


if __name__ == "__main__":
    pages = prepare()
    print(f"{len(pages)} pages in {OUT.relative_to(ROOT)}", file=sys.stderr)
