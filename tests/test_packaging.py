import tomllib
from pathlib import Path

import pytest

import fairmargin

PACKAGE = Path(fairmargin.__file__).parent
PROJECT = PACKAGE.parents[1] / "pyproject.toml"


@pytest.mark.skipif(not PROJECT.is_file(), reason="not run from a checkout")
def test_a_wheel_has_every_file_that_the_package_reads():
    """An editable install, which these tests use, has them anyhow."""
    patterns = tomllib.loads(PROJECT.read_text("utf-8"))["tool"]["setuptools"]["package-data"][
        "fairmargin"
    ]
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    read = {
        path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert len(read) > 20
    assert read == shipped
