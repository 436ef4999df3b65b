from fairmargin.reproduce import orderings
from tests.reproduce.recorded import line


def test_fairkl_is_held_against_the_best_method_without_it() -> None:
    lines = [
        line("ce", 90.8, 17.0),
        line("biasbal", 96.3, 90.8),
        line("lnl", 86.0, 99.0, epochs="1 of 6"),  # not finished: no result
        line("ce", 90.8, 99.0, budget="paper"),
        line("eps-supinfonce+fairkl", 97.9, 95.6, reading="recommended"),
        line("ce+fairkl", 95.9, 60.0, reading="paper"),
    ]
    found = {one.above.method: one for one in orderings.found(lines)}
    assert found["eps-supinfonce+fairkl"].below == found["ce+fairkl"].below == lines[1]
    assert found["eps-supinfonce+fairkl"].here
    assert not found["ce+fairkl"].here
    assert not found["ce+fairkl"].in_the_paper  # 95.9 is below BiasBal's 96.3
    page = orderings.markdown(orderings.found(lines))
    claim = "eps-supinfonce+fairkl (recommended) > biasbal | biased-mnist, rho=0.99, laptop"
    assert f"| {claim} | 97.9 / 96.3 | 95.6 / 90.8 | yes |" in page
    assert "| 95.9 / 96.3 (no) | 60.0 / 90.8 | **no** |" in page


def test_the_two_losses_are_compared_like_with_like() -> None:
    lines = [
        line("eps-supcon", 32.2, 25.0),
        line("eps-supinfonce", 33.2, 25.0),
        line("eps-supcon+fairkl", 97.9, 90.0, reading="paper"),
        line("eps-supinfonce+fairkl", 97.9, 80.0, reading="paper"),
        line("eps-supinfonce+fairkl", 97.9, 95.0, reading="authors"),
    ]
    found = [one for one in orderings.found(lines) if one.ties]
    assert [(one.above, one.below) for one in found] == [(lines[1], lines[0]), (lines[3], lines[2])]
    assert [one.here for one in found] == [True, False]
