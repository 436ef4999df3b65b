"""The picture of a dataset: its title inside it, its numbers legible."""

import numpy as np
import pytest
from matplotlib import pyplot as plt

from fairmargin.data import show
from fairmargin.data.own import from_datasets


def samples(bias):
    pixels = np.zeros((16, 16, 3), np.uint8)
    return [(pixels, k % 2, k % 3 % 2) if bias else (pixels, k % 2) for k in range(60)]


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, kept open until the end of the test."""
    drawn, close = [], plt.close
    monkeypatch.setattr(show.plt, "close", drawn.append)
    yield drawn
    close("all")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["x", " ".join(["photographs of cats and dogs"] * 5)])
def test_the_title_is_not_cut(figures, tmp_path, bias, name):
    data = from_datasets(samples(bias), None, samples(bias), name=name)
    show.draw(data, tmp_path / "x.png")
    (figure,) = figures
    # Lay it out anew at the resolution of the screen.
    figure.canvas.draw()
    title = figure.texts[0]
    assert " ".join(title.get_text().split()).startswith(f"{name}, train: ")
    box = title.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1
    # Nor does it lie on the headings; a pixel is within what fonts round.
    assert box.y0 + 1 >= max(ax.title.get_window_extent().y1 for ax in figure.axes)


def test_counts_are_dark_on_light_and_light_on_dark(figures, tmp_path):
    data = from_datasets(samples(True), None, samples(True))
    data.info.counts[:] = 0
    show.draw(data, tmp_path / "x.png")
    (figure,) = figures
    heat_map = figure.axes[2]
    shades = heat_map.images[0]
    for text in heat_map.texts:
        x, y = map(int, text.get_position())
        share = shades.norm(shades.get_array()[y, x])
        assert (text.get_color() == "white") == (share > 0.5)
