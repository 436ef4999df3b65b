"""The documentation site: every link leads somewhere, the reference is whole, the pages build."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fairmargin import losses

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tools" / "docs_site.py"


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("docs_site", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_site"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["docs_site"]


@pytest.fixture(scope="module")
def pages(site, tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "docs"
    return out, site.prepare(out)


def test_every_relative_link_has_its_file(site, pages):
    """`prepare` refuses links to missing files; what it writes must hold together too."""
    out, files = pages
    assert len(files) > 30
    for file in files:
        text = re.sub(r"^```.*?^```|`[^`\n]+`", "", file.read_text("utf-8"), flags=re.M | re.S)
        for _, link, _ in site.LINK.findall(text):
            path = link.partition("#")[0]
            if path and "://" not in link and not link.startswith("mailto:"):
                assert (file.parent / path).exists(), f"{file.relative_to(out)}: {link}"


def test_every_page_is_in_the_navigation(pages):
    out, files = pages
    project = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]

    def leaves(entry):
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                for inner in value:
                    yield from leaves(inner)

    shown = [page for entry in project["nav"] for page in leaves(entry)]
    assert sorted(shown) == sorted(file.relative_to(out).as_posix() for file in files)


def test_the_reference_has_every_loss_once(pages):
    out, _ = pages
    text = (out / "api" / "losses.md").read_text("utf-8")
    shown = re.findall(r"^## `(\w+)`$", text, flags=re.M)
    assert sorted(shown) == sorted(losses.__all__)


def test_each_module_of_the_reference_has_entries(pages):
    out, _ = pages
    for page in (out / "api").glob("*.md"):
        assert page.read_text("utf-8").count("[source]") >= 1, page.name


def test_a_link_to_a_missing_file_is_an_error(site):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.md leads nowhere"):
        site.rewrite_links("See [this](nowhere.md).", ROOT / "docs")


def test_links_out_of_docs_lead_to_the_repository(site):
    text = "[a](../src/fairmargin/loop.py) [b](losses.md#fairkl) `[c](d)` [e](https://f.org)"
    found = site.rewrite_links(text, ROOT / "docs")
    repository = "https://github.com/fairmargin/fairmargin/blob/main"
    assert found == text.replace("../src", f"{repository}/src")


def test_signatures_and_sections(site):
    source = '''
def f(x: int, /, y=1, *, scale: float = 2.0, **more: int) -> str:
    """Do it.

    Shapes [N, D] and a < b.

    Args:
        scale: how large,
            at least 1.
    """
'''
    node = site.ast.parse(source).body[0]
    line = "f(x: int, /, y=1, *, scale: float = 2.0, **more: int) -> str"
    assert site.signature(node) == line
    text = "\n".join(site.docstring(site.ast.get_docstring(node)))
    assert "Shapes \\[N, D\\] and a \\< b." in text
    assert "- `scale`: how large,\n    at least 1." in text


def test_the_snippets_for_researchers_run():
    """They are one script, cut into pieces."""
    text = (ROOT / "docs" / "start-researcher.md").read_text("utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    assert len(snippets) >= 5
    namespace = {}
    for snippet in snippets:
        exec(compile(snippet, "docs/start-researcher.md", "exec"), namespace)
    assert namespace["predicted"].shape == (256,)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="needs zensical")
def test_the_site_builds_without_a_warning(tmp_path, pages):
    out, _ = pages
    shutil.copytree(out, tmp_path / "build" / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "build" / "site" / "index.html").is_file()
    assert "eps_supinfonce" in (tmp_path / "build" / "site" / "search.json").read_text("utf-8")


def test_borrowed_arguments_are_shown(site):
    page = "\n".join(site.reference("losses", alone=True))
    function = page[page.index("## `fairkl`") : page.index("## `fairkl_terms`")]
    assert "divergence: Divergence = 'kl'" in function
    assert "**settings" not in function
    shell = page[page.index("## `FairKL`") :].split("```")[1]
    assert "divergence: Divergence = 'kl'" in shell
    assert "features" not in shell


def test_training_and_loading_are_in_the_reference(site):
    page = "\n".join(site.reference("api", alone=False) + site.reference("export", alone=False))
    for name in ("`train`", "`TrainedRun.report`", "`load`", "`Model.predict`", "`export_onnx`"):
        assert name in page
