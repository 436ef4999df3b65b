"""Trackers get every number once, whatever happens to the run, and no run ends because of them."""

import json
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from fairmargin import config as configuration
from fairmargin.config import ConfigError
from fairmargin.config.schema import TrackerName
from fairmargin.run import run
from fairmargin.runs import build, trackers
from fairmargin.runs.mistakes import worst_mistakes
from fairmargin.runs.record import RunRecord
from fairmargin.runs.recorder import Recorder
from tests.runs.fake_trackers import FAKES, Seen
from tests.small_runs import config, interrupted, silently

ALL = 'train.trackers=["wandb", "mlflow", "trackio"]'
TINY = (
    "train.batch_size=50",
    "data.test=100",
    "train.epochs=3",
    "evaluate.classifiers=['own', 'knn']",
    "evaluate.resamples=10",
    "train.checkpoint_seconds=1e6",
)


@pytest.fixture
def seen(monkeypatch):
    """What each fake tool has seen, by name."""
    for variable in ("WANDB_PROJECT", "WANDB_DIR", "TRACKIO_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    found = {name: Seen() for name in FAKES}
    for name, make in FAKES.items():
        monkeypatch.setitem(sys.modules, name, make(found[name]))
    return found


def said_by(*changes, out, **options):
    """Run, and return what was printed."""
    console = Console(record=True, quiet=False, width=400, file=(out.parent / "said").open("w"))
    run(config(*changes, **options), out, console=console)
    return console.export_text()


def test_every_tool_gets_the_numbers_of_the_log(seen, tmp_path):
    out = tmp_path / "seed-0"
    record = silently(ALL, *TINY, out=out, method="ce")
    losses = {e["step"]: e["terms"]["ce"] for e in record.steps()}
    rates = {e["step"]: e["lr"]["main"] for e in record.steps()}
    tests = {e["step"]: e["test"]["cell-mean"] for e in record.evaluations()}
    result = record.outcome
    headline = result["test"]["own"]["accuracy"]["cell-mean"]["value"]
    groups = result["test"]["own"]["groups"]
    for name, one in seen.items():
        assert one.series("train/ce") == losses, name
        assert one.series("lr/main") == rates, name
        assert one.series("test/cell-mean") == tests, name
        assert one.series("valid/plain").keys() == tests.keys(), name
        assert max(Counter(one.points()).values()) == 1, name
        shares = [key for key, _ in one.points() if key.startswith("group/")]
        assert len(shares) == sum(n > 0 for row in groups["n"] for n in row)
        assert str(one.settings["train.epochs"]) == "3"
    assert seen["wandb"].summary["headline"] == headline
    assert seen["wandb"].summary["knn/plain"] == result["test"]["knn"]["accuracy"]["plain"]["value"]
    assert seen["mlflow"].summary["headline_accuracy"] == "cell-mean"
    assert list(seen["trackio"].series("summary/headline").values()) == [headline]
    assert [one.ends for one in seen.values()] == [[0], ["FINISHED"], ["finish"]]
    start = seen["wandb"].starts[0]
    assert start["name"] == "biased-mnist-mini/ce/seed-0"
    assert (start["project"], start["dir"]) == ("fairmargin", str(out))


def test_a_killed_and_resumed_run_logs_no_step_twice(seen, tmp_path):
    """Twice killed: the second time before it came to where it was the first time."""
    out = tmp_path / "run"
    interrupted(out, ALL, *TINY, steps=(7, 23), method="ce")
    (out / "checkpoints" / "step-00000023.ckpt").unlink()
    interrupted(out, ALL, *TINY, steps=(7, 12), method="ce", there=[7, 12])
    (out / "checkpoints" / "step-00000012.ckpt").unlink()
    record = silently(ALL, *TINY, out=out, method="ce")
    for name, one in seen.items():
        assert max(Counter(one.points()).values()) == 1, name
        assert one.series("train/ce") == {
            e["step"]: pytest.approx(e["terms"]["ce"]) for e in record.steps()
        }, name
        assert len({row[0] for row in one.rows}) == 1, name
        assert len(one.starts) == 3, name
    assert seen["wandb"].starts[0]["id"] is None
    assert {start["id"] for start in seen["wandb"].starts[1:]} == {"w1"}
    assert seen["wandb"].ends == [1, 1, 0]
    assert seen["mlflow"].ends == ["KILLED", "KILLED", "FINISHED"]


def test_tensorboard_after_a_kill_has_each_step_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    changes = ("train.tensorboard=true", *TINY, "train.log_steps=1")
    interrupted(out, *changes, steps=(7, 23), method="ce")
    (out / "checkpoints" / "step-00000023.ckpt").unlink()
    record = silently(*changes, out=out, method="ce")
    events = EventAccumulator(str(out / "tensorboard"), purge_orphaned_data=True)
    events.Reload()
    logged = {e["step"]: e["terms"]["ce"] for e in record.steps()}
    points = events.Scalars("train/ce")
    assert [point.step for point in points] == sorted(logged)
    assert {p.step: p.value for p in points} == pytest.approx(logged)
    assert [p.step for p in events.Scalars("test/plain")] == [
        e["step"] for e in record.evaluations()
    ]
    headline = record.outcome["test"]["own"]["accuracy"]["cell-mean"]["value"]
    assert events.Scalars("summary/headline")[-1].value == pytest.approx(headline)
    assert any(tag.startswith("group/0") for tag in events.Tags()["scalars"])
    (picture,) = events.Images("mistakes")
    assert (picture.step, picture.width) == (record.outcome["steps"], 4 * 144)


def surest_mistakes(record):
    """Captions by hand, from test.npz."""
    test, data = record.test, record.data
    logits = np.exp(test["logits"] - test["logits"].max(1, keepdims=True))
    share = logits.max(1) / logits.sum(1)
    wrong = np.flatnonzero(test["predicted"] != test["labels"])
    found = []
    for i in wrong[np.argsort(-share[wrong], kind="stable")]:
        label = data["class_names"][test["labels"][i]]
        answer = data["class_names"][test["predicted"][i]]
        bias = data["bias_names"][test["bias"][i]]
        found.append(f"is {label}, {share[i]:.0%} sure: {answer}, bias {bias}")
    return found


def test_the_worst_mistakes_are_shown(seen, tmp_path):
    record = silently(ALL, *TINY, "train.tracked_images=3", out=tmp_path / "run", method="ce")
    wanted = surest_mistakes(record)
    steps = record.outcome["steps"]
    names = {"wandb": "mistakes", "mlflow": f"mistakes-step-{steps}.png", "trackio": "mistakes"}
    for tool, name in names.items():
        (picture,) = [seen[tool].pictures[name]]
        # Three images of 128 and their margins, and three lines of text below.
        assert picture.pixels.shape == (186, 3 * 144, 3), tool
        assert picture.pixels.dtype == np.uint8
    for tool in ("wandb", "trackio"):
        lead, *captions = seen[tool].pictures["mistakes"].caption.split("; ")
        assert lead == f"3 of {len(wanted)} wrong of 100 test images"
        assert captions == [f"{k}. {text}" for k, text in enumerate(wanted[:3], 1)]


def test_the_pictures_are_those_of_the_mistakes(tmp_path):
    record = silently(*TINY, out=tmp_path / "run", method="ce")
    data = build.data(config(*TINY, method="ce"))
    kept = {key: torch.from_numpy(record.test[key]) for key in ("logits", "labels", "bias")}
    outputs = SimpleNamespace(**kept)
    picture = worst_mistakes(outputs, data, 1)
    share = kept["logits"].softmax(1).max(1).values
    wrong = kept["logits"].argmax(1) != kept["labels"]
    at = torch.where(wrong, share, torch.zeros(())).argmax()
    image = data.test.images(at[None])[0].permute(1, 2, 0).numpy()
    shown = picture.pixels[8:136, 8:136]
    scale = 128 / len(image)
    middles = ((np.arange(len(image)) + 0.5) * scale).astype(int)
    assert (shown[middles][:, middles] == image).all()


def test_no_pictures_if_not_wanted(seen, tmp_path):
    silently(ALL, *TINY, "train.tracked_images=0", out=tmp_path / "run", method="ce")
    assert all(one.pictures == {} for one in seen.values())


class NumbersOnly:
    """The smallest tracker."""

    id = "mine"
    forgets = False

    def __init__(self, start):
        self.said = []

    def log(self, values, step):
        self.said += values

    def finish(self, summary):
        self.said.append(summary["headline_accuracy"])


def test_a_tracker_without_images_is_fine(seen, tmp_path, monkeypatch):
    made = []
    monkeypatch.setitem(
        trackers.TRACKERS, "mlflow", lambda start: made.append(NumbersOnly(start)) or made[0]
    )
    said = said_by(ALL, *TINY, out=tmp_path / "run", method="ce")
    assert "warning" not in said
    assert {"train/ce", "test/plain", "cell-mean"} <= set(made[0].said)
    assert "mistakes" in seen["wandb"].pictures


def test_nothing_is_shown_of_embeddings_or_of_a_model_without_mistakes():
    right = SimpleNamespace(logits=torch.eye(2), labels=torch.arange(2), bias=None)
    images = SimpleNamespace(info=SimpleNamespace(image_shape=(3, 8, 8)))
    vectors = SimpleNamespace(info=SimpleNamespace(image_shape=(5,)))
    assert worst_mistakes(right, images, 4) is None
    wrong = SimpleNamespace(logits=torch.eye(2), labels=1 - torch.arange(2), bias=None)
    assert worst_mistakes(wrong, vectors, 4) is None


def test_a_tool_that_fails_is_warned_of_once_and_the_run_ends(seen, tmp_path):
    seen["wandb"].fails = True
    said = said_by(ALL, *TINY, out=tmp_path / "run", method="ce")
    assert said.count("the tracker wandb failed (ConnectionError: the server is away)") == 1
    assert "second line" not in said
    assert RunRecord.read(tmp_path / "run").finished
    assert seen["wandb"].rows == []
    assert seen["mlflow"].ends == ["FINISHED"]


def test_a_tool_that_cannot_start_is_an_error_at_the_beginning_only(seen, tmp_path, monkeypatch):
    def refuse(**settings):
        raise RuntimeError("not logged in")

    out = tmp_path / "run"
    wandb = "train.trackers=wandb"
    interrupted(out, wandb, *TINY, steps=(3, 5), method="ce")
    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    said = said_by(wandb, *TINY, out=out, method="ce")
    assert "the tracker wandb failed (RuntimeError: not logged in)" in said
    assert RunRecord.read(out).finished
    with pytest.raises(ValueError, match=r"wandb could not be started .*not logged in"):
        silently(wandb, *TINY, out=tmp_path / "other", method="ce")


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_package_names_its_extra(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf'pip install "fairmargin\[{name}\]"'):
        silently(f"train.trackers={name}", *TINY, out=tmp_path / "run", method="ce")


def test_a_run_of_the_caller_stays_open(seen, tmp_path):
    mlflow = sys.modules["mlflow"]
    mlflow.start_run(run_id=None, run_name="mine", nested=False)
    silently("train.trackers=mlflow", *TINY, out=tmp_path / "run", method="ce")
    assert mlflow.active_run() == "m1"


def test_environment_variables_choose_the_project(seen, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("TRACKIO_PROJECT", "ours")
    silently(ALL, *TINY, out=tmp_path / "run", method="ce")
    assert seen["wandb"].starts[0]["project"] == "mine"
    assert seen["trackio"].starts[0]["project"] == "ours"


def test_other_ranks_log_nothing(seen, tmp_path, monkeypatch):
    begin = Recorder.begin

    def begin_elsewhere(self, command, bias):
        self.writes = False
        begin(self, command, bias)

    monkeypatch.setattr(Recorder, "begin", begin_elsewhere)
    with pytest.raises(OSError, match="not a run folder"):
        silently(ALL, *TINY, out=tmp_path / "run", method="ce")
    assert all(one.starts == [] for one in seen.values())


def test_no_path_of_this_machine_is_sent(tmp_path):
    chosen = config(f"data.scores={tmp_path}/scores")
    assert trackers._settings(chosen)["data.scores"] == "scores"
    assert str(tmp_path) not in json.dumps(trackers._settings(chosen), default=str)
    assert "data.root" not in trackers._settings(chosen)


def test_names_of_trackers():
    assert tuple(trackers.TRACKERS) == TrackerName.__args__
    for text in ("wandb", "['wandb']", '"wandb"'):
        assert config(f"train.trackers={text}").train.trackers == ("wandb",)
    both = config("train.trackers=wandb, mlflow", "train.tensorboard=true")
    assert trackers.chosen(both) == ["tensorboard", "wandb", "mlflow"]
    assert configuration.override(both, ["train.trackers=none"]).train.trackers == ()
    with pytest.raises(ConfigError, match=r"train\.trackers.*wandb"):
        config("train.trackers=wandv")
    with pytest.raises(ConfigError, match="each once"):
        config("train.trackers=['wandb', 'wandb']")


def test_a_run_may_go_on_with_other_trackers(seen, tmp_path):
    out = tmp_path / "run"
    interrupted(out, *TINY, steps=(3, 5), method="ce")
    silently("train.trackers=mlflow", *TINY, out=out, method="ce")
    assert min(step for _, step, _ in seen["mlflow"].rows) > 5
