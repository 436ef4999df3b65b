"""The published ways to find groups, against loops written from the papers' formulas."""

import math

import pytest
import torch
import torch.nn.functional as F

from fairmargin.bias.published import (
    clusters_by_silhouette,
    cross_mistakes,
    environments,
    environments_like,
    error_set,
    mean_silhouette,
    slopes,
)
from fairmargin.methods.xrm import flip_probability


def said(n=60, classes=3, seed=0):
    """Logits that are right four times out of five, and labels."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    told = torch.where(torch.rand(n, generator=g) < 0.8, y, (y + 1) % classes)
    return torch.randn(n, classes, generator=g) + 2 * F.one_hot(told, classes), y


def test_the_error_set_is_what_the_model_gets_wrong():
    logits, y = said()
    expected = []
    for row, label in zip(logits.tolist(), y.tolist(), strict=True):
        expected.append(int(max(range(3), key=row.__getitem__) != label))
    assert error_set(logits, y).tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_a_slope_is_the_derivative_by_the_classifiers_scale():
    logits, y = said()
    for i, slope in enumerate(slopes(logits, y).tolist()):
        w = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        F.cross_entropy(w * logits[i].double(), y[i]).backward()
        assert math.isclose(slope, float(w.grad), abs_tol=1e-12)


def irm_ascent(logits, y, seed, steps, rate):
    """EIIL's ascent with autograd and torch's Adam: penalties of two soft environments."""
    start = torch.randn(len(y), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    start.requires_grad_()
    adam = torch.optim.Adam([start], lr=rate)
    for _ in range(steps):
        w = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        each = F.cross_entropy(w * logits.double(), y, reduction="none")
        penalty = 0
        for q in (start.sigmoid(), 1 - start.sigmoid()):
            slope = torch.autograd.grad((q * each).mean(), w, create_graph=True)[0]
            penalty = penalty + slope**2 / 2
        adam.zero_grad()
        (-penalty).backward()
        adam.step()
    return (start.sigmoid() > 0.5).long()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("steps", "rate"), [(1, 0.5), (40, 0.05)])
def test_environments_are_those_of_the_ascent_by_autograd(seed, steps, rate):
    logits, y = said(seed=seed)
    expected = irm_ascent(logits, y, seed, steps, rate)
    if 2 * int(expected.sum()) > len(expected):
        expected = 1 - expected
    assert torch.equal(environments(logits, y, seed=seed, steps=steps, rate=rate), expected)


def test_the_ascent_ends_at_the_best_of_all_partitions():
    logits, y = said(10)
    g = slopes(logits, y)

    def penalty(q):
        return float((q * g).mean() ** 2 + ((1 - q) * g).mean() ** 2)

    partitions = [torch.tensor([k >> i & 1 for i in range(10)]).double() for k in range(1 << 10)]
    best = max(map(penalty, partitions))
    found = environments(logits, y, seed=0, steps=4000, rate=0.01)
    assert penalty(found.double()) == pytest.approx(best)
    assert int(found.sum()) <= 5
    # And samples that were not part of it follow the same sign.
    assert torch.equal(environments_like(found, g, g), found)


def silhouettes(x, groups):
    """Rousseeuw's definition, sample by sample."""
    found = []
    for i in range(len(x)):
        means = {}
        for k in set(groups):
            others = [j for j in range(len(x)) if groups[j] == k and j != i]
            if others:
                means[k] = sum(float((x[i] - x[j]).norm()) for j in others) / len(others)
        if groups.count(groups[i]) == 1:
            found.append(0.0)
            continue
        a, b = means[groups[i]], min(v for k, v in means.items() if k != groups[i])
        found.append((b - a) / max(a, b))
    return found


def test_silhouettes_are_means_over_samples_or_over_clusters():
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).double()
    groups = [0] * 20 + [1] * 7 + [2] * 3
    each = silhouettes(x, groups)
    index = torch.tensor(groups)
    by_cluster = [sum(s for s, k in zip(each, groups, strict=True) if k == c) for c in range(3)]
    expected = sum(total / n for total, n in zip(by_cluster, (20, 7, 3), strict=True)) / 3
    assert mean_silhouette(x, index, seed=0, each_cluster=True) == pytest.approx(expected)
    plain = mean_silhouette(x, index, seed=0, each_cluster=False)
    assert plain == pytest.approx(sum(each) / 30)
    assert mean_silhouette(x, torch.zeros(30).long(), seed=0, each_cluster=True) == -1


def blobs(sizes, seed=0):
    g = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[0.0, 0], [9, 0], [0, 9]])
    parts = [centres[k] + torch.randn(n, 2, generator=g) for k, n in enumerate(sizes)]
    return torch.cat(parts), torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def test_each_class_has_as_many_clusters_as_separate_best():
    (a, of_a), (b, of_b) = blobs((40, 8)), blobs((30, 20, 10), seed=1)
    features = {"train": torch.cat([a, b]), "valid": torch.cat([a[-3:], b[-3:]])}
    labels = {
        "train": torch.tensor([0] * 48 + [1] * 60),
        "valid": torch.tensor([0] * 3 + [1] * 3),
    }
    groups, score = clusters_by_silhouette(features, labels, seed=0)
    assert torch.equal(groups["train"], torch.cat([of_a, of_b]))
    assert groups["valid"].tolist() == [1, 1, 1, 2, 2, 2]
    assert score > 0.6
    fixed, _ = clusters_by_silhouette(features, labels, seed=0, number=2)
    assert fixed["train"].max() == 1
    # Samples that are all alike are one cluster.
    alike = {name: torch.zeros_like(x) for name, x in features.items()}
    assert clusters_by_silhouette(alike, labels, seed=0)[0]["train"].max() == 0


def test_a_cross_mistake_is_the_other_twins():
    g = torch.Generator().manual_seed(0)
    twins, y = torch.randn(2, 40, 3, generator=g), torch.arange(40) % 3
    seen = torch.rand(40, generator=g) < 0.5
    expected, neither = [], []
    for i in range(40):
        wrong = [int(twins[k, i].argmax()) != int(y[i]) for k in range(2)]
        expected.append(int(wrong[1] if seen[i] else wrong[0]))
        neither.append(int(wrong[0] or wrong[1]))
    assert cross_mistakes(twins, y, seen).tolist() == expected
    assert cross_mistakes(twins, y, None).tolist() == neither


def test_a_guess_never_flips_a_label_and_certainty_always_does():
    found = flip_probability(torch.tensor([0.25, 0.625, 1.0]), 4)
    assert found.tolist() == pytest.approx([0, 0.5, 1])
