import math

import numpy as np
import pytest
from scipy.stats import fisher_exact

from fairmargin.audit.slices import ErrorRate, find_slices, holm


def blobs(seed, n=900, classes=3, dim=6, hidden=0.15):
    """(embeddings, labels, hidden): of class 0, a share `hidden` lies apart from the rest."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    apart = (labels == 0) & (random.random(n) < hidden)
    x = random.normal(size=(n, dim)) + 8 * np.eye(dim)[labels]
    x[apart] += 6 * np.eye(dim)[-1]
    return x.astype(np.float32), labels, apart


def mistaken(labels, wrong, classes=3):
    return np.where(wrong, (labels + 1) % classes, labels)


def test_a_planted_slice_is_found():
    x, y, apart = blobs(0)
    random = np.random.default_rng(1)
    found = find_slices(x, y, mistaken(y, random.random(len(y)) < np.where(apart, 0.7, 0.05)))
    assert len(found.found) == 1
    one = found.found[0]
    assert one.label == 0
    members = np.isin(np.arange(len(y)), one.members)
    assert (members & apart).sum() / (members | apart).sum() > 0.9
    assert one.confirmation.low > one.rest.high
    assert one.corrected < 0.001


def test_members_and_mistakes_are_what_they_say():
    x, y, apart = blobs(0)
    wrong = (np.arange(len(y)) % 5 > 0) & apart
    one = find_slices(x, y, mistaken(y, wrong)).found[0]
    assert (y[one.members] == one.label).all()
    assert set(one.mistakes) == set(one.members[wrong[one.members]])
    assert one.discovery.n + one.confirmation.n == len(one.members)
    assert one.discovery.wrong + one.confirmation.wrong == len(one.mistakes)
    assert one.confirmation.n + one.rest.n == (y == 0).sum() // 2  # the second half of the class
    centre = x[one.members].mean(0)
    distance = np.linalg.norm(x[one.members] - centre, axis=1)
    assert distance[:10].mean() < distance[-10:].mean()


def test_p_is_the_exact_test_of_fisher_on_the_second_half():
    x, y, apart = blobs(2)
    random = np.random.default_rng(21)
    one = find_slices(x, y, mistaken(y, random.random(len(y)) < np.where(apart, 0.7, 0.1))).found[0]
    inside, outside = one.confirmation, one.rest
    table = [[inside.wrong, inside.n - inside.wrong], [outside.wrong, outside.n - outside.wrong]]
    assert one.p == pytest.approx(fisher_exact(table, alternative="greater").pvalue)


@pytest.mark.slow
def test_random_mistakes_are_not_reported():
    reported = 0
    for seed in range(20):
        x, y, _ = blobs(seed)
        wrong = np.random.default_rng(100 + seed).random(len(y)) < 0.2
        reported += bool(find_slices(x, y, mistaken(y, wrong), seed=seed).found)
    assert reported <= 1


def test_a_perfect_model_has_no_slices_and_tests_none():
    x, y, _ = blobs(0)
    found = find_slices(x, y, y)
    assert found.found == ()
    assert found.tested == 0


def test_a_difference_too_small_to_matter_is_left_out():
    x, y, apart = blobs(3, n=6000, hidden=0.5)
    wrong = np.random.default_rng(31).random(len(y)) < np.where(apart, 0.25, 0.1)
    predicted = mistaken(y, wrong)
    assert find_slices(x, y, predicted, clusters=2).found
    assert not find_slices(x, y, predicted, clusters=2, margin=0.3).found


def test_small_classes_are_named():
    x, y, _ = blobs(0)
    y = y.copy()
    y[:15] = 3
    found = find_slices(
        x, y, np.full(len(y), -1)
    )  # a model that never answers is wrong everywhere alike
    assert found.left_out == (3,)
    assert found.found == ()


def test_equal_embeddings_make_no_slices():
    y = np.arange(200) % 2
    found = find_slices(np.ones((200, 4), np.float32), y, np.where(np.arange(200) < 50, 1 - y, y))
    assert found.found == ()


def test_the_same_seed_finds_the_same():
    x, y, apart = blobs(4)
    predicted = mistaken(y, apart)
    first, second = (find_slices(x, y, predicted, seed=9) for _ in range(2))
    assert [one.p for one in first.found] == [one.p for one in second.found]
    assert all(
        np.array_equal(a.members, b.members) for a, b in zip(first.found, second.found, strict=True)
    )


def test_wide_embeddings_are_reduced_and_the_slice_survives():
    x, y, apart = blobs(5)
    noise = np.random.default_rng(5).normal(size=(len(x), 120)).astype(np.float32) * 0.3
    found = find_slices(np.concatenate([x, noise], 1), y, mistaken(y, apart))
    assert [one.label for one in found.found] == [0]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_wilson_of_an_error_rate():
    rate = ErrorRate.of(0, 10)
    assert rate.value == 0
    assert rate.low == pytest.approx(0, abs=1e-12)
    assert rate.high == pytest.approx(1 / (1 + 10 / 1.959963984540054**2))
    assert not math.isnan(ErrorRate.of(10, 10).low)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": np.zeros(3, int)}, r"labels must have shape \[10\]"),
        ({"embeddings": np.zeros(10, np.float32)}, "shape"),
        ({"clusters": 1}, "at least 2"),
        ({"alpha": 0}, "between 0 and 1"),
    ],
)
def test_wrong_input_is_said_so(change, said):
    given = {
        "embeddings": np.zeros((10, 2), np.float32),
        "labels": np.zeros(10, int),
        "predicted": np.zeros(10, int),
    }
    with pytest.raises(ValueError, match=said):
        find_slices(**given | change)
