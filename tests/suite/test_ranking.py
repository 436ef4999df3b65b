"""The arithmetic of rankings, against numbers worked out by hand."""

import math

import pytest

from fairmargin.suite import ranking
from fairmargin.suite.ranking import Measured
from fairmargin.suite.results import Score
from fairmargin.suite.standings import rankings, summary, verdict


def score(regime, task, entry, value, seed=0, seconds=1.0, failure=""):
    number = math.nan if failure else value
    return Score(regime, task, entry, entry, "", seed, number, number, number, 1, seconds, failure)


def test_ranks_share_places():
    assert ranking.ranks([50.0, 90.0, 70.0]) == [3, 1, 2]
    assert ranking.ranks([80.0, 80.0, 10.0]) == [1.5, 1.5, 3]


def test_critical_difference_is_that_of_the_tables():
    # Demšar (2006), Table 5: q = 1.960 for two methods and 2.728 for five.
    assert ranking.critical_difference(2, 10) == pytest.approx(1.960 * math.sqrt(6 / 60), abs=1e-3)
    assert ranking.critical_difference(5, 30) == pytest.approx(
        2.728 * math.sqrt(30 / 180), abs=1e-3
    )
    assert ranking.critical_difference(1, 10) == 0


def test_letters_by_hand():
    assert ranking.letters([1.0, 1.5, 3.0], 0.6) == ["a", "a", "b"]
    # The one in the middle is like both of its neighbours, who are unlike each other.
    assert ranking.letters([3.0, 1.0, 2.0], 1.2) == ["b", "a", "ab"]
    assert ranking.letters([1.0, 2.0, 3.0], 5.0) == ["a", "a", "a"]
    assert ranking.letters([1.0, 2.0], 0.5) == ["a", "b"]
    assert ranking.letters([], 1.0) == []


def test_errors_and_intervals_over_seeds():
    at = Measured((70.0, 72.0, 74.0), test_error=9.0)
    assert at.mean == 72
    assert at.error == pytest.approx(2 / math.sqrt(3))
    # Student's t with two degrees of freedom: 4.303.
    assert at.half_width == pytest.approx(4.303 * 2 / math.sqrt(3), abs=1e-2)
    alone = Measured((70.0,), test_error=1.0)
    assert alone.error == 1
    assert alone.half_width == pytest.approx(1.96, abs=1e-3)


def test_what_cannot_be_told_from_the_best_is_as_good():
    row = [Measured((90.0,), 1.0), Measured((88.0,), 1.0), Measured((80.0,), 1.0)]
    # 2 ≤ 1.96 √2 = 2.77 < 10
    assert ranking.as_good_as_best(row) == [True, True, False]
    # Two seeds each: Student's t with two degrees of freedom is 4.30, and both errors are 1.
    pairs = [Measured((89.0, 91.0)), Measured((83.0, 85.0)), Measured((82.0, 84.0))]
    assert ranking.as_good_as_best(pairs) == [True, True, False]


def test_rank_intervals_see_tasks_and_noise():
    sure = [Measured((90.0,), 0.01), Measured((50.0,), 0.01)]
    assert ranking.rank_intervals([sure, sure]) == [(1, 1), (2, 2)]
    low, high = ranking.rank_intervals([sure, sure[::-1]])[0]
    assert (low, high) == (1, 2)
    noisy = [Measured((90.0,), 30.0), Measured((85.0,), 30.0)]
    assert ranking.rank_intervals([noisy] * 3)[0] == (1, 2)
    assert ranking.rank_intervals([noisy], seed=1) == ranking.rank_intervals([noisy], seed=1)


def test_cost_is_a_geometric_mean():
    assert ranking.cost([2.0, 8.0], [1.0, 1.0]) == pytest.approx(4)


def test_a_ranking_by_hand():
    scores = [
        score("known", "colors", "a", 90.0),
        score("known", "colors", "b", 80.0, seconds=2.0),
        score("known", "corners", "a", 70.0),
        score("known", "corners", "b", 71.0, seconds=2.0),
        score("unknown", "colors", "ce", 20.0),
        score("unknown", "corners", "ce", 30.0),
    ]
    known, unknown = rankings(scores, ["colors", "corners"])
    assert [row.entry for row in known.rows] == ["a", "b", "ce"]
    a, b, ce = known.rows
    assert (a.mean_rank, b.mean_rank) == (1.5, 1.5)
    assert a.behind == (0, 1)
    assert b.behind == (10, 0)
    assert known.farthest(b) == "colors"
    assert (a.wins, b.wins) == (2, 1)
    assert (a.mean, b.cost) == (80, 2)
    # Who knows less is shown beside the others and takes no place among them.
    assert not ce.ranked
    assert ce.behind == (70, 41)
    assert [row.entry for row in unknown.rows] == ["ce"]
    # Neither of two equals is named alone.
    assert verdict(known).startswith("a and b have the best mean rank, 1.5")
    assert "do not tell the 2 methods apart" in verdict(known)
    assert "points behind the best: a." in verdict(known)


def test_regimes_are_never_mixed():
    scores = [
        score("known", "colors", "group-dro", 90.0),
        score("validation", "colors", "dfr", 80.0),
        score("unknown", "colors", "lff", 99.0),
    ]
    found = rankings(scores, ["colors"])
    assert [one.regime for one in found] == ["known", "validation", "unknown"]
    for one in found:
        assert len(one.rows) == 1
        assert one.rows[0].mean_rank == 1
        assert one.rows[0].behind == (0,)


def test_who_lacks_a_task_is_listed_and_not_ranked():
    scores = [
        score("known", "colors", "a", 90.0),
        score("known", "corners", "a", 90.0),
        score("known", "colors", "b", 95.0),
        score("known", "corners", "b", 0.0, failure="b takes no vectors"),
    ]
    [found] = rankings(scores, ["colors", "corners"])
    assert [row.entry for row in found.ranked] == ["a"]
    assert found.rows[1].remark == "not ranked: no result on corners"
    kept = summary([found])["rankings"][0]["standings"]
    assert kept[1]["mean_rank"] is None
    assert "corners" not in kept[1]["by_task"]


def test_a_missing_seed_is_a_missing_result():
    scores = [score("known", "colors", "a", 90.0), score("known", "colors", "a", 0, 1, failure="x")]
    [found] = rankings(scores, ["colors"])
    assert not found.rows[0].ranked
