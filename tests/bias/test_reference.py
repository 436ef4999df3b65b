"""Bias labels from a reference model: where it is trained, what it sees, when it is of no use."""

import pytest
import torch
from rich.console import Console

from fairmargin import config as configuration
from fairmargin.bias import audited, reference
from fairmargin.bias.providers import PROVIDERS
from fairmargin.bias.reference import REFERENCES
from fairmargin.bias.score_file import FILE, read
from fairmargin.bias.visible import visible_bias
from fairmargin.config import ConfigError
from fairmargin.evaluate import balanced_by, collect
from fairmargin.run import run
from fairmargin.runs import build
from fairmargin.runs.record import RunRecord
from tests.bias.test_scores import SMALL


def config(*changes, bias, method="group-dro"):
    overrides = [*SMALL, "train.epochs=3", *changes]
    return configuration.load(dataset="planted", method=method, bias=bias, overrides=overrides)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The audit takes longer than these trainings.
    monkeypatch.setattr(audited, "shortcuts", lambda config, data: [])


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_every_reference_gives_labels_that_a_method_can_use(name, tmp_path):
    chosen = config(bias=name)
    data = build.data(chosen)
    bias = visible_bias(chosen, data)
    labels = {split: bias.splits[split].bias for split in ("train", "valid")}
    assert {split: len(b) for split, b in labels.items()} == {
        "train": len(data.train),
        "valid": len(data.valid),
    }
    assert bias.info.bias_names
    assert len(labels["train"].unique()) >= 2
    assert int(bias.info.counts.sum()) == len(data.train)
    assert f"--bias {name}" not in bias.facts["sentence"]
    assert "s of training" in bias.facts["sentence"]
    if name != "xrm":
        return
    assert run(chosen, tmp_path / "run", console=Console(quiet=True)).finished
    kept = RunRecord.read(tmp_path / "run")
    assert kept.data["bias"]["digest"] == bias.facts["digest"]
    assert set(kept.arrays("bias")) == {"train", "valid"}


def test_runs_that_differ_in_their_method_only_share_one_reference(monkeypatch):
    data = build.data(config(bias="jtt"))
    first = visible_bias(config(bias="jtt"), data)
    made = sorted(reference.FOLDER.rglob(FILE))
    assert len(made) == 1
    trained = []
    monkeypatch.setattr(build, "training", lambda *a, **k: trained.append(a))
    changes = ["method.step_size=0.5", "data.sampler=bias-aware"]
    again = visible_bias(config(*changes, bias="jtt"), data)
    # EIIL has another use for the same model.
    visible_bias(config(bias="eiil"), data)
    assert not trained
    assert sorted(reference.FOLDER.rglob(FILE)) == made
    assert again.facts == first.facts
    said = read(made[0]).splits["train"]
    wrong = said.logits.argmax(1) != data.train.labels
    assert torch.equal(first.splits["train"].bias, wrong.long())


def test_the_reference_sees_no_bias_label_and_has_the_epochs_that_were_asked_for():
    chosen = config("data.reference_epochs=2", bias="jtt")
    of_reference = reference.configuration(chosen, REFERENCES["jtt"])
    assert of_reference.data.bias == "none"
    assert (of_reference.method.name, of_reference.train.epochs) == ("ce", 2)
    own = reference.configuration(config(bias="george"), REFERENCES["george"])
    assert own.train.epochs == 3
    one = reference.configuration(config(bias="spare"), REFERENCES["spare"])
    assert one.train.epochs == 1
    folders = {reference.folder_of(c) for c in (of_reference, own, one)}
    assert len(folders) == 3
    elsewhere = configuration.override(one, ["train.workers=1"])
    assert reference.folder_of(elsewhere) == reference.folder_of(one)


def test_a_reference_that_sets_nothing_apart_is_refused(monkeypatch):
    def nothing(config, folder, captured):
        return {name: torch.zeros(len(x.labels)).long() for name, x in captured.splits.items()}, ""

    alone = reference.Reference("nothing", nothing, ("right", "wrong"), epochs=1)
    monkeypatch.setitem(REFERENCES, "jtt", alone)
    chosen = config(bias="jtt")
    with pytest.raises(ValueError, match=r"one group only: after 1 epoch .*reference_epochs"):
        visible_bias(chosen, build.data(chosen))


def test_groups_of_a_model_that_tells_less_than_the_audit_are_called_useless(monkeypatch):
    best = audited.Shortcut("border layout", 0.99, 0.98)
    monkeypatch.setattr(audited, "shortcuts", lambda config, data: [best])
    chosen = config("optimizer.lr=1e-5", bias="jtt")
    warned = visible_bias(chosen, build.data(chosen)).facts["warnings"]
    assert len(warned) == 1
    assert "these groups miss the shortcut and are of no use" in warned[0]
    assert "--bias 'audit:border layout'" in warned[0]


def test_every_reference_is_a_provider():
    assert set(REFERENCES) <= set(PROVIDERS)


def test_ula_chooses_by_groups_of_a_proxys_answers_without_a_bias_label(tmp_path):
    changes = ("evaluate.select=ula", "evaluate.every=1", "evaluate.report=best-on-validation")
    chosen = config(*changes, bias="none", method="ce")
    data = build.data(chosen)
    asked = reference.configuration(chosen, REFERENCES["jtt"])
    assert run(chosen, tmp_path / "run", console=Console(quiet=True)).finished
    kept = RunRecord.read(tmp_path / "run")
    course = [e["valid"]["ula"] for e in kept.metrics if e["event"] == "evaluation"]
    assert len(course) == 3
    best = kept.result["records"]["best-on-validation"]
    assert best["valid"]["ula"] == max(course)
    assert best["epoch"] == 1 + course.index(max(course))
    # The criterion, by a loop.
    method = build.method(chosen, data)
    outputs = collect(method, data.valid, data.eval_views)
    proxy = read(reference.folder_of(asked) / FILE).splits["valid"].logits.argmax(1)
    assert torch.equal(visible_bias(chosen, data).proxy, proxy)
    said = outputs.logits.argmax(1).tolist()
    groups = {}
    for y, b, answer in zip(data.valid.labels.tolist(), proxy.tolist(), said, strict=True):
        groups.setdefault((y, b), []).append(answer == y)
    expected = sum(sum(right) / len(right) for right in groups.values()) / len(groups)
    assert balanced_by(outputs, proxy) == pytest.approx(expected)


def test_only_ula_and_plain_may_choose_where_bias_labels_are_hidden():
    assert config("evaluate.select=ula", bias="none", method="ce").evaluate.select == "ula"
    assert config("evaluate.select=cell-mean", bias="none", method="ce").evaluate.select == "plain"
    with pytest.raises(ConfigError, match=r'evaluate.select must be one of .*did you mean "ula"'):
        config("evaluate.select=ulla", bias="none", method="ce")
