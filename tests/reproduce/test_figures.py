"""The five figures: the numbers they show, their files, and messages without anything to draw."""

import itertools
import json
import math
import statistics
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

from fairmargin import config
from fairmargin.evaluate.similarity import similarities
from fairmargin.reproduce.figures.deviations import figure_4
from fairmargin.reproduce.figures.illustrations import figure_1, figure_3
from fairmargin.reproduce.figures.measured import Row, figure_2, figure_5
from fairmargin.run import run as train
from fairmargin.runs.record import RunRecord

# Left out of the inner loop.
pytestmark = pytest.mark.slow

METHODS = ("eps-supcon", "eps-supinfonce")
SETS = ("positive-aligned", "positive-conflicting")


def numbers(drawn):
    """Return the numbers that a figure shows, after checks of its pictures."""
    assert drawn.svg.suffix == ".svg"
    assert ElementTree.parse(drawn.svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    with Image.open(drawn.png) as picture:
        picture.load()
        assert picture.format == "PNG"
        assert picture.width == 1540  # 7 inches of 220 dots
        colours = picture.convert("RGB").getcolors(1 << 24)
    assert len(colours) > 50  # more than an empty page
    return json.loads(drawn.numbers.read_text("utf-8"))


def row(method="eps-supcon", rho=0.99, epsilon=0.0, accuracies=(0.9, 0.92, 0.94)):
    return Row(method, rho, epsilon, accuracies)


def grid(left_out=()):
    """A row for each method, ρ and ε; those left out have no accuracies."""
    rows = []
    for place in itertools.product(METHODS, (0.999, 0.99), (0.5, 0.0)):
        method, rho, epsilon = place
        accuracies = () if place in left_out else (rho - 0.1, rho - 0.08)
        rows.append(row(method, rho, epsilon, accuracies))
    return rows


def fake_run(*epochs, seed=0, folder="some-run"):
    """A run whose evaluations hold similarities of random features."""
    g = torch.Generator().manual_seed(seed)
    labels, bias = torch.randint(3, (60,), generator=g), torch.randint(3, (60,), generator=g)
    events = []
    for epoch in epochs:
        features = torch.randn(60, 8, generator=g) + epoch * torch.randn(3, 8, generator=g)[bias]
        found = similarities(features, labels, bias)
        events.append({"event": "evaluation", "epoch": epoch, "test": {}, "similarity": found})
    return RunRecord(Path("runs") / folder, {}, {}, {}, events, None)


def test_figure_1_says_what_a_margin_does(tmp_path):
    shown = numbers(figure_1(tmp_path))
    assert shown["a"]["margin"] == pytest.approx(0.9)
    for panel, least, most in (("b", 0, 0.05), ("c", 0.85, 0.95)):
        points = shown[panel]["points"]
        positives, negatives = (
            [p["distance"] for p in points if p["positive"] is kind] for kind in (True, False)
        )
        # Every positive is closer than every negative.
        assert least < min(negatives) - max(positives) < most
        assert shown[panel]["margin"] == pytest.approx(min(negatives) - max(positives))
        for aligned in (True, False):  # each bias has samples of both classes
            assert sum(p["positive"] for p in points if p["aligned"] is aligned) == 6
            assert sum(not p["positive"] for p in points if p["aligned"] is aligned) == 6
    places = [(p["distance"], p["angle"]) for p in shown["b"]["points"]]
    xy = [(d * math.cos(math.radians(a)), d * math.sin(math.radians(a))) for d, a in places]
    nearest = [
        min((q for q in range(24) if q != p), key=lambda q: math.dist(xy[p], xy[q]))
        for p in range(24)
    ]
    biases = [p["aligned"] for p in shown["b"]["points"]]
    assert [biases[n] for n in nearest] == biases  # without a margin neighbours share the bias


def test_figure_3_has_equal_means_throughout_and_equal_deviations_only_at_last(tmp_path):
    shown = numbers(figure_3(tmp_path))
    for panel, deviation in (("a", 1), ("b", 1), ("c", 0)):
        assert shown[panel]["positive-aligned"] == {"mean": 2, "deviation": 0}
        assert shown[panel]["positive-conflicting"] == {"mean": 2, "deviation": deviation}
    distances = [p["distance"] for p in shown["a"]["points"] if p["positive"] and not p["aligned"]]
    assert sorted(distances) == [1, 1, 3, 3]
    assert shown["a"]["margin"] < 0.05 < 0.5 < min(shown["b"]["margin"], shown["c"]["margin"])


def test_figure_4_has_the_closed_form(tmp_path):
    drawn = figure_4(tmp_path)
    shown = numbers(drawn)
    assert shown["a"]["aligned"] == {"n": 1000, "mean": 2, "deviation": 0.15}
    assert shown["a"]["conflicting"] == {"n": 1000, "mean": 2, "deviation": 0.5}
    ratio = (0.15 / 0.5) ** 2
    assert shown["a"]["kl"] == pytest.approx((ratio - math.log(ratio) - 1) / 2, abs=1e-6)
    assert round(shown["a"]["kl"], 3) == 0.749
    assert shown["b"]["kl"] == 0
    assert ">KL" not in drawn.svg.read_text()  # letters are paths: the same on every machine


def test_figure_2_shows_mean_and_sample_deviation_in_per_cent(tmp_path):
    drawn = figure_2(
        [row(), row("eps-supinfonce", accuracies=[0.5])], tmp_path, budget="80 epochs, seeds 0 to 2"
    )
    shown = numbers(drawn)
    assert shown["budget"] == "80 epochs, seeds 0 to 2"
    first, second = shown["points"]
    assert (first["method"], first["rho"], first["epsilon"]) == ("eps-supcon", 0.99, 0)
    assert first["mean"] == pytest.approx(92)
    assert first["deviation"] == pytest.approx(statistics.stdev([90, 92, 94]))
    assert second["mean"] == pytest.approx(50)
    # One seed has no deviation.
    assert second["deviation"] is None


def test_figure_2_marks_what_was_not_run(tmp_path):
    whole = figure_2(grid(), tmp_path / "whole", budget="b")
    gap = figure_2(grid({("eps-supcon", 0.99, 0.5)}), tmp_path / "gap", budget="b")
    shown = numbers(gap)["points"]
    assert [p["mean"] for p in shown if p["accuracies"] == []] == [None]
    assert len(shown) == len(numbers(whole)["points"]) == 8
    absent = [r for r in grid() if (r.method, r.rho, r.epsilon) != ("eps-supcon", 0.99, 0.5)]
    told = figure_2(absent, tmp_path / "absent", budget="b")
    # A row that is not there looks like a row without accuracies, and not like a whole figure.
    assert told.png.read_bytes() == gap.png.read_bytes() != whole.png.read_bytes()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"no finished run.*fairmargin reproduce figure2"),
        ([row(accuracies=())], r"no finished run.*fairmargin reproduce figure2"),
        (
            [row(accuracies=(91.3,))],
            r"fractions from 0 to 1; eps-supcon at ρ = 0\.99, ε = 0 has 91\.3",
        ),
        ([row(), row()], "two rows of the same ρ and ε"),
        ([row("eps-supkon")], "unknown method of Figure 2 'eps-supkon': did you mean 'eps-supcon'"),
    ],
)
def test_figure_2_refuses(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        figure_2(rows, tmp_path, budget="")
    assert list(tmp_path.iterdir()) == []


def test_figure_5_shows_the_recorded_counts(tmp_path):
    runs = {
        (method, e): fake_run(1, 2, 5, seed=k, folder=method)
        for k, method in enumerate(METHODS)
        for e in (0.1, 0)
    }
    shown = numbers(figure_5(runs, tmp_path, budget="5 epochs"))
    assert shown["budget"] == "5 epochs"
    assert len(shown["panels"]) == 2 * 2 * 2
    for panel in shown["panels"]:
        events = runs[panel["method"], panel["epsilon"]].evaluations()
        assert panel["epochs"] == [1, 2, 5]
        assert panel["run"] == panel["method"]
        assert panel["counts"] == [
            event["similarity"]["sets"][panel["set"]]["counts"] for event in events
        ]
        assert panel["mean"] == [
            event["similarity"]["sets"][panel["set"]]["mean"] for event in events
        ]
        assert len(panel["edges"]) == len(panel["counts"][0]) + 1
    assert {panel["set"] for panel in shown["panels"]} == set(SETS)


def test_figure_5_leaves_out_runs_that_are_not_there(tmp_path):
    shown = numbers(figure_5({("eps-supcon", 0.0): fake_run(3)}, tmp_path))  # one epoch, one method
    assert [panel["set"] for panel in shown["panels"]] == list(SETS)


def test_figure_5_passes_over_epochs_whose_features_were_not_finite(tmp_path):
    broken = fake_run(1, 2, 3)
    broken.metrics[1]["similarity"] = None
    shown = numbers(figure_5({("eps-supcon", 0.0): broken}, tmp_path))
    assert shown["panels"][0]["epochs"] == [1, 3]


def test_figure_5_without_runs_names_the_command(tmp_path):
    with pytest.raises(
        ValueError, match="no runs to draw; make them with: fairmargin reproduce figure5"
    ):
        figure_5({}, tmp_path)
    unasked = fake_run(1)
    del unasked.metrics[0]["similarity"]
    message = r"some-run holds no similarities by epoch.*evaluate\.similarities=true.*"
    with pytest.raises(ValueError, match=message + "fairmargin reproduce figure5"):
        figure_5({("eps-supcon", 0.0): unasked}, tmp_path)
    with pytest.raises(
        ValueError, match="unknown method of Figure 5 'supcon': did you mean 'eps-supcon'"
    ):
        figure_5({("supcon", 0.0): fake_run(1)}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_figure_5_from_a_run_folder(tmp_path):
    small = [
        "data.train=500",
        "data.test=200",
        "network.name=simple-conv-3",
        "network.widths=[4, 8]",
        "network.stride=2",
    ]
    quick = [
        "train.epochs=2",
        "train.batch_size=100",
        "train.device=cpu",
        'evaluate.classifiers=["own"]',
    ]
    overrides = [*small, *quick, "evaluate.similarities=true", "method.epsilon=0.1"]
    chosen = config.load(dataset="biased-mnist-mini", method="eps-supcon", overrides=overrides)
    train(chosen, tmp_path / "run", console=Console(quiet=True))
    shown = numbers(
        figure_5({("eps-supcon", 0.1): RunRecord.read(tmp_path / "run")}, tmp_path / "figures")
    )
    assert [panel["epochs"] for panel in shown["panels"]] == [[1, 2], [1, 2]]
    assert all(sum(counts) > 100 for panel in shown["panels"] for counts in panel["counts"])


@pytest.mark.parametrize("draw", [figure_4, lambda folder: figure_2(grid(), folder, budget="b")])
def test_equal_numbers_give_equal_files(tmp_path, draw):
    first, second = draw(tmp_path / "a"), draw(tmp_path / "b")
    for kind in ("svg", "png", "numbers"):
        assert getattr(first, kind).read_bytes() == getattr(second, kind).read_bytes()
    assert not [path for path in (tmp_path / "a").iterdir() if path.suffix == ".part"]
