"""Bias labels from the audit, from the attribute to the run that uses them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.bias import audited, auto, providers
from fairmargin.bias.inferred import Told, told, told_by_groups
from fairmargin.bias.usefulness import complaints
from fairmargin.bias.visible import recorded_info, visible_bias
from fairmargin.cli.app import app
from fairmargin.export.card import model_card
from fairmargin.report import write_report
from fairmargin.report.grouping import parts_of
from fairmargin.run import run
from fairmargin.runs import build
from fairmargin.runs.record import RunRecord
from tests.bias.scored import write_scores

SMALL = [
    "data.train=240",
    "data.test=96",
    "data.side=8",
    "data.noise=0.1",
    "train.epochs=1",
    "train.batch_size=48",
    "train.device=cpu",
    "evaluate.resamples=20",
    'evaluate.classifiers=["own"]',
]
FAIRKL = "eps-supinfonce+fairkl"


def config(*changes, bias="audit:background colour", method=FAIRKL, dataset="planted", small=SMALL):
    return configuration.load(
        dataset=str(dataset), method=method, bias=bias, overrides=[*small, *changes]
    )


def quiet():
    return Console(quiet=True)


@pytest.fixture(scope="module")
def data():
    return build.data(config())


def test_an_attribute_gives_the_planted_bias_of_every_split(data):
    seen = visible_bias(config(), data)
    assert seen.info.num_biases == 4
    for name, split in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        assert (seen.inferred.labels[name] == split.bias).float().mean() > 0.95
    assert torch.equal(seen.splits["valid"].bias, seen.inferred.labels["valid"])
    assert seen.info.counts.sum() == len(data.train)
    assert seen.facts["sentence"].startswith("bias labels: audit's background colour; tells ")
    assert seen.inferred.told.strength > 0.7


def test_known_bias_labels_do_not_matter(data):
    blind = replace(audited.hidden(data), valid=replace(data.valid, bias=None))
    labels = visible_bias(config(), data).inferred.labels
    again = visible_bias(config(), blind).inferred.labels
    assert all(torch.equal(labels[name], again[name]) for name in labels)


def test_what_is_said_of_a_sample_does_not_depend_on_its_own_label(data):
    """Labels that nothing tells are not learned by heart, as a tree fitted to them would."""
    g = torch.Generator().manual_seed(0)
    mixed = data.train.labels[torch.randperm(len(data.train), generator=g)]
    shuffled = replace(data, train=replace(data.train, labels=mixed))
    found = audited.infer(config(), shuffled, "border layout")
    assert found.told.accuracy < 0.4
    assert "hardly more than a guess" in found.warnings[0]


def test_test_labels_and_pictures_do_not_matter_to_training_labels(data):
    other = replace(data, test=replace(data.test, labels=data.test.labels.roll(1)))
    before, after = (audited.infer(config(), d, "mean colour") for d in (data, other))
    assert before.digest == after.digest


def test_a_class_with_one_sample_does_not_shift_the_others(data):
    labels = data.train.labels.clone()
    rare = (labels == 1).nonzero()[1:, 0]
    labels[rare] = 0
    lone = replace(data, train=replace(data.train, labels=labels))
    found = audited.infer(config(), lone, "background colour")
    three = data.train.bias == 3
    assert (found.labels["train"][three] == 3).float().mean() > 0.95


def test_names_are_checked_and_hyphens_will_do(data):
    with pytest.raises(ValueError, match=r"did you mean 'border layout'.*'blind model'"):
        audited.infer(config(), data, "border lay out")
    hyphened = audited.infer(config(), data, "background-colour")
    assert hyphened.title == "audit's background colour"
    assert audited.infer(config(), data, "blind model").told.strength > 0.7


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("audit", ("audit", "")),
        ('audit: "border layout"', ("audit", "border layout")),
        ("clusters", ("clusters", "")),
    ],
)
def test_values_of_bias(given, meant):
    assert providers.parse(given) == meant


@pytest.mark.parametrize(
    ("given", "said"), [("audits", "did you mean 'audit'"), ("scores:x", "nothing after a colon")]
)
def test_wrong_values_of_bias(given, said):
    with pytest.raises(ValueError, match=said):
        config(bias=given)


def test_auto_takes_labels_then_the_audit_then_nothing(data, monkeypatch):
    assert auto.choose_bias(config(bias="auto"), data).source == "labels"
    choice = auto.choose_bias(config(bias="auto"), audited.hidden(data))
    assert choice.source == "audit:background colour"
    assert "chance 25 %" in choice.why
    monkeypatch.setattr(audited, "shortcuts", lambda *_: [])
    choice = auto.choose_bias(config(bias="auto"), audited.hidden(data))
    assert choice.source == "none"
    assert "no shortcut" in choice.why


def test_auto_takes_a_capture_only_if_it_is_clearly_better(data, tmp_path, monkeypatch):
    found_by_audit = []
    monkeypatch.setattr(audited, "shortcuts", lambda *_: found_by_audit)
    fair = audited.hidden(data)
    chosen = config(f"data.scores={tmp_path}", bias="auto")

    def scored(right):
        """Scores of a model that tells this share of the labels."""
        write_scores(tmp_path, fair, lambda split: torch.ones(len(split), 2))
        found = auto.score_file.read(tmp_path / "scores.safetensors")
        splits = {}
        for name, said in found.splits.items():
            wrong = torch.arange(len(said.labels)) >= right * len(said.labels)
            answers = (said.labels + wrong) % 4
            splits[name] = replace(said, logits=torch.nn.functional.one_hot(answers, 4).float())
        auto.score_file.write(tmp_path / "scores.safetensors", splits, found.facts)

    scored(0.9)
    assert auto.choose_bias(chosen, fair).source == "clusters"
    softcon = configuration.override(chosen, ["method.name=softcon"])
    assert auto.choose_bias(softcon, fair).source == "scores"
    for useless in (0.4, 1.0):  # tells too little; may have learned the task
        scored(useless)
        assert auto.choose_bias(chosen, fair).source == "none"
    scored(0.9)
    found_by_audit.append(audited.Shortcut("hue", 0.9, 0.87))
    assert auto.choose_bias(chosen, fair).source == "audit:hue"
    found_by_audit[0] = audited.Shortcut("hue", 0.7, 0.6)
    assert auto.choose_bias(chosen, fair).source == "clusters"


def test_how_well_the_label_is_told_counts_classes_alike():
    labels = torch.tensor([0, 0, 0, 1])
    assert told(torch.zeros(4, dtype=torch.long), labels, "training").strength == 0
    groups = {"train": torch.tensor([1, 1, 1, 0]), "valid": torch.tensor([0])}
    found = told_by_groups(groups, {"train": labels, "valid": torch.tensor([1])})
    assert (found.accuracy, found.of) == (1.0, "training")


def test_a_capture_that_misses_the_shortcut_is_called_useless():
    best = audited.Shortcut("border layout", 0.93, 0.92)
    chosen = config("data.inject=none")
    missed = Told(0.42, 10, 400, "validation")
    said = complaints(missed, best, chosen)[0]
    assert "42 % of the validation labels (chance 10 %)" in said
    assert "no use" in said
    assert said.endswith("--method fairmargin --bias 'audit:border layout'")
    assert complaints(Told(0.92, 10, 400, "validation"), best, chosen) == []
    assert "no shortcut either" in complaints(missed, None, chosen)[0]


def bars(folder, n=120):
    """A table of pictures: the class is a bar's direction, and the camera's tint goes with it."""
    random = np.random.default_rng(0)
    rows = ["path,label,camera,split"]
    folder.mkdir(exist_ok=True)
    for i in range(n):
        y = i % 2
        test = i >= 80
        follows = random.random() < (0.5 if test else 0.9)
        camera = y if follows else 1 - y
        pixels = random.integers(0, 60, (12, 12, 3))
        pixels[:, :, camera] += 100
        # Away from the border, which the audit looks at.
        pixels[5:7, 3:9] += 90 * (1 - y)
        pixels[3:9, 5:7] += 90 * y
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
        label, split = ("down", "across")[y], ("train", "test")[test]
        rows.append(f"{i}.png,{label},cam{camera},{split}")
    (folder / "bars.csv").write_text("\n".join(rows))
    return folder / "bars.csv"


OWN = [
    "data.image_size=12",
    "network.name=simple-conv-3",
    "network.widths=[4, 8]",
    "train.epochs=2",
    "train.batch_size=24",
    "train.device=cpu",
    "evaluate.resamples=20",
    'evaluate.classifiers=["own"]',
]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    table = bars(folder / "images")
    chosen = config(dataset=table, bias="auto", small=OWN)
    record = run(chosen, folder / "run", console=quiet())
    return table, folder, record


def test_auto_on_own_images_measures_inferred_groups_and_says_so(own):
    _, folder, record = own
    said = record.data["bias"]
    assert said["source"].startswith("audit:")
    assert record.data["bias_names"] == ["like across", "like down"]
    assert "conflicting" in record.outcome["test"]["own"]["accuracy"]
    assert any("by inferred ones" in text for text in record.outcome["warnings"])
    assert set(record.arrays("bias")) == {"train", "valid", "test"}
    page = write_report([folder / "run"], folder / "report.html").read_text("utf-8")
    assert "Auto takes the audit" in page
    assert "by inferred ones" in page
    assert "by inferred ones" in model_card(folder / "run")


def test_runs_judged_by_different_groups_are_not_compared(own, tmp_path):
    table, _, record = own
    chosen = config(dataset=table, bias="audit:camera", method="ce", small=OWN)
    other = run(chosen, tmp_path / "other", console=quiet())
    assert record.data["bias_names"] == other.data["bias_names"]
    assert [len(part.groups) for part in parts_of([record, other])] == [1, 1]
    assert [len(part.groups) for part in parts_of([record])] == [1]


def test_evaluate_measures_the_same_groups_again(own):
    _, folder, record = own
    out = folder / "again.json"
    result = CliRunner().invoke(app, ["evaluate", str(folder / "run"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    again = json.loads(out.read_text())["test"]["own"]["accuracy"]
    assert (
        again["conflicting"]["value"]
        == record.outcome["test"]["own"]["accuracy"]["conflicting"]["value"]
    )


def test_a_column_of_the_table_is_an_attribute(own):
    table, _, _ = own
    chosen = config(dataset=table, bias="audit:camera", small=OWN)
    found = visible_bias(chosen, build.data(chosen)).inferred
    assert found.title == "audit's camera"
    assert found.told.accuracy > 0.8


def test_a_finished_run_knows_its_shapes_without_the_data(own):
    table, _, record = own
    chosen = config(dataset=table, bias="auto", small=OWN)
    info = recorded_info(chosen, build.data(chosen).info, record.data)
    assert info.bias_names == ("like across", "like down")


def test_an_interrupted_run_goes_on_with_what_auto_chose_and_refuses_other_labels(
    own, tmp_path, monkeypatch
):
    table, _, _ = own
    chosen = config("train.checkpoint_seconds=0", dataset=table, bias="auto", small=OWN)
    run(chosen, tmp_path, console=quiet())
    whole = (tmp_path / "weights.safetensors").read_bytes()

    def interrupted():
        (tmp_path / "result.json").unlink(missing_ok=True)
        max((tmp_path / "checkpoints").glob("*.ckpt")).unlink()

    interrupted()
    monkeypatch.setattr("fairmargin.bias.visible.choose_bias", None)  # not asked again
    run(chosen, tmp_path, console=quiet())
    assert (tmp_path / "weights.safetensors").read_bytes() == whole
    interrupted()
    real = audited._groups

    def others(*given):
        return {name: labels.flip(0) for name, labels in real(*given).items()}

    monkeypatch.setattr(audited, "_groups", others)
    with pytest.raises(ValueError, match="begun with other bias labels"):
        run(chosen, tmp_path, console=quiet())


def test_runs_on_known_labels_keep_their_groups(data, tmp_path):
    record = run(config(method="group-dro"), tmp_path, console=quiet())
    assert record.data["bias_names"] == list(data.info.bias_names)
    assert "groups" not in record.data["bias"]
    assert RunRecord.read(tmp_path).data["bias"]["names"][0].startswith("like ")


def test_biases_are_listed():
    result = CliRunner().invoke(app, ["list", "biases"])
    assert "audit:ATTRIBUTE" in result.output
    assert all(name in result.output for name in providers.PROVIDERS)


def test_a_folder_is_named_after_the_bias():
    assert providers.in_a_path("audit:border layout") == "audit-border-layout"
