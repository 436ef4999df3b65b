"""A part of the package imports only from the parts above it, so that it can be read downwards."""

import ast
from pathlib import Path

import fairmargin

PACKAGE = Path(fairmargin.__file__).parent
# From top to bottom: the way of a sample from the data to reports and commands.
ORDER = (
    "version",
    "batch",
    "checks",
    "vectors",
    "runtime",
    "data",
    "networks",
    "losses",
    "methods",
    "optim",
    "loop",
    "evaluate",
    "config",
    "bias",
    "runs",
    "run",
    "sklearn",
    "report",
    "audit",
    "export",
    "sweep",
    "suite",
    "reproduce",
    "api",
    "cli",
    "__main__",
)
# (module, part below it that it imports): why. The import itself has a comment, too.
EXCEPTIONS = {
    ("config.schema", "bias"): "the values of data.bias are the names of its providers",
    ("bias.audited", "audit"): "bias labels are what an attribute of the audit predicts",
    ("bias.audited", "runs"): "own images are built again as files, for what only files tell",
    ("methods.dfr", "evaluate"): "its second stage is the linear probe of evaluation",
    ("bias.reference", "runs"): "the reference model is trained by an ordinary run",
    ("bias.capture", "runs"): "the capturing model is trained by an ordinary run",
    ("bias.capture", "run"): "the capturing model is trained by an ordinary run",
}
TOP_MODULES = 10


def modules():
    """{"losses.modules": its file, …}, without the front door, which names everything."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        if name != "__init__":
            found[name] = file
    return found


def imported_parts(file):
    """Parts of the package that a file imports, also in functions, but not for types only."""
    tree = ast.parse(file.read_text("utf-8"))
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped |= set(ast.walk(node))
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "fairmargin":
            names = [f"fairmargin.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            names = [node.module]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("fairmargin.")}
    return found


def test_every_part_has_its_place():
    assert {name.partition(".")[0] for name in modules()} == set(ORDER)


def test_the_top_of_the_package_is_short():
    modules = [file for file in PACKAGE.glob("*.py") if not file.name.startswith("__")]
    assert len(modules) <= TOP_MODULES


def test_imports_go_downwards():
    upward = set()
    for name, file in modules().items():
        part = name.partition(".")[0]
        for other in imported_parts(file) - {part}:
            if ORDER.index(other) > ORDER.index(part):
                upward.add((name, other))
    assert upward == set(EXCEPTIONS)


def test_losses_know_no_batch_and_reports_no_data():
    above = {
        "losses": {"batch", "data", "networks"},
        "report": {"data", "methods", "losses", "loop"},
    }
    for name, file in modules().items():
        forbidden = above.get(name.partition(".")[0], set())
        assert not imported_parts(file) & forbidden, name
