import math
from itertools import pairwise

import pytest
import torch

from fairmargin import losses
from fairmargin.evaluate import similarity
from fairmargin.evaluate.similarity import SETS, ordering, similarities


def draw(seed=0, n=40, d=3, classes=3, biases=2, agree=0.5):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    bias = torch.where(
        torch.rand(n, generator=g) < agree,
        labels % biases,
        torch.randint(biases, (n,), generator=g),
    )
    features = torch.randn(n, d, generator=g) + torch.randn(classes, d, generator=g)[labels]
    return features.double(), labels, bias


def cosines_by_anchor(features, labels, bias):
    """For each anchor of known bias, the cosines in each of the four sets, in plain Python."""
    rows = [
        ([v / math.sqrt(sum(w * w for w in x)) for v in x], y, b)
        for x, y, b in zip(features.tolist(), labels.tolist(), bias.tolist(), strict=True)
        if b >= 0
    ]
    for i, (zi, yi, bi) in enumerate(rows):
        sets = [[], [], [], []]
        for j, (zj, yj, bj) in enumerate(rows):
            if i != j:
                sets[2 * (yi != yj) + (bi != bj)].append(
                    sum(a * b for a, b in zip(zi, zj, strict=True))
                )
        yield sets


def pooled(features, labels, bias):
    anchors = list(cosines_by_anchor(features, labels, bias))
    return [[s for sets in anchors for s in sets[k]] for k in range(4)]


@pytest.mark.parametrize("pairs", [similarity.PAIRS, 100])
def test_similarities_equal_loops(monkeypatch, pairs):
    monkeypatch.setattr(similarity, "PAIRS", pairs)
    x, y, b = draw()
    b[:4] = -1
    found = similarities(x, y, b, bins=8)
    assert found["samples"] == 36
    assert found["edges"] == pytest.approx([-1 + i / 4 for i in range(9)])
    for name, s in zip(SETS, pooled(x, y, b), strict=True):
        entry = found["sets"][name]
        mean = sum(s) / len(s)
        assert entry["pairs"] == len(s)
        assert entry["mean"] == pytest.approx(mean, abs=1e-12)
        assert entry["std"] == pytest.approx(
            math.sqrt(sum((v - mean) ** 2 for v in s) / len(s)), abs=1e-12
        )
        edges = found["edges"]
        assert entry["counts"] == [sum(edges[i] <= v < edges[i + 1] for v in s) for i in range(8)]


def test_kl_is_that_of_the_loss():
    x, y, b = draw(1)
    b[:3] = -1
    found = similarities(x, y, b)["kl"]
    positives = losses.fairkl(x, y, b, divergence="kl", variance_floor=0).item()
    both = losses.fairkl(x, y, b, divergence="kl", variance_floor=0, negatives=True).item()
    assert found["positive"] == pytest.approx(positives, rel=1e-9)
    assert found["negative"] == pytest.approx(both - positives, rel=1e-9)


def test_samples_are_drawn_by_the_seed():
    x, y, b = draw(2, n=100)
    b[::7] = -1
    first = similarities(x, y, b, most=30, seed=1)
    assert first == similarities(x, y, b, most=30, seed=1)
    assert first != similarities(x, y, b, most=30, seed=2)
    assert first["samples"] == 30
    assert sum(entry["pairs"] for entry in first["sets"].values()) == 30 * 29
    assert similarities(x, y, b, most=85)["samples"] == int((b >= 0).sum()) == 85


def test_order_and_length_do_not_matter():
    x, y, b = draw(3)
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    moved = (
        x[shuffled] * torch.rand(len(y), 1, generator=torch.Generator().manual_seed(1)).double() * 9
    )
    for measure in (similarities, ordering):
        first, second = measure(x, y, b), measure(moved, y[shuffled], b[shuffled])
        assert flat(first) == pytest.approx(flat(second), abs=1e-9)


def flat(value):
    """All numbers of nested dicts and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for entry in value for number in flat(entry)]
    return [] if isinstance(value, str) else [value]


def test_sets_without_pairs_or_spread():
    x, y, _ = draw(4)
    alone = similarities(x, y, torch.zeros_like(y))  # one bias value: nothing conflicts
    assert alone["sets"]["positive-conflicting"] == {
        "pairs": 0,
        "mean": None,
        "std": None,
        "counts": [0] * 64,
    }
    assert alone["kl"] == {"positive": None, "negative": None}
    collapsed = similarities(torch.ones(40, 3).float() * 0.3, *draw(4)[1:])
    assert collapsed["kl"] == {"positive": None, "negative": None}
    assert collapsed["sets"]["negative-aligned"]["mean"] == pytest.approx(1)
    assert (
        collapsed["sets"]["negative-aligned"]["counts"][-1]
        == collapsed["sets"]["negative-aligned"]["pairs"]
        > 0
    )


def loops_of_ordering(features, labels, bias, epsilon):
    """Shares of the links and of wholly ordered anchors over all triples."""
    anchors = list(cosines_by_anchor(features, labels, bias))
    links = []
    for k, margin in enumerate((0, epsilon, 0)):
        shares = []
        for sets in anchors:
            closer, farther = sets[k], sets[k + 1]
            points = [
                0.5 if abs(p - q - margin) < 1e-9 else p - q > margin
                for p in closer
                for q in farther
            ]
            shares += [sum(points) / len(points)] if points else []
        links.append(sum(shares) / len(shares))
    complete = [sets for sets in anchors if all(sets)]
    ordered = [
        all(
            min(sets[k]) >= max(sets[k + 1]) + margin - 1e-9
            for k, margin in enumerate((0, epsilon, 0))
        )
        for sets in complete
    ]
    return links, sum(ordered) / len(ordered)


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_ordering_equals_loops(monkeypatch, seed, epsilon):
    x, y, b = draw(seed, n=30, agree=0.7)
    b[:3] = -1
    x[10:14] = x[4]  # ties
    links, total = loops_of_ordering(x, y, b, epsilon)
    for pairs in (similarity.PAIRS, 100):
        monkeypatch.setattr(similarity, "PAIRS", pairs)
        found = ordering(x, y, b, epsilon=epsilon)
        assert [link["share"] for link in found["links"]] == pytest.approx(links, abs=1e-12)
        assert found["total"] == pytest.approx(total)
    assert [(link["closer"], link["farther"]) for link in found["links"]] == list(pairwise(SETS))


def wholly_biased(label_weight, bias_weight, noise=1e-3):
    """Features made of a label part and a bias part."""
    g = torch.Generator().manual_seed(0)
    y, b = torch.arange(60) % 3, (torch.arange(60) // 3) % 3
    eye = torch.eye(3).double()
    parts = [
        label_weight * eye[y],
        bias_weight * eye[b],
        noise * torch.randn(60, 3, generator=g).double(),
    ]
    return torch.cat(parts, 1), y, b


def test_total_order_where_the_label_leads_and_the_bias_helps():
    x, y, b = wholly_biased(2.0, 1.0)  # cosines: 1, 4/5, 1/5, 0
    found = ordering(x, y, b)
    assert [link["share"] for link in found["links"]] == [1, 1, 1]
    assert found["total"] == 1
    assert ordering(x, y, b, epsilon=0.59)["total"] == 1
    wide = ordering(x, y, b, epsilon=0.61)
    assert [link["share"] for link in wide["links"]] == [1, 0, 1]
    assert wide["total"] == 0


def test_the_middle_link_turns_when_the_bias_leads():
    assert [link["share"] for link in ordering(*wholly_biased(1.0, 2.0))["links"]] == [1, 0, 1]


def test_no_order_where_the_bias_is_absent():
    found = ordering(*wholly_biased(1.0, 0.0))
    shares = [link["share"] for link in found["links"]]
    assert shares[1] == 1
    assert shares[0] == pytest.approx(0.5, abs=0.05)
    assert shares[2] == pytest.approx(0.5, abs=0.05)
    assert found["total"] == 0


def test_collapsed_features_tie():
    x = torch.full((40, 7), 0.1)
    _, y, b = draw(5)
    assert [link["share"] for link in ordering(x, y, b)["links"]] == [0.5, 0.5, 0.5]


def test_ordering_without_the_pairs():
    x, y, _ = draw(6)
    found = ordering(x, y, torch.zeros_like(y))
    assert [link["share"] for link in found["links"]] == [None, None, None]
    assert found["total"] is None


@pytest.mark.parametrize("measure", [similarities, ordering])
def test_errors_say_what_was_given(measure):
    x, y, b = draw()
    with pytest.raises(ValueError, match="two samples of known bias; got 0 of 40"):
        measure(x, y, torch.full_like(b, -1))
    with pytest.raises(ValueError, match="most must be at least 2 samples"):
        measure(x, y, b, most=1)
    with pytest.raises(ValueError, match="bias has 3 entries but features has 40 samples"):
        measure(x, y, b[:3])
    with pytest.raises(ValueError, match="NaN or inf"):
        measure(x * torch.nan, y, b)


def test_ordering_by_class_is_that_of_its_anchors():
    """Class 0 is ordered by the bias and class 1 is not; the whole lies between them."""
    x, y, b = wholly_biased(1.0, 2.0)
    found = ordering(x, y, b)
    assert [one["label"] for one in found["classes"]] == sorted(set(y.tolist()))
    size = torch.bincount(y).double()
    for k, link in enumerate(found["links"]):
        own = torch.tensor([one["shares"][k] for one in found["classes"]])
        assert link["share"] == pytest.approx(float((own * size).sum() / size.sum()))
    torch.manual_seed(0)
    x = torch.randn(40, 6)
    y, b = torch.arange(40) % 2, torch.arange(40) // 2 % 2
    x[y == 0] = torch.nn.functional.one_hot(b[y == 0], 6).float() + 0.01 * x[y == 0]
    first = [one["shares"][0] for one in ordering(x, y, b)["classes"]]
    assert first[0] == 1
    assert abs(first[1] - 0.5) < 0.2
