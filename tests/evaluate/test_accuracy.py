import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmargin.data.bias import assign_by_count, count_cells
from fairmargin.evaluate import MEANINGS, NAMES
from fairmargin.evaluate.accuracy import (
    accuracies,
    aligned_cells,
    equalised_odds_gap,
    group_table,
    small_groups,
    values,
    wilson,
)


def draw(seed=0, n=400, classes=3, biases=4, unknown=0.1):
    """(predicted, labels, bias, training counts); cells are right to different degrees."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    bias = torch.randint(biases, (n,), generator=g)
    right = (
        torch.rand(n, generator=g)
        < 0.3 + 0.6 * torch.rand(classes, biases, generator=g)[labels, bias]
    )
    predicted = torch.where(right, labels, torch.randint(classes, (n,), generator=g))
    bias = torch.where(torch.rand(n, generator=g) < unknown, -1, bias)
    return predicted, labels, bias, torch.randint(1, 200, (classes, biases), generator=g)


def loops(predicted, labels, bias, counts, least=10):
    """The six conventions in plain Python."""
    samples = list(zip(predicted.tolist(), labels.tolist(), bias.tolist(), strict=True))
    counts = counts.tolist()
    total = sum(map(sum, counts))
    found = {"plain": sum(p == y for p, y, _ in samples) / len(samples)}
    cells = {}
    for p, y, b in samples:
        if b >= 0:
            cells.setdefault((y, b), []).append(p == y)
    accuracy = {cell: sum(right) / len(right) for cell, right in cells.items()}
    found["cell-mean"] = sum(accuracy.values()) / len(accuracy)
    for name in ("aligned", "conflicting"):
        right = []
        for (y, b), answers in cells.items():
            over = counts[y][b] / sum(counts[y]) > sum(row[b] for row in counts) / total
            right += answers if over == (name == "aligned") else []
        found[name] = sum(right) / len(right)
    found["worst-group"] = min(
        accuracy[cell] for cell, right in cells.items() if len(right) >= least
    )
    weight = {cell: counts[cell[0]][cell[1]] for cell in cells}
    found["train-weighted"] = sum(accuracy[cell] * weight[cell] for cell in cells) / sum(
        weight.values()
    )
    return found


def test_every_convention_has_a_sentence():
    assert tuple(MEANINGS) == NAMES
    assert all(sentence.endswith(".") for sentence in MEANINGS.values())


@pytest.mark.parametrize("seed", range(5))
def test_conventions_equal_loops(seed):
    predicted, labels, bias, counts = draw(seed)
    expected = loops(predicted, labels, bias, counts)
    found, warnings = accuracies(predicted, labels, bias, counts, resamples=20)
    assert tuple(found) == NAMES
    assert not warnings
    for name in NAMES:
        assert found[name].value == pytest.approx(expected[name], abs=1e-12), name
    assert values(predicted, labels, bias, counts) == pytest.approx(expected, abs=1e-12)


def test_order_of_samples_does_not_matter():
    predicted, labels, bias, counts = draw(1)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    first = accuracies(predicted, labels, bias, counts)
    assert first == accuracies(predicted[shuffled], labels[shuffled], bias[shuffled], counts)


def test_numbers_come_from_the_seed():
    drawn = draw(1)
    assert accuracies(*drawn, seed=1) == accuracies(*drawn, seed=1)
    assert accuracies(*drawn, seed=1) != accuracies(*drawn, seed=2)


def test_known_vector():
    # Cells (0,0): 2 of 2 right; (0,1): 0 of 1; (1,1): 1 of 2. One sample of unknown bias, wrong.
    labels, bias = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 1, -1])
    predicted, counts = torch.tensor([0, 0, 1, 1, 0, 0]), torch.tensor([[90, 10], [10, 90]])
    found = values(predicted, labels, bias, counts, least=1)
    assert found == pytest.approx(
        {
            "plain": 3 / 6,
            "cell-mean": (1 + 0 + 1 / 2) / 3,
            "aligned": 3 / 4,
            "conflicting": 0,
            "worst-group": 0,
            "train-weighted": (90 * 1 + 10 * 0 + 90 * 0.5) / 190,
        }
    )
    assert values(predicted, labels, bias, counts, least=2)["worst-group"] == 0.5


def test_a_biased_classifier_shows_in_the_right_places():
    g = torch.Generator().manual_seed(0)
    labels, bias = torch.randint(10, (2000,), generator=g), torch.randint(10, (2000,), generator=g)
    counts = torch.ones(10, 10, dtype=torch.long) + 980 * torch.eye(10, dtype=torch.long)
    found = values(bias, labels, bias, counts)  # it answers the bias
    assert found["aligned"] == 1
    assert found["conflicting"] == found["worst-group"] == 0
    assert found["cell-mean"] == pytest.approx(0.1)
    assert found["train-weighted"] == pytest.approx(981 / 990)


def test_aligned_cells_of_biased_mnist_are_the_diagonal():
    labels = np.random.RandomState(0).randint(10, size=3000)
    source, bias = assign_by_count(labels, 0.9, np.random.RandomState(1))
    counts = count_cells(torch.from_numpy(labels[source]), torch.from_numpy(bias), 10, 10)
    assert torch.equal(aligned_cells(counts), torch.eye(10, dtype=torch.bool))


def test_aligned_compares_with_the_bias_overall():
    # Hair by gender as in CelebA: most dark-haired people are women here, but fewer than among all.
    counts = torch.tensor([[71629, 66874], [22880, 1387]])
    assert aligned_cells(counts).tolist() == [[False, True], [True, False]]


def test_aligned_cells_of_nothing():
    assert not aligned_cells(
        torch.tensor([[3, 6], [2, 4]])
    ).any()  # independent: nothing is over-represented
    assert aligned_cells(torch.tensor([[0, 0], [5, 0], [0, 5]])).tolist() == [
        [False] * 2,
        [True, False],
        [False, True],
    ]
    assert aligned_cells(torch.zeros(3, 0, dtype=torch.long)).shape == (3, 0)


def test_without_bias_only_plain_is_left():
    predicted, labels, bias, counts = draw()
    for cue in (None, torch.full_like(bias, -1)):
        found, warnings = accuracies(predicted, labels, cue, counts)
        assert list(found) == ["plain"]
        assert found["plain"].value == pytest.approx((predicted == labels).double().mean().item())
        assert found["plain"].low < found["plain"].value < found["plain"].high
        assert warnings == []
    no_biases = torch.zeros(3, 0, dtype=torch.long)
    assert list(accuracies(predicted, labels, None, no_biases)[0]) == ["plain"]


def test_an_empty_set_has_no_accuracy():
    nothing = torch.zeros(0, dtype=torch.long)
    assert accuracies(nothing, nothing, nothing, torch.ones(2, 2)) == ({}, [])
    assert values(nothing, nothing, None, torch.ones(2, 2)) == {}


def test_a_name_without_samples_is_absent():
    predicted, labels, bias = torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([1, 0])
    found, warnings = accuracies(predicted, labels, bias, torch.tensor([[99, 1], [1, 99]]), least=1)
    assert list(found) == ["plain", "cell-mean", "conflicting", "worst-group", "train-weighted"]
    assert warnings == [
        "the train-weighted accuracy leaves out 99.0% of the training samples, whose groups have "
        "no test samples"
    ]
    found = values(predicted, labels, bias, torch.tensor([[99, 0], [0, 99]]))
    assert "train-weighted" not in found


def test_worst_group_falls_back_with_a_warning():
    predicted, labels, bias = (
        torch.tensor([0, 0, 1]),
        torch.tensor([0, 0, 0]),
        torch.tensor([0, 0, 1]),
    )
    found, warnings = accuracies(predicted, labels, bias, torch.ones(1, 2))
    assert found["worst-group"].value == 0
    assert warnings == [
        "no group has 10 test samples; the worst-group accuracy is the lowest of all groups"
    ]


def test_no_answer_is_never_right():
    predicted, labels = torch.full((20,), -1), torch.zeros(20, dtype=torch.long)
    found, _ = accuracies(predicted, labels, torch.zeros_like(labels), torch.ones(1, 1))
    assert all(interval.value == interval.low == 0 for interval in found.values())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.sampled_from([0.5, 0.9, 0.99]))
def test_intervals_contain_the_value(seed, n, confidence):
    found, _ = accuracies(*draw(seed, n=n), resamples=30, confidence=confidence, seed=seed)
    for name, interval in found.items():
        assert 0 <= interval.low <= interval.value <= interval.high <= 1, name


def test_bootstrap_covers_the_truth():
    g = torch.Generator().manual_seed(0)
    labels, bias = torch.arange(2000) % 2, (torch.arange(2000) // 2) % 2
    counts, p = torch.tensor([[80, 20], [30, 70]]), torch.tensor([[0.9, 0.6], [0.4, 0.8]])
    truth = {
        "plain": 0.675,
        "cell-mean": 0.675,
        "aligned": 0.85,
        "conflicting": 0.5,
        "train-weighted": 0.76,
    }
    hits = dict.fromkeys(truth, 0)
    trials = 300
    for trial in range(trials):
        right = torch.rand(2000, generator=g) < p[labels, bias]
        found, _ = accuracies(
            torch.where(right, labels, 1 - labels), labels, bias, counts, resamples=200, seed=trial
        )
        for name in truth:
            hits[name] += found[name].low <= truth[name] <= found[name].high
    for (
        name,
        count,
    ) in hits.items():  # 95 % of 300 is 285; four standard deviations of a binomial are 15
        assert 265 <= count <= 299, (name, count)


def test_bootstrap_has_the_width_of_the_binomial():
    labels = torch.zeros(1000, dtype=torch.long)
    predicted = (torch.arange(1000) >= 800).long()  # 0.8 right
    interval = accuracies(predicted, labels, None, torch.ones(2, 1), resamples=4000)[0]["plain"]
    half = 1.96 * math.sqrt(0.8 * 0.2 / 1000)
    assert interval.low == pytest.approx(0.8 - half, abs=0.003)
    assert interval.high == pytest.approx(0.8 + half, abs=0.003)


def test_many_draws_are_made_in_parts(monkeypatch):
    drawn = draw()
    whole = accuracies(*drawn, resamples=100)
    monkeypatch.setattr("fairmargin.evaluate.accuracy.DRAWS", 60)
    assert accuracies(*drawn, resamples=100) == whole


def test_wilson_known_values():
    # Newcombe (Statistics in Medicine 17, 1998), Table I, method 3.
    cases = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (correct, n), expected in cases.items():
        low, high = wilson(torch.tensor(correct), torch.tensor(n))
        assert (float(low), float(high)) == pytest.approx(expected, abs=5e-5)
    low, high = wilson(torch.tensor([10, 0]), torch.tensor([10, 0]))
    assert high[0] == 1
    assert low[1].isnan()
    assert high[1].isnan()


def test_group_table_equals_loops():
    predicted, labels, bias, _ = draw(2, n=60)
    table = group_table(
        predicted, labels, bias, 4, 5
    )  # one class and one bias value more than there are
    for y in range(4):
        for b in range(5):
            right = [
                bool(p == y)
                for p, t, c in zip(predicted, labels, bias, strict=True)
                if (t, c) == (y, b)
            ]
            assert (int(table.n[y, b]), int(table.correct[y, b])) == (len(right), sum(right))
            if right:
                assert table.low[y, b] <= sum(right) / len(right) <= table.high[y, b]
            else:
                assert table.low[y, b].isnan()
    assert int(table.n.sum()) == int((bias >= 0).sum())


def test_small_groups_are_named():
    n = torch.full((10, 10), 30)
    assert small_groups(n) == []
    n[3, 7], n[0, :3] = 2, 9
    assert small_groups(n) == [
        "4 of 100 groups have fewer than 10 test samples; the smallest, (label=3, bias=7), has 2"
    ]
    n[5] = 0
    assert small_groups(n, least=3)[1] == "10 of 100 groups have no test samples"
    said = small_groups(torch.tensor([[4, 20]]), class_names=["cat"], bias_names=["in", "out"])
    assert said == [
        "1 of 2 groups has fewer than 10 test samples; the smallest, (label=cat, bias=in), has 4"
    ]


def test_equalised_odds_of_two_classes_is_the_usual_one():
    predicted, labels, bias, _ = draw(4, n=300, classes=2, biases=2, unknown=0)

    def rate(y, b):
        chosen = predicted[(labels == y) & (bias == b)]
        return float((chosen == 1).double().mean())

    true_positive, false_positive = abs(rate(1, 0) - rate(1, 1)), abs(rate(0, 0) - rate(0, 1))
    assert equalised_odds_gap(predicted, labels, bias) == pytest.approx(
        max(true_positive, false_positive)
    )


def test_equalised_odds_equals_loops():
    predicted, labels, bias, _ = draw(5, n=200)
    least, worst = 15, 0.0
    for y in range(3):
        for c in range(3):
            rates = []
            for b in range(4):
                cell = [
                    int(p)
                    for p, t, v in zip(predicted, labels, bias, strict=True)
                    if (t, v) == (y, b)
                ]
                rates += [cell.count(c) / len(cell)] if len(cell) >= least else []
            worst = max(worst, max(rates) - min(rates))
    assert equalised_odds_gap(predicted, labels, bias, least=least) == pytest.approx(worst)


def test_equalised_odds_degenerate():
    predicted, labels, bias, _ = draw(6)
    assert equalised_odds_gap(labels, labels, bias) == 0  # a perfect classifier
    assert equalised_odds_gap(predicted, labels, bias, least=1000) is None
    assert equalised_odds_gap(predicted, labels, torch.full_like(bias, -1)) is None
    assert equalised_odds_gap(predicted[:0], labels[:0], bias[:0]) is None
    assert equalised_odds_gap(torch.full_like(labels, -1), labels, bias) == 0


def test_errors_say_what_was_given():
    predicted, labels, bias, counts = draw()
    with pytest.raises(ValueError, match=r"labels must be from 0 to 1, .* got values from 0 to 2"):
        accuracies(predicted, labels, bias, counts[:2])
    with pytest.raises(ValueError, match=r"bias must be from -1 to 1, .* from -1 to 3"):
        accuracies(predicted, labels, bias, counts[:, :2])
    with pytest.raises(ValueError, match="5 predictions for 400 labels"):
        accuracies(predicted[:5], labels, bias, counts)
    with pytest.raises(ValueError, match="5 bias values for 400 labels"):
        accuracies(predicted, labels, bias[:5], counts)
    with pytest.raises(ValueError, match=r"resamples must be at least 1; got 0"):
        accuracies(predicted, labels, bias, counts, resamples=0)
    with pytest.raises(ValueError, match=r"confidence must lie between 0 and 1, like 0.95; got 95"):
        accuracies(predicted, labels, bias, counts, confidence=95)


def test_answers_that_are_all_right_still_leave_doubt():
    """Resampling cannot show any: the interval is Wilson's, of as many samples as it is worth."""
    labels = torch.tensor([0] * 30 + [1] * 10)
    found, _ = accuracies(labels, labels, torch.zeros(40, dtype=torch.long), torch.ones(2, 1))
    expected = {"plain": 40, "cell-mean": 1 / (0.25 / 30 + 0.25 / 10), "worst-group": 10}
    for name, size in expected.items():
        n = torch.tensor(float(size))
        assert found[name].low == pytest.approx(float(wilson(n, n)[0]))
        assert found[name].value == found[name].high == 1
