import tomllib
from pathlib import Path

import pytest

import fairmargin

PACKAGE = Path(fairmargin.__file__).parent
PROJECT = PACKAGE.parents[1] / "pyproject.toml"


@pytest.mark.skipif(not PROJECT.is_file(), reason="not run from a checkout")
def test_a_wheel_has_every_file_that_the_package_reads():
    """The editable install that these tests use has them in any case."""
    project = tomllib.loads(PROJECT.read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["fairmargin"]
    shipped = set()
    for pattern in patterns:
        shipped |= set(PACKAGE.glob(pattern))
    files = {path for path in PACKAGE.rglob("*") if path.is_file()}
    read = {path for path in files if path.suffix not in (".py", ".pyc")}
    assert len(read) > 20
    assert read == shipped
