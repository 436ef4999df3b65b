"""The audit's page in a real Chromium: nothing cut off, nothing loaded, no errors."""

import numpy as np
import pytest

from fairmargin.audit._dataset import audit_data
from fairmargin.audit.page import write
from fairmargin.audit.retrain import with_retraining
from fairmargin.data import build
from fairmargin.data.inject import inject
from tests.report.test_browser import NARROW, PHONE, PROGRAM, WIDE, browser, problems

__all__ = ["browser"]  # the fixture
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="needs Chromium: no chromium, chromium-browser or google-chrome here"
)
FIGURES = {"look-1-1", "look-1-2"}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Digits with a planted colour, and metadata columns of every kind, one awkwardly named."""
    data = inject(build("mnist-mini"), "colour:0.95")
    labels, random = data.train.labels.numpy(), np.random.default_rng(0)
    told = np.where(random.random(len(labels)) < 0.8, labels, random.integers(0, 10, len(labels)))
    columns = {
        "a column whose name is rather long for a telephone": [
            f"value <{v}> of_some_length" for v in told
        ],
        "age": [f"{y + random.standard_normal():.3f}" for y in told],
    }
    found = audit_data(data, columns=columns, samples=1500, permutations=199)
    accuracy = {"aligned": 0.9, "conflicting": 0.4, "cell-mean": 0.45}
    cured = with_retraining(found, {"ce": accuracy, "fairmargin": accuracy})
    return write(cured, tmp_path_factory.mktemp("audit"))[0]


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (PHONE, "light"), (NARROW, "dark")])
def test_page_is_whole_at(browser, page, width, scheme):
    found = browser.look(page, width, scheme=scheme)
    assert found["width"] == width
    assert problems(found, FIGURES) == []
    assert found["images"] >= 80
    assert found["smallest"] > 7.5  # pixels of the smallest letters in a chart


def test_page_needs_no_script(browser, page):
    assert problems(browser.look(page, PHONE, scripts=False), FIGURES) == []


def test_a_broken_page_is_noticed(browser, page, tmp_path):
    copy = tmp_path / "copy.html"
    whole = (
        page.read_text("utf-8")
        .replace('data-figure="look-1-1"', "")
        .replace("<footer>", "<p style='width:900px'>x</p><footer>")
    )
    copy.write_text(whole, "utf-8")
    found = problems(browser.look(copy, PHONE), FIGURES)
    assert "figure look-1-1 is missing" in found
    assert any(one.startswith("wider than the page: p") for one in found)
