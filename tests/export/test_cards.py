"""Cards: of one run and of a comparison; audits in them; the best is chosen on validation."""

import json
import shutil

import pytest
import yaml
from typer.testing import CliRunner

import fairmargin as fm
from fairmargin.api import TrainedRun
from fairmargin.cli.app import app
from fairmargin.export import comparison_card, model_card
from fairmargin.runs.record import RunRecord
from tests.report.fake_runs import write_awkward_run, write_run

runner = CliRunner()


def invoke(*words):
    return runner.invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def head_of(text):
    start, head, _ = text.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(head)


def change(run, edit):
    """Change the result of a run."""
    file = run / "result.json"
    result = json.loads(file.read_text("utf-8"))
    edit(result)
    file.write_text(json.dumps(result), encoding="utf-8")


def set_validation(run, value, name="plain"):
    def edit(result):
        result["records"]["last"]["valid"][name] = value

    change(run, edit)


@pytest.fixture
def runs(tmp_path):
    """Two methods, two seeds; ce is better on validation, and much worse on the test set."""
    folder = tmp_path / "runs"
    for method in ("ce", "eps-supinfonce+fairkl"):
        for seed in (0, 1):
            run = write_run(folder / method / f"seed-{seed}", method, seed=seed, n=300)
            set_validation(run, 0.9 + 0.01 * seed if method == "ce" else 0.5)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_best_is_chosen_on_validation_and_not_on_the_test_set(runs):
    text = comparison_card(runs)
    assert "**Cross-entropy** is the best on validation samples (plain 90.5 %" in text
    assert "the test set did not" in text
    assert 'fm.load("ce/seed-1")' in text
    assert RunRecord.read(runs / "ce/seed-1").finished


def test_what_a_comparison_tells(runs, tmp_path):
    out = tmp_path / "README.md"
    result = invoke("card", runs, "--out", out, "--name", "ours")
    assert result.exit_code == 0, result.output
    text = out.read_text("utf-8")
    assert "# ours\n" in text
    assert "| **Cross-entropy** | 0, 1 | no | 90.5 |" in text
    assert "| ε-SupInfoNCE + FairKL | 0, 1 | yes | 50.0 |" in text
    assert "mean ± standard deviation over seeds" in text
    facts = head_of(text)
    assert [model["name"] for model in facts["model-index"]] == [
        "Cross-entropy",
        "ε-SupInfoNCE + FairKL",
    ]
    seeds = [RunRecord.read(runs / f"ce/seed-{seed}").outcome for seed in (0, 1)]
    values = [one["test"]["own"]["accuracy"]["cell-mean"]["value"] for one in seeds]
    metrics = facts["model-index"][0]["results"][0]["metrics"]
    found = {metric["name"]: metric["value"] for metric in metrics}
    assert found["cell-mean"] == pytest.approx(sum(values) / 2, abs=1e-4)


def test_groups_of_a_comparison(runs):
    """The first row is the weakest group of the chosen method, by hand."""
    text = comparison_card(runs)
    tables = [RunRecord.read(runs / f"ce/seed-{seed}").outcome for seed in (0, 1)]
    tables = [one["test"]["own"]["groups"] for one in tables]
    shares = {}
    for y in range(10):
        for b in range(10):
            if tables[0]["n"][y][b]:
                parts = [one["correct"][y][b] / one["n"][y][b] for one in tables]
                shares[y, b] = sum(parts) / 2
    section = text.split("## Groups")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 16
    assert f"16 of {len(shares)} are shown" in section
    shown = [float(row[2].split(" ±")[0]) for row in rows]
    assert shown == pytest.approx([100 * x for x in sorted(shares.values())[:16]], abs=0.051)


def test_one_seed_has_intervals(tmp_path):
    write_run(tmp_path / "ce" / "seed-0", "ce", n=300)
    text = comparison_card(tmp_path)
    assert "# 1 method on biased-mnist-mini\n\n1 run of 1 method, seed 0. " in text
    assert "seeds" not in text.split("## Intended use")[0]
    outcome = RunRecord.read(tmp_path / "ce" / "seed-0").outcome
    one = outcome["test"]["own"]["accuracy"]["plain"]
    shown = f"{100 * one['value']:.1f} ({100 * one['low']:.1f} to {100 * one['high']:.1f})"
    assert shown in text


def test_a_method_that_learned_from_validation_is_not_chosen_on_it(runs):
    set_validation(write_run(runs / "dfr" / "seed-0", "dfr", n=300), 1.0)
    text = comparison_card(runs)
    assert "**Cross-entropy** is the best" in text
    assert "| DFR | 0 | of validation samples | – |" in text


def test_without_validation_nothing_is_called_the_best(tmp_path):
    run = write_awkward_run(tmp_path / "runs" / "a")
    text = comparison_card(run.parent)
    assert "none is called the best here" in text
    assert "fm.load" not in text
    assert "<b>" not in text


def test_unfinished_runs_are_left_out_and_said(runs):
    (runs / "ce" / "seed-1" / "result.json").unlink()
    assert "- 1 run is not finished and left out" in comparison_card(runs)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: folder / "nowhere", "there is no folder"),
        (lambda folder: folder, "has no finished runs"),
    ],
)
def test_a_folder_without_runs(make, says, tmp_path):
    result = invoke("card", make(tmp_path), "--out", tmp_path / "deep" / "README.md")
    assert result.exit_code == 2
    assert says in result.output
    assert not (tmp_path / "deep").exists()


def test_runs_on_two_datasets_are_refused(runs):
    write_awkward_run(runs / "other")
    result = invoke("card", runs)
    assert result.exit_code == 2
    assert "has runs on 2 datasets" in result.output


def test_heads_are_what_the_hub_reads(runs, run):
    hub = pytest.importorskip("huggingface_hub")
    for text in (comparison_card(runs), model_card(run)):
        data = hub.ModelCard(text).data
        assert data.library_name == "fairmargin"
        assert data.eval_results
        assert all(0 <= one.metric_value <= 1 for one in data.eval_results)


def test_the_weights_that_were_reported_are_loaded(run, tmp_path):
    assert 'fm.load("run")' in model_card(run)
    copy = shutil.copytree(run, tmp_path / "copy")
    change(copy, lambda result: result.update(reported="best-on-validation"))
    assert 'fm.load("copy", weights="best")' in model_card(copy)


def test_a_card_without_an_audit_says_how_to_make_one(run, here):
    copy = shutil.copytree(run, here / "my run")
    text = model_card(copy)
    assert "`fairmargin audit 'my run'`" in text
    assert str(here) not in text.split("## How it was made")[0]


@pytest.mark.slow
def test_audits_in_the_default_places_are_told(run, here):
    """As a user: audit the data and the run, then write the card."""
    copy = shutil.copytree(run, here / "runs" / "mine")
    settings = ["--set", "data.train=400", "--set", "data.side=16", "--permutations", "199"]
    assert invoke("audit", "planted", *settings).exit_code == 0
    assert invoke("audit", "runs/mine").exit_code == 0
    text = invoke("card", "runs/mine").output
    section = text.split("## Audit")[1].split("\n## ")[0]
    data = json.loads((here / "audit/planted/audit.json").read_text("utf-8"))
    assert f"{len(data['attributes'])} simple attributes were looked at" in section
    assert f"Shortcut: {data['shortcuts'][0]} tells the class" in section
    verdict = fm.audit.run("runs/mine").verdict
    assert f"**Model.** {verdict}" in section
    assert "No audit" not in section
    # The audit of a run that was trained again is no longer of this run.
    change(copy, lambda result: result["test"]["own"]["accuracy"]["plain"].update(value=0.123))
    assert verdict not in model_card("runs/mine")


AUDIT = {
    "kind": "dataset",
    "dataset": "biased-mnist-mini",
    "classes": ["0", "1"],
    "attributes": [
        {"name": name, "verdict": verdict, "balanced_accuracy": right, "echo_of": echo}
        for name, verdict, right, echo in (
            ("background colour", "shortcut", 0.95, None),
            ("mean colour", "shortcut", 0.93, "background colour"),
            ("contrast", "correlate", 0.6, None),
            ("sharpness", "nothing", 0.5, None),
        )
    ],
    "warnings": ["what is said of so few is uncertain"],
}


@pytest.mark.parametrize("place", ["audit.json", "", "audit.html"])
def test_an_audit_can_be_named(place, runs, here):
    (here / "audit.json").write_text(json.dumps(AUDIT), encoding="utf-8")
    result = invoke("card", runs / "ce/seed-0", "--audit", here / place)
    assert result.exit_code == 0, result.output
    assert "Shortcut: background colour tells the class 95 % of the time; chance is 50 %" in (
        result.output
    )
    assert "The same is told by: mean colour." in result.output
    assert "but weak or about the object itself: contrast (60 %)." in result.output
    assert "- Note: what is said of so few is uncertain." in result.output


@pytest.mark.parametrize(
    ("audit", "says"),
    [
        (AUDIT | {"dataset": "other"}, "is an audit of other"),
        (AUDIT | {"kind": "arrays"}, "is no audit of a dataset or a run"),
        ({"kind": "dataset"}, "audit again"),
        (None, "there is no audit"),
    ],
)
def test_a_named_audit_of_something_else_is_refused(audit, says, runs, here):
    if audit is not None:
        (here / "audit.json").write_text(json.dumps(audit), encoding="utf-8")
    result = invoke("card", runs / "ce/seed-0", "--audit", "audit.json", "--out", "README.md")
    assert result.exit_code == 2
    assert says in result.output
    assert not (here / "README.md").exists()


def test_the_card_from_python(run, here):
    trained = TrainedRun(run, RunRecord.read(run))
    written = trained.card("deep/README.md", name="bars")
    assert written.read_text("utf-8") == model_card(run, name="bars")
    assert fm.load(run).class_names


def test_what_a_method_knew_of_the_bias(runs):
    from fairmargin.export.comparison_card import knew_bias

    record = RunRecord.read(runs / "ce" / "seed-0")
    fairkl = RunRecord.read(runs / "eps-supinfonce+fairkl" / "seed-0")
    assert knew_bias(record) == "no"
    record.config["data"]["sampler"] = "group-balanced"
    assert knew_bias(record) == "yes"
    for given, said in (("labels", "yes"), ("none", "no"), ("clusters", "no; clusters")):
        fairkl.config["data"]["bias"] = given
        assert knew_bias(fairkl) == said
