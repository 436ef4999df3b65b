"""The audit of a dataset finds and names what is there, and reports nothing where nothing is."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fairmargin.audit._dataset import audit_data, clusters
from fairmargin.batch import DataInfo
from fairmargin.data import build
from fairmargin.data.inject import inject
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, plain

# Left out of the inner loop.
pytestmark = pytest.mark.slow


def noise(n: int, classes: int = 2, *, side: int = 8, labels: torch.Tensor | None = None) -> Data:
    """Pictures of noise, in which nothing tells the label."""
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=g)
    split = ArraySplit(pixels, torch.arange(n) % classes if labels is None else labels)
    names = tuple(f"class {y}" for y in range(classes))
    info = DataInfo("noise", names, (), (3, side, side), torch.zeros(classes, 0).long())
    return Data(split, split, split, info, plain(*HALF), plain(*HALF))


def attribute(found, name):
    return next(one for one in found.json["attributes"] if one["name"] == name)


@pytest.fixture(scope="module")
def biased():
    return audit_data(build("biased-mnist-mini", rho=0.95), permutations=199)


def test_background_colour_is_first(biased):
    first = biased.json["attributes"][0]
    assert (first["rank"], first["name"], first["verdict"]) == (1, "background colour", "shortcut")
    assert first["p_corrected"] == pytest.approx(1 / 200)
    assert first["strength"] == pytest.approx((0.95 - 0.1) / 0.9, abs=0.02)
    assert first["follows_known_bias"] == 1
    assert (
        "Background colour alone tells the label 95 %" in biased.verdict or "96 %" in biased.verdict
    )
    assert attribute(biased, "mean colour")["echo_of"] == "background colour"
    assert attribute(biased, "edge density")["verdict"] == "correlate"


def test_what_may_see_the_digit_is_no_shortcut(biased):
    found = attribute(biased, "thumbnail clusters")
    assert found["strength"] > 0.8
    assert found["verdict"] == "correlate"
    assert "thumbnail clusters" not in biased.json["shortcuts"]


def test_numbers_are_consistent(biased):
    json.dumps(biased.json, allow_nan=False)
    assert [one["rank"] for one in biased.json["attributes"]] == list(
        range(1, len(biased.json["attributes"]) + 1)
    )
    for one in biased.json["attributes"]:
        assert one["balanced_accuracy"] == pytest.approx(np.mean(list(one["recall"].values())))
        assert one["strength"] == pytest.approx((one["balanced_accuracy"] - 0.1) / 0.9)
        assert one["p"] <= one["p_corrected"] <= 1
    assert biased.json["settings"]["samples"] == 3600
    assert biased.json["settings"]["scored"] in (
        1795,
        1796,
        1797,
        1798,
        1799,
        1800,
    )  # half of every class
    assert biased.json["planted"] is None


@pytest.mark.parametrize("seed", [0, 1])
def test_without_a_shortcut_none_is_reported(seed):
    found = audit_data(
        build("biased-mnist-mini", rho=0.1, seed=seed), samples=1200, permutations=199
    )
    assert found.json["shortcuts"] == []
    assert found.verdict.startswith("No shortcut found among 17 attributes")
    colour = attribute(found, "background colour")
    assert colour["verdict"] == "nothing"
    assert (
        colour["follows_known_bias"] is None
    )  # a bias that goes with no class is nothing to follow
    assert (
        attribute(found, "edge density")["verdict"] == "correlate"
    )  # ones are thin, and that is no fault of the data


@pytest.mark.slow
def test_unbiased_in_four_seeds():
    """`python -m benchmarks.audit unbiased` looks at twenty."""
    reported = []
    for seed in range(4):
        data = build("biased-mnist-mini", rho=0.1, seed=seed)
        found = audit_data(data, seed=seed, leave_out=("copies", "problems"))
        reported += found.json["shortcuts"]
    assert reported == []


def test_nothing_in_noise():
    found = audit_data(noise(400, 4), permutations=199)
    assert {one["verdict"] for one in found.json["attributes"]} == {"nothing"}
    ids = [section.id for section in found.sections]
    assert ids == ["ranking", "copies", "problems", "method"]


@pytest.mark.parametrize(
    ("kind", "by"), [("colour", "background colour"), ("patch", "border layout")]
)
def test_planted_shortcuts_are_found(kind, by):
    found = audit_data(inject(build("mnist-mini"), f"{kind}:0.95"), samples=1200, permutations=199)
    planted = found.json["planted"]
    assert planted == {
        "shortcut": f"{kind}:0.95",
        "found": True,
        "by": by,
        "rank": 1,
        "p_corrected": pytest.approx(1 / 200),
    }
    assert found.sections[0].id == "planted"
    assert by in found.sections[0].lead


def test_a_planted_attribute_at_chance_is_not_reported():
    found = audit_data(inject(build("mnist-mini"), "colour:0.1"), samples=1200, permutations=199)
    assert found.json["planted"]["found"] is False
    assert found.json["shortcuts"] == []


def test_a_shortcut_without_contradictions_is_found_and_doubted():
    found = audit_data(inject(noise(300, 3), "patch:1"), permutations=199)
    assert found.json["planted"]["found"]
    assert attribute(found, "border layout")["contradicting"] == 0
    assert "under another name" in str(
        next(s for s in found.sections if s.id == "ranking").tables[0].rows[0][-1]
    )


def test_what_only_many_attributes_tell_together():
    """Class 0 is dark and flat or light and rough, class 1 the reverse: neither alone tells."""
    data = noise(1200, 2, side=12)
    labels, random = data.train.labels, torch.Generator().manual_seed(1)
    light = torch.rand(1200, generator=random) < 0.5
    rough = light ^ (labels == 1)
    texture = data.train.pixels.float() / 255 - 0.5
    level = 60 + 100 * light + 20 * torch.rand(1200, generator=random)
    pixels = level[:, None, None, None] + texture * (20 + 60 * rough[:, None, None, None])
    found = audit_data(
        replace(data, train=replace(data.train, pixels=pixels.to(torch.uint8))), permutations=199
    )
    assert attribute(found, "blind model")["verdict"] == "shortcut"
    for name in ("brightness", "sharpness"):
        assert attribute(found, name)["strength"] < 0.35


def test_metadata_columns():
    data = noise(400)
    random = np.random.default_rng(0)
    labels = data.train.labels.numpy()
    scanner = np.where(random.random(400) < 0.9, labels, 1 - labels)
    columns = {
        "scanner": ["AB"[s] for s in scanner],
        "age": [str(a) for a in random.integers(0, 90, 400)],
        "patient": [f"p{i}" for i in range(400)],
    }
    found = audit_data(data, columns=columns, permutations=199)
    assert found.json["shortcuts"] == ["scanner"]
    assert attribute(found, "age")["verdict"] == "nothing"
    assert any("patient" in said for said in found.json["left_out"])
    assert "Scanner alone" in found.verdict
    figure = next(section for section in found.sections if section.id == "look-1").figures[0]
    assert figure.title == "Scanner of each class"
    shares = [float(text) for text in re.findall(r"class [01]: ([0-9.]+) % [AB]", figure.body)]
    assert len(shares) == 4
    assert shares[0] + shares[1] == pytest.approx(100, abs=0.11)
    assert shares[0] > 80


def test_two_independent_shortcuts_are_both_named():
    data = noise(2000, 2)
    random = np.random.default_rng(0)
    labels = data.train.labels.numpy()
    draw = lambda share: ["AB"[y if random.random() < share else 1 - y] for y in labels]
    first, second = draw(0.95), draw(0.9)
    found = audit_data(data, columns={"a": first, "copy": first, "b": second}, permutations=199)
    assert found.json["shortcuts"] == ["a", "copy", "b"]
    assert [attribute(found, name)["echo_of"] for name in ("a", "copy", "b")] == [None, "a", None]
    assert "Beside it stand: b. 1 more attribute echoes them." in found.verdict


def test_samples_are_a_draw_that_the_seed_repeats():
    data = build("biased-mnist-mini", rho=0.95)
    a, b, c = (audit_data(data, samples=300, permutations=199, seed=seed) for seed in (0, 0, 1))
    assert a.json["settings"]["samples"] == 300
    assert a.json["attributes"] == b.json["attributes"]
    assert a.json["attributes"] != c.json["attributes"]


def test_small_classes_are_left_out_or_warned_of():
    labels = torch.tensor([0] * 60 + [2] * 60 + [3] * 8 + [1])
    found = audit_data(noise(129, 4, labels=labels), permutations=199)
    assert found.json["classes"] == ["class 0", "class 2", "class 3"]
    assert "class 1" in found.warnings[0]
    assert 'class "class 3" has only 8 samples' in found.warnings[1]


def test_known_bias_with_a_class_left_out():
    """Classes are renumbered if one is left out; the bias still meets the right ones."""
    data = inject(noise(300, 3), "patch:0.95")
    kept = (data.train.labels != 0).nonzero()[:, 0]
    found = audit_data(replace(data, train=data.train.subset(kept)), permutations=199)
    assert found.json["classes"] == ["class 1", "class 2"]
    assert attribute(found, "border layout")["follows_known_bias"] > 0.9
    assert found.json["planted"]["found"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"permutations": 50},
            "with 50 permutations no p-value is below 0.0196, and alpha is 0.01; take at least 100",
        ),
        ({"alpha": 0.0}, "alpha must lie between 0 and 1; got 0"),
        ({"strong": 1.5}, r"strength of a shortcut must lie in \(0, 1\]; got 1.5"),
        ({"samples": 3}, "at least 40 samples; got 3"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        audit_data(noise(100), **options)


def test_too_little_data():
    with pytest.raises(ValueError, match="noise has 10 of 2"):
        audit_data(noise(10))
    with pytest.raises(ValueError, match="two classes; noise has 100 of 1"):
        audit_data(noise(100, 1))


def test_progress_tells_every_phase():
    told = []
    audit_data(noise(100), permutations=199, progress=lambda *said: told.append(said))
    ended = [(what, total) for what, done, total in told if done == total]
    assert ended == [
        ("looking at pictures", 100),
        ("looking for small marks", 100),
        ("looking for fixed patterns", 100),
        ("asking attributes", 15),
        ("permuting labels", 199),
        ("comparing with the object", 17),
        ("comparing pictures", 300),
        ("looking for copies", 2),
        ("looking for problems", 1),
    ]


def test_clusters_of_few_pictures():
    found = clusters(np.random.default_rng(0).random((60, 192), np.float32), 2, 0)
    assert len(found.levels) == 2
    assert found.sees_shape
