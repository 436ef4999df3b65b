import json

import pytest
from typer.testing import CliRunner

from fairmargin.audit.check import GAP, CannotCheckError, Limit, check, checks
from fairmargin.cli import app
from tests.report.fake_runs import write_awkward_run, write_run, write_unfinished_run

runner = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("runs") / "ce", "ce", n=400)
    file = folder / "result.json"
    result = json.loads(file.read_text("utf-8"))
    result["test"]["own"]["accuracy"]["worst-group"] = {"value": 0.8, "low": 0.7, "high": 0.9}
    result["test"]["own"]["equalised_odds_gap"] = 0.3
    result["test"]["probe"]["accuracy"]["worst-group"] = {"value": 0.5, "low": 0.4, "high": 0.6}
    file.write_text(json.dumps(result), "utf-8")
    return folder


def test_a_limit_that_is_just_met_holds(run):
    assert check(run, [Limit("worst-group", 0.8), Limit(GAP, 0.3)]) == []


def test_broken_limits_are_handed_back(run):
    broken = check(run, [Limit("worst-group", 0.81), Limit(GAP, 0.3), Limit("plain", 0.0)])
    assert [(one.limit.name, one.value, one.low, one.high) for one in broken] == [("worst-group", 0.8, 0.7, 0.9)]


def test_the_lower_end_is_compared_when_asked(run):
    limit = Limit("worst-group", 0.75)
    assert check(run, [limit]) == []
    assert [one.compared for one in check(run, [limit], lower_bound=True)] == [0.7]
    assert check(run, [Limit("worst-group", 0.7)], lower_bound=True) == []


def test_the_gap_has_no_interval_and_that_is_said(run):
    one = checks(run, [Limit(GAP, 0.3)], lower_bound=True)[0]
    assert one.holds
    assert "the value is compared" in str(one)


def test_another_classifier(run):
    assert check(run, [Limit("worst-group", 0.6)], classifier="probe")
    with pytest.raises(CannotCheckError, match="'own', 'probe', 'knn'"):
        check(run, [Limit("worst-group", 0.6)], classifier="tree")


@pytest.mark.parametrize(
    ("name", "bound", "said"), [("plain", 80, "0.8"), ("plan", 0.5, "plain"), ("plain", -1, "0 to 1")]
)
def test_limits_that_are_none(name, bound, said):
    with pytest.raises(ValueError, match=said):
        Limit(name, bound)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--min-worst-group", "0.8"], 0, "holds   worst-group: 0.800 (0.700–0.900), at least 0.8 wanted"),
        (["--min-worst-group", "0.8", "--lower-bound"], 1, "BROKEN  lower end of worst-group"),
        (["--min-worst-group", "0.8", "--max-gap", "0.2"], 1, "at most 0.2 wanted"),
        (["--min-worst-group", "0.8", "--classifier", "probe"], 1, "BROKEN  worst-group: 0.500"),
        (["--min-accuracy", "plain=0", "--min-accuracy", "aligned=0"], 0, "aligned"),
        (["--min-conflicting", "1"], 1, "conflicting"),
        ([], 2, "no limit to check"),
        (["--min-accuracy", "plain"], 2, "NAME=VALUE"),
        (["--min-accuracy", "plan=0.5"], 2, "'plain'"),
        (["--min-worst-group", "80"], 2, "Did you mean 0.8?"),
    ],
)
def test_exit_codes(run, options, code, said):
    result = runner.invoke(app, ["check", str(run), *options])
    assert result.exit_code == code, result.output
    assert said in result.output


def test_without_bias_labels_it_says_what_cannot_be_checked(tmp_path):
    folder = write_awkward_run(tmp_path / "run")
    result = runner.invoke(app, ["check", str(folder), "--min-worst-group", "0.8", "--max-gap", "0.1"])
    assert result.exit_code == 2
    assert "cannot check worst-group, equalised-odds gap: its test set has no bias labels" in result.output
    assert runner.invoke(app, ["check", str(folder), "--min-accuracy", "plain=0.1"]).exit_code == 0


def test_every_run_of_a_folder_is_checked(run, tmp_path):
    write_run(tmp_path / "a", "ce", n=300)
    write_run(tmp_path / "b", "eps-supinfonce+fairkl", n=300)
    result = runner.invoke(app, ["check", str(tmp_path), str(run), "--min-accuracy", "plain=0.5"])
    assert result.exit_code == 1  # cross-entropy is below, the other is not
    assert result.output.count("plain:") == 3
    assert result.output.count("BROKEN") == 2


def test_a_run_that_cannot_be_checked_does_not_hide_the_others(run, tmp_path):
    write_unfinished_run(tmp_path / "unfinished")
    result = runner.invoke(app, ["check", str(tmp_path), str(run), "--min-accuracy", "plain=0"])
    assert result.exit_code == 2
    assert "not finished" in result.output
    assert "holds   plain" in result.output


def test_no_run_at_all(tmp_path):
    for folder, said in ((tmp_path, "no run in"), (tmp_path / "missing", "there is no folder")):
        result = runner.invoke(app, ["check", str(folder), "--max-gap", "0.1"])
        assert result.exit_code == 2
        assert said in result.output.replace("\n", "")
