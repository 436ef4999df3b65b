"""Scores and p-values against plain loops; no more false alarms than promised; ranks and echoes."""

import numpy as np
import pytest

from fairmargin.audit.attributes import Attribute
from fairmargin.audit.significance import (
    Answers,
    Score,
    ask,
    ask_together,
    echoes,
    halves,
    judge,
    rank,
)


def category(codes: np.ndarray, levels: int) -> Attribute:
    return Attribute("c", "metadata", "category", codes, tuple(map(str, range(levels))))


def numbers(values: np.ndarray) -> Attribute:
    return Attribute("n", "light", "several", values.astype(np.float32))


def saying(predicted: np.ndarray) -> Answers:
    return Answers(category(predicted, 10), predicted, predicted, np.ones(len(predicted)))


def test_halves_cut_every_class_in_two():
    labels = np.random.default_rng(0).integers(0, 5, 103)
    fit, score = halves(labels, seed=3)
    assert sorted([*fit, *score]) == list(range(103))
    for y in range(5):
        assert abs((labels[fit] == y).sum() - (labels[score] == y).sum()) <= 1
    assert np.array_equal(halves(labels, seed=3)[0], fit)
    assert not np.array_equal(halves(labels, seed=4)[0], fit)


def test_a_class_of_two_has_one_on_each_side():
    fit, score = halves(np.array([0] * 10 + [1] * 2), seed=0)
    assert (fit >= 10).sum() == (score >= 10).sum() == 1


def test_a_category_is_told_by_its_table():
    """Classes counted alike: level 0 has more of class 0, but a larger share of class 1."""
    labels = np.array([0] * 90 + [1] * 10 + [0, 1])
    codes = np.array([0] * 20 + [1] * 70 + [0] * 6 + [1] * 4 + [0, 1])
    found = ask(category(codes, 2), labels, np.arange(100), np.array([100, 101]), 2)
    assert found.predicted.tolist() == [1, 0]
    assert found.confidence[0] == pytest.approx(0.6 / (0.6 + 20 / 90))


def test_a_tree_tells_what_can_be_told():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 600)
    clear = np.stack(
        [np.cos(labels * 2.0), np.sin(labels * 2.0)], 1
    ) + 0.05 * random.standard_normal((600, 2))
    fit, score = halves(labels, 0)
    assert (ask(numbers(clear), labels, fit, score, 3).predicted == labels[score]).all()
    noise = ask(numbers(random.standard_normal((600, 2))), labels, fit, score, 3)
    assert 0.2 < (noise.predicted == labels[score]).mean() < 0.47
    assert noise.values.shape == (len(score), 2)


def test_the_blind_model_joins_what_single_attributes_cannot_tell():
    random = np.random.default_rng(0)
    a, b = random.random((2, 800))
    labels = ((a > 0.5) ^ (b > 0.5)).astype(int)
    fit, score = halves(labels, 0)
    single = ask(numbers(a[:, None]), labels, fit, score, 2)
    together = ask_together([numbers(a[:, None]), numbers(b[:, None])], labels, fit, score, 0)
    assert (single.predicted == labels[score]).mean() < 0.65
    assert (together.predicted == labels[score]).mean() > 0.9


def test_judge_by_hand():
    """Every number again with plain loops over classes and the same permutations."""
    random = np.random.default_rng(1)
    labels = np.array([0] * 9 + [1] * 6 + [2] * 3)
    good = np.where(random.random(18) < 0.7, labels, 0)
    answers = [saying(good), saying(random.integers(0, 3, 18)), saying(np.zeros(18, int))]

    def balanced(predicted: np.ndarray, y: np.ndarray) -> float:
        return float(
            np.mean(
                [
                    np.mean([p == k for p, t in zip(predicted, y, strict=True) if t == k])
                    for k in range(3)
                ]
            )
        )

    scores = judge(answers, labels, 3, permutations=60, seed=5)
    again = np.random.default_rng(5)
    orders = [again.permutation(18) for _ in range(60)]
    chance = np.array(
        [[balanced(one.predicted, labels[order]) for one in answers] for order in orders]
    )
    spread = chance.std(0)
    for k, one in enumerate(answers):
        observed = balanced(one.predicted, labels)
        assert scores[k].accuracy == pytest.approx(observed)
        assert scores[k].p == (1 + sum(c >= observed - 1e-9 for c in chance[:, k])) / 61
        if k < 2:
            z = (observed - 1 / 3) / spread[k]
            # The third never changes its answer: it stays at chance, 0, in every permutation.
            most = [
                max(0, *((chance[b, j] - 1 / 3) / spread[j] for j in (0, 1))) for b in range(60)
            ]
            assert scores[k].p_corrected == (1 + sum(m >= z - 1e-9 for m in most)) / 61
        assert scores[k].p_corrected >= scores[k].p
    assert (scores[2].p, scores[2].p_corrected) == (1, 1)
    assert scores[2].strength == pytest.approx(0)
    recall = [np.mean(good[labels == k] == k) for k in range(3)]
    error = np.sqrt(sum(r * (1 - r) / n for r, n in zip(recall, (9, 6, 3), strict=True))) / 3
    assert scores[0].error == pytest.approx(error)


def test_perfect_and_contrary_answers():
    labels = np.arange(200) % 2
    right, wrong = judge([saying(labels), saying(1 - labels)], labels, 2, permutations=99, seed=0)
    assert (right.accuracy, right.strength, right.p, right.p_corrected) == (1, 1, 0.01, 0.01)
    assert (wrong.accuracy, wrong.strength, wrong.p_corrected) == (0, -1, 1)


def test_no_more_false_alarms_than_promised():
    """Eight empty attributes, 300 times: corrected at 0.05, at most 5 % alarms, with 3σ of room."""
    alarms = uncorrected = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        labels = random.integers(0, 3, 90)
        answers = [saying(random.integers(0, 3, 90)) for _ in range(8)]
        scores = judge(answers, labels, 3, permutations=99, seed=seed)
        alarms += min(score.p_corrected for score in scores) <= 0.05
        uncorrected += min(score.p for score in scores) <= 0.05
    assert alarms <= 300 * 0.05 + 3 * np.sqrt(300 * 0.05 * 0.95)
    assert uncorrected > 60  # without correction a third would raise one


def test_progress_is_told():
    told = []
    labels = np.arange(20) % 2
    judge(
        [saying(labels)],
        labels,
        2,
        permutations=120,
        seed=0,
        progress=lambda *said: told.append(said),
    )
    assert told[-1] == ("permuting labels", 120, 120)
    assert len(told) == 3


def scored(accuracy: float, error: float = 0.01) -> Score:
    return Score(accuracy, error, np.full(4, accuracy), 0.001, 0.001)


def test_rank_prefers_the_simple_among_equals():
    assert rank([scored(0.5), scored(0.9), scored(0.91), scored(0.94)], [0, 0, 0, 0]) == [
        3,
        1,
        2,
        0,
    ]
    assert rank([scored(0.93), scored(0.94), scored(0.2)], [0, 0, 0]) == [0, 1, 2]
    assert rank([scored(0.3), scored(0.94), scored(0.5)], [1, 2, 0]) == [2, 0, 1]


def test_an_echo_is_told_from_a_second_shortcut():
    """Both agree with the first on nine samples of ten; only the echo shares its mistakes."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 2000)
    off = lambda share: np.where(random.random(2000) < share, random.integers(0, 10, 2000), labels)
    first = off(0.1)
    echo = np.where(random.random(2000) < 0.2, random.integers(0, 10, 2000), first)
    second = off(0.1)
    assert echoes(saying(echo), saying(first), labels)
    assert not echoes(saying(second), saying(first), labels)


def test_without_mistakes_an_echo_says_the_same():
    labels = np.arange(100) % 2
    assert echoes(saying(labels), saying(labels), labels)
    assert not echoes(
        saying(np.where(np.arange(100) < 10, 1 - labels, labels)), saying(labels), labels
    )
