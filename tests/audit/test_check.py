import json
import re

import pytest
import torch
from typer.testing import CliRunner

from fairmargin.audit.check import GAP, CannotCheckError, Limit, check, checks
from fairmargin.batch import DataInfo
from fairmargin.cli.app import app
from fairmargin.evaluate import judge
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
    for judged in result["test"].values():
        judged["groups"]["n"] = [[20] * 10] * 10
        judged["warnings"] = []
    file.write_text(json.dumps(result), "utf-8")
    return folder


def test_a_limit_that_is_just_met_holds(run):
    assert check(run, [Limit("worst-group", 0.8), Limit(GAP, 0.3)]) == []


def test_broken_limits_are_handed_back(run):
    broken = check(run, [Limit("worst-group", 0.81), Limit(GAP, 0.3), Limit("plain", 0.0)])
    assert [(one.limit.name, one.value, one.low, one.high) for one in broken] == [
        ("worst-group", 0.8, 0.7, 0.9)
    ]


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
    ("name", "bound", "said"),
    [("plain", 80, "0.8"), ("plan", 0.5, "plain"), ("plain", -1, "0 to 1")],
)
def test_limits_that_are_none(name, bound, said):
    with pytest.raises(ValueError, match=said):
        Limit(name, bound)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (
            ["--min-worst-group", "0.8"],
            0,
            "holds   worst-group: 0.800 (0.700–0.900), at least 0.8 wanted",
        ),
        (
            ["--min-worst-group", "0.8", "--lower-bound"],
            1,
            "BROKEN  lower end of worst-group: 0.700 (0.800, 0.700–0.900)",
        ),
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
    result = runner.invoke(
        app, ["check", str(folder), "--min-worst-group", "0.8", "--max-gap", "0.1"]
    )
    assert result.exit_code == 2
    assert (
        "cannot check worst-group, equalised-odds gap: its test set has no bias labels"
        in result.output
    )
    assert runner.invoke(app, ["check", str(folder), "--min-accuracy", "plain=0.1"]).exit_code == 0


def write_grouped_run(folder, sizes, wrong):
    """A run on cats and dogs by day and night; in the groups `wrong` no answer is right."""
    write_run(folder, "ce", n=100)
    info = DataInfo(
        "pets", ("cat", "dog"), ("day", "night"), (3, 8, 8), torch.tensor([[95, 5], [5, 95]])
    )
    cells = [(y, b) for y in range(2) for b in range(2) for _ in range(sizes[y][b])]
    labels, bias = torch.tensor(cells).T
    answers = torch.tensor([1 - y if (y, b) in wrong else y for y, b in cells])
    judged = judge(5.0 * torch.nn.functional.one_hot(answers, 2), labels, bias, info, resamples=50)
    result = json.loads((folder / "result.json").read_text("utf-8"))
    (folder / "result.json").write_text(
        json.dumps(result | {"test": {"own": judged}, "extra_tests": {}}), "utf-8"
    )
    names = {"class_names": info.class_names, "bias_names": info.bias_names}
    names["counts"] = info.counts.tolist()
    (folder / "test.npz").unlink()
    data = json.loads((folder / "data.json").read_text("utf-8"))
    (folder / "data.json").write_text(json.dumps(data | names), "utf-8")
    return folder


CONFLICTING = ((0, 1), (1, 0))


def test_groups_too_small_to_be_judged_do_not_pass(tmp_path):
    run = write_grouped_run(tmp_path / "run", ((50, 9), (9, 50)), CONFLICTING)
    command = ["check", str(run), "--min-worst-group", "0.8", "--lower-bound"]
    result = runner.invoke(app, command)
    assert result.exit_code == 2, result.output
    assert "  warning: 2 of 4 groups have fewer than 10 test samples" in result.output
    assert re.search(r"UNSURE  lower end of worst-group: 0\.9\d\d \(1\.000, 0\.9", result.output)
    assert "2 groups have fewer than 10 test samples and cannot be judged" in result.output
    assert (
        "(label=cat, bias=night) 0 of 9 right, (label=dog, bias=day) 0 of 9 right" in result.output
    )
    assert "--ignore-small-groups" in result.output
    (one,) = check(run, [Limit("worst-group", 0.8)])
    assert one.unsure
    assert not one.broken

    allowed = runner.invoke(app, [*command, "--ignore-small-groups"])
    assert allowed.exit_code == 0, allowed.output
    assert "warning: 2 of 4 groups" in allowed.output
    assert check(run, [Limit("worst-group", 0.8)], ignore_small_groups=True) == []


def test_small_groups_matter_to_limits_on_groups_only(tmp_path):
    run = write_grouped_run(tmp_path / "run", ((50, 12), (9, 50)), ((1, 0),))
    found = checks(
        run, [Limit("worst-group", 0.8), Limit(GAP, 0.5), Limit("plain", 0.9), Limit("aligned", 1)]
    )
    assert [one.unsure for one in found] == [True, True, False, False]
    assert "1 group has fewer than 10 test samples" in str(found[1])


def test_a_limit_that_large_groups_break_is_broken(tmp_path):
    run = write_grouped_run(tmp_path / "run", ((50, 12), (9, 50)), ((0, 1),))
    result = runner.invoke(app, ["check", str(run), "--min-worst-group", "0.8"])
    assert result.exit_code == 1, result.output
    assert "BROKEN  worst-group: 0.000" in result.output


def test_where_all_groups_are_small_the_worst_was_looked_for_among_all(tmp_path):
    run = write_grouped_run(tmp_path / "run", ((9, 5), (5, 9)), ())
    result = runner.invoke(app, ["check", str(run), "--min-worst-group", "0.8"])
    assert result.exit_code == 0, result.output
    assert "warning: no group has 10 test samples" in result.output
    assert (
        runner.invoke(
            app, ["check", str(run), "--min-worst-group", "0.8", "--lower-bound"]
        ).exit_code
        == 1
    )


def test_what_cannot_be_checked_counts_before_what_is_broken(tmp_path):
    write_grouped_run(tmp_path / "a", ((50, 9), (9, 50)), CONFLICTING)
    write_grouped_run(tmp_path / "b", ((50, 12), (12, 50)), CONFLICTING)
    result = runner.invoke(app, ["check", str(tmp_path), "--min-worst-group", "0.8"])
    assert result.exit_code == 2, result.output
    assert "UNSURE" in result.output
    assert "BROKEN" in result.output


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
