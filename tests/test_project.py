"""What the project says of itself in several places is the same in all of them."""

import re
import tomllib
from pathlib import Path

import pytest

from fairmargin import __version__

ROOT = Path(__file__).parents[1]


def text(name):
    return (ROOT / name).read_text("utf-8")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads(text("pyproject.toml"))["project"]


@pytest.fixture(scope="module")
def pinned():
    return dict(line.split("==") for line in text("constraints.txt").splitlines()[1:])


def test_the_version_has_its_section_in_the_changelog():
    assert re.search(
        rf"^## {re.escape(__version__)} - \d{{4}}-\d\d-\d\d$", text("CHANGELOG.md"), re.M
    )
    assert f"\nversion: {__version__}\n" in text("CITATION.cff")


def test_the_changelog_names_modules_that_exist():
    """The second column of the table of moved modules."""
    for line in text("CHANGELOG.md").splitlines():
        if not line.startswith("| `fairmargin."):
            continue
        now = line.split("|")[2]
        for name in re.findall(r"`fairmargin\.([\w.]+)`", now):
            path = ROOT / "src" / "fairmargin" / name.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").is_file(), name


def test_every_tested_python_is_in_the_classifiers(project):
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]
    tested = jobs["tests"]["strategy"]["matrix"]["python"]
    classifiers = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert tested == classifiers
    assert project["requires-python"] == f">={tested[0]}"


def test_workflows_may_only_read_and_pin_their_actions():
    yaml = pytest.importorskip("yaml")
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(file.read_text("utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            assert "permissions" not in job, name
            assert job["timeout-minutes"], name
            for step in job["steps"]:
                assert re.search(r"@v\d+$", step.get("uses", "@v1")), step


def test_issue_templates_are_forms():
    yaml = pytest.importorskip("yaml")
    for name in ("bug", "feature", "reproduction"):
        form = yaml.safe_load(text(f".github/ISSUE_TEMPLATE/{name}.yml"))
        assert form["name"]
        assert form["description"]
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids)


def test_one_version_of_each_tool(pinned):
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    ruff = next(repo for repo in hooks if "ruff" in repo["repo"])
    assert ruff["rev"] == f"v{pinned['ruff']}"
    assert f"torch=={pinned['torch']}+cpu" in text(".github/workflows/ci.yml")


# Tested with stand-ins, so there is no version to pin.
STANDINS = {"wandb", "mlflow", "trackio"}


def test_every_extra_is_pinned(project, pinned):
    names = {name.lower().replace("_", "-") for name in pinned} | STANDINS
    for extra in project["optional-dependencies"].values():
        for requirement in extra:
            name = re.match(r"[\w.-]+", requirement).group().lower()
            assert name in names | {"fairmargin"}, requirement


def test_urls_lead_to_the_repository(project):
    for name in ("Homepage", "Repository", "Issues", "Changelog"):
        assert project["urls"][name].startswith("https://github.com/fairmargin/fairmargin")
