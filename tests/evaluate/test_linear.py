import json
import math
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.batch import Batch, DataInfo
from fairmargin.cli.app import app
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import Shuffled
from fairmargin.data.split import ArraySplit, Data, FileSplit
from fairmargin.data.views import HALF, Flip, Randomness, Views, plain, supcon, without_colour
from fairmargin.evaluate import LinearSettings, answers, collect, evaluate, fit_linear
from fairmargin.evaluate.linear import OWN_NUMBERS, Linear, first_layer
from fairmargin.methods.base import Method
from fairmargin.report.page import write_report
from fairmargin.run import run
from fairmargin.runs import build
from fairmargin.runs.folder import RunRecord, find_runs
from fairmargin.runs.progress import Display
from fairmargin.runtime.signals import Interrupted

CLASSES, SIDE = 3, 4
WIDTH = 5
NO_BIAS = torch.zeros(CLASSES, 0, dtype=torch.long)
INFO = DataInfo("small", tuple("abc"), (), (3, SIDE, SIDE), NO_BIAS)
FEW = LinearSettings(lr=0.5, epochs=3, batch_size=16)


class Small(Method):
    """Batch norm and dropout, so that a wrong mode shows; it counts the images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [
                nn.Flatten(),
                nn.Linear(3 * SIDE * SIDE, WIDTH),
                nn.BatchNorm1d(WIDTH),
                nn.Dropout(0.5),
            ]
            self.encoder = nn.Sequential(*layers)
            self.head = nn.Linear(WIDTH, CLASSES)
        self.frozen = nn.Dropout().eval()
        self.images = 0

    def players(self) -> dict[str, list[nn.Parameter]]:
        return {"main": list(self.parameters())}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        yield "main", nn.functional.cross_entropy(self.predict(batch.images), batch.labels)

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        self.images += len(images)
        h = self.encoder(images)
        return h, self.head(h)


@dataclass
class Noted:
    """A step of views that notes the batches it sees and changes each by chance."""

    sizes: list[int] = field(default_factory=list)
    means: list[float] = field(default_factory=list)

    def __call__(self, x: Tensor, generator: Randomness) -> Tensor:
        changed = Flip(0.5)(x, generator)
        self.sizes.append(len(x))
        self.means.append(float(changed[:, 0, 0, 0].mean()))
        return changed


def split(seed: int, n: int = 50) -> ArraySplit:
    """Each class has a bright pixel of its own, the same after a flip."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    pixels = torch.randint(0, 40, (n, 3, SIDE, SIDE), dtype=torch.uint8, generator=g)
    for column in (0, SIDE - 1):
        pixels[torch.arange(n), 0, labels, column] = 255
    return ArraySplit(pixels, labels)


def made(train: ArraySplit, views: Views) -> Data:
    extra = {"extra": split(3)}
    return Data(train, split(1), split(2), INFO, views, plain(*HALF), extra)


def augmented() -> Views:
    return Views((Flip(),), *HALF)


def history(settings: LinearSettings, views: Views, seed: int = 0) -> list[Linear]:
    """The layer after each epoch."""
    found: list[Linear] = []
    last = fit_linear(Small(), split(seed), views, INFO, settings, after_epoch=found.append)
    assert torch.equal(found[-1].weight, last.weight)
    assert found[-1].losses == last.losses
    return found


def test_defaults_are_those_of_supcontrast() -> None:
    """main_linear.py, and the command in its README for SupCon."""
    ours = LinearSettings()
    assert (ours.lr, ours.batch_size, ours.epochs) == (5.0, 512, 100)
    assert (ours.momentum, ours.weight_decay, ours.factor) == (0.9, 0.0, 0.2)
    assert [ours.epochs * share for share in ours.milestones] == [60, 75, 90]
    assert build.linear(configuration.load(seed=7)) == LinearSettings(seed=7)
    changes = [
        "lr=0.3",
        "epochs=7",
        "batch_size=9",
        "momentum=0.5",
        "weight_decay=0.1",
        "milestones=[2, 4]",
        "factor=0.4",
    ]
    chosen = build.linear(
        configuration.load(seed=3, overrides=[f"evaluate.linear_{change}" for change in changes])
    )
    assert chosen == LinearSettings(0.3, 7, 9, 0.5, 0.1, (2, 4), 0.4, 3)


@pytest.mark.parametrize("views", [augmented(), plain(*HALF)])
def test_a_separable_problem_is_solved(views: Views) -> None:
    method, settings = Small(), LinearSettings(lr=1.0, epochs=30, batch_size=16)
    found = fit_linear(method, split(0, n=120), views, INFO, settings)
    unseen = collect(method, split(9), plain(*HALF))
    assert torch.equal(answers(found.logits(unseen.features)), unseen.labels)
    assert len(found.losses) == 30
    assert found.losses[-1] < 0.1 < found.losses[0]
    assert found.finite


@pytest.mark.parametrize("views", [augmented(), plain(*HALF)])
def test_it_is_sgd_on_these_batches_written_out(views: Views) -> None:
    """Ten samples in batches of four, the last of two; rates 0.5, 0.5, 0.1, 0.02."""
    settings = LinearSettings(
        0.5, 4, 4, momentum=0.8, weight_decay=0.01, milestones=(2, 0.75), factor=0.2, seed=5
    )
    method, train = Small(), split(0, n=10)
    method.train()
    method.encoder(views(train.pixels))  # moves the running statistics
    found = fit_linear(method, train, views, INFO, settings)

    method.eval()
    first = first_layer(WIDTH, CLASSES, seed=5)
    parameters = torch.cat(
        [first.weight, first.bias[:, None]], 1
    ).tolist()  # of each class, the bias last
    velocity = [[0.0] * (WIDTH + 1) for _ in range(CLASSES)]
    loader = Loader(train, views, Shuffled(10, OWN_NUMBERS + 5), 4, seed=OWN_NUMBERS + 5)
    for rate in (0.5, 0.5, 0.1, 0.02):
        total = 0.0
        for batch in loader:
            rows = [[*h, 1.0] for h in method.encoder(batch.images).tolist()]
            gradient = [[0.01 * value for value in row] for row in parameters]
            for h, label in zip(rows, batch.labels.tolist(), strict=True):
                logits = [sum(w * x for w, x in zip(row, h, strict=True)) for row in parameters]
                normalizer = sum(map(math.exp, logits))
                total -= logits[label] - math.log(normalizer)
                for c in range(CLASSES):
                    error = math.exp(logits[c]) / normalizer - (c == label)
                    for d in range(WIDTH + 1):
                        gradient[c][d] += error * h[d] / len(rows)
            for c in range(CLASSES):
                for d in range(WIDTH + 1):
                    velocity[c][d] = 0.8 * velocity[c][d] + gradient[c][d]
                    parameters[c][d] -= rate * velocity[c][d]
    expected = torch.tensor(parameters)
    torch.testing.assert_close(found.weight, expected[:, :-1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.bias, expected[:, -1], rtol=1e-4, atol=1e-5)
    assert found.losses[-1] == pytest.approx(total / 10, rel=1e-4)


@pytest.mark.parametrize("milestones", [(2,), (0.4,)])
def test_the_rate_falls_after_its_milestones(milestones: tuple[float, ...]) -> None:
    """By next to everything after the second of five epochs: from then on nothing moves."""
    settings = replace(FEW, epochs=5, milestones=milestones, factor=1e-30)
    weights = [layer.weight for layer in history(settings, augmented())]
    moved = [not torch.equal(a, b) for a, b in pairwise(weights)]
    assert moved == [True, False, False, False]
    start = first_layer(WIDTH, CLASSES, seed=0).weight
    assert not torch.equal(weights[0], start)


def test_the_method_stays_what_it_was() -> None:
    method = Small()
    method.encoder(
        torch.randn(8, 3, SIDE, SIDE)
    )  # statistics that a pass in training mode would move
    before = {name: value.clone() for name, value in method.state_dict().items()}
    modes = {name: part.training for name, part in method.named_modules()}
    torch.manual_seed(1)
    random = torch.get_rng_state()
    fit_linear(method, split(0), augmented(), INFO, FEW)
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert before["encoder.2.num_batches_tracked"] == 1
    assert {name: part.training for name, part in method.named_modules()} == modes
    assert modes["encoder"]
    assert not modes["frozen"]
    assert all(
        parameter.grad is None and parameter.requires_grad for parameter in method.parameters()
    )
    assert torch.equal(torch.get_rng_state(), random)


def test_the_seed_alone_decides() -> None:
    layers = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(layers))
        layers.append(fit_linear(Small(), split(0), augmented(), INFO, replace(FEW, seed=seed)))
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert torch.equal(layers[0].bias, layers[1].bias)
    assert layers[0].losses == layers[1].losses
    assert not torch.equal(layers[0].weight, layers[2].weight)
    assert not torch.equal(
        first_layer(WIDTH, CLASSES, 3).weight, first_layer(WIDTH, CLASSES, 4).weight
    )
    assert first_layer(100, CLASSES, 3).weight.abs().max() <= 0.1  # 1/√100


def from_file(path: Path) -> Tensor:
    pixels: Tensor = torch.load(path)
    return pixels


def test_workers_change_nothing(tmp_path: Path) -> None:
    train = split(0, n=20)
    paths = [tmp_path / f"{i}.pt" for i in range(20)]
    for path, pixels in zip(paths, train.pixels, strict=True):
        torch.save(pixels.clone(), path)
    files = FileSplit(paths, train.labels, from_file)
    one, two, memory = (
        fit_linear(Small(), samples, augmented(), INFO, FEW, workers=workers)
        for samples, workers in ((files, 0), (files, 2), (train, 0))
    )
    assert torch.equal(one.weight, two.weight)
    assert torch.equal(one.weight, memory.weight)


def test_every_epoch_sees_new_views_of_every_image() -> None:
    noted, method = Noted(), Small()
    fit_linear(method, split(0), Views((noted,), *HALF, number=2), INFO, FEW)
    assert noted.sizes == [16, 16, 16, 2] * 3  # one view of each, although training has two
    assert len(set(noted.means)) == 12
    assert method.images == 3 * 50 + 1  # and a black one, for the width


def test_views_that_change_nothing_are_seen_once() -> None:
    method = Small()
    fit_linear(method, split(0), plain(*HALF), INFO, FEW)
    assert method.images == 50 + 1


def test_colours_stay_as_they_are() -> None:
    strong = supcon(SIDE, *HALF)
    found, same = (
        fit_linear(Small(), split(0), views, INFO, FEW)
        for views in (strong, without_colour(strong))
    )
    assert torch.equal(found.weight, same.weight)


def test_progress_is_told_batch_by_batch() -> None:
    heard = []
    fit_linear(Small(), split(0), augmented(), INFO, FEW, progress=lambda *what: heard.append(what))
    assert heard == [("linear evaluation", done, 12) for done in range(1, 13)]


def test_it_learns_where_gradients_are_switched_off() -> None:
    with torch.no_grad():
        switched_off = fit_linear(Small(), split(0), augmented(), INFO, FEW)
    assert torch.equal(
        switched_off.weight, fit_linear(Small(), split(0), augmented(), INFO, FEW).weight
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "needs epochs of at least 1; got 0"),
        ({"batch_size": 0}, "needs batch_size of at least 1; got 0"),
        ({"lr": 0.0}, "needs lr above 0; got 0.0"),
        ({"factor": -1.0}, "needs factor above 0; got -1.0"),
        ({"momentum": -0.1}, "needs momentum of at least 0; got -0.1"),
        ({"weight_decay": -1e-4}, "needs weight_decay of at least 0; got -0.0001"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"linear evaluation {message}"):
        LinearSettings(**changes)  # type: ignore[arg-type]


def test_samples_it_cannot_learn_from_are_refused() -> None:
    train = split(0)
    with pytest.raises(ValueError, match="needs training samples and there are none"):
        fit_linear(Small(), train.subset(torch.arange(0)), augmented(), INFO, FEW)
    with pytest.raises(ValueError, match="labels must be from 0 to 2; got 0 to 3"):
        fit_linear(
            Small(),
            replace(train, labels=train.labels.clone().index_fill(0, torch.tensor([1]), 3)),
            augmented(),
            INFO,
        )
    found = fit_linear(Small(), train, augmented(), INFO, FEW)
    with pytest.raises(ValueError, match=r"trained on 5 features per sample; got \[2, 7\]"):
        found.logits(torch.zeros(2, 7))


def test_evaluate_reports_the_last_epoch_and_records_the_best() -> None:
    data, method = made(split(0), augmented()), Small()
    settings = replace(FEW, lr=20.0, epochs=6)  # too fast, so that accuracies jump
    found = evaluate(method, data, classifiers=("own", "linear"), linear=settings, resamples=10)
    test, extra = (
        collect(method, part, data.eval_views) for part in (data.test, data.extra_tests["extra"])
    )
    layers = history(settings, data.train_views)
    right = [
        float((answers(layer.logits(test.features)) == test.labels).double().mean())
        for layer in layers
    ]
    assert max(right) > right[-1]  # else nothing is shown
    judged = found.test["linear"]
    assert judged["accuracy"]["plain"]["value"] == pytest.approx(right[-1])
    assert judged["best-on-test"] == {"epoch": 1 + right.index(max(right)), "plain": max(right)}
    assert (judged["epochs"], judged["loss"]) == (6, layers[-1].losses[-1])
    on_extra = float((answers(layers[-1].logits(extra.features)) == extra.labels).double().mean())
    assert found.extra_tests["extra"]["linear"]["accuracy"]["plain"]["value"] == pytest.approx(
        on_extra
    )
    assert "best-on-test" not in found.extra_tests["extra"]["linear"]
    assert list(found.test) == ["own", "linear"]
    json.dumps([found.test, found.extra_tests], allow_nan=False)
    assert "linear" not in evaluate(method, data, resamples=10).test  # it has its price


def test_a_layer_that_has_not_learnt_is_said() -> None:
    """With nothing to learn, large steps are worse than none."""
    g = torch.Generator().manual_seed(0)
    noise = replace(split(0), labels=torch.randint(CLASSES, (50,), generator=g))
    judged = [
        evaluate(
            Small(),
            made(noise, augmented()),
            classifiers=("linear",),
            linear=replace(FEW, lr=lr),
            resamples=10,
        )
        for lr in (300.0, 0.01)
    ]
    assert (
        "more than twice the 1.1 of equal probabilities: evaluate.linear_lr is"
        in judged[0].test["linear"]["warnings"][0]
    )
    assert judged[1].test["linear"]["warnings"] == []


def test_features_that_are_not_finite_leave_the_others_alone() -> None:
    method = Small()
    with torch.no_grad():
        method.encoder[1].weight.fill_(torch.nan)
    found = evaluate(
        method, made(split(0), augmented()), classifiers=("own", "linear"), linear=FEW, resamples=10
    )
    assert list(found.test) == ["own"]
    assert "no linear evaluation: its loss is not finite in epoch 1" in found.warnings[0]


@pytest.mark.parametrize("name", ["own", "probe", "knn", "linear"])
def test_an_empty_set_has_nothing_to_say_of_any_classifier(name: str) -> None:
    data = made(split(0), augmented())
    nothing = data.test.subset(torch.arange(0))  # type: ignore[attr-defined]
    found = evaluate(Small(), data, classifiers=(name,), linear=FEW, test=nothing, resamples=10)
    assert (found.test[name]["n"], found.test[name]["accuracy"]) == (0, {})
    assert found.extra_tests["extra"][name]["n"] == 50


TINY = [
    "data.train=500",
    "data.test=300",
    "network.name=simple-conv-3",
    "network.stride=2",
    "network.widths=[4, 8]",
    "train.epochs=1",
    "train.batch_size=50",
    "train.device=cpu",
    "evaluate.resamples=10",
    "evaluate.classifiers=['own', 'linear']",
    "evaluate.linear_epochs=3",
    "evaluate.linear_batch_size=64",
]


def trained(out: Path, *changes: str) -> RunRecord:
    chosen = configuration.load(
        dataset="biased-mnist-mini", method="eps-supinfonce", seed=2, overrides=[*TINY, *changes]
    )
    return run(chosen, out, console=Console(quiet=True))


def test_a_run_with_linear_evaluation_from_beginning_to_end(tmp_path: Path) -> None:
    record = trained(tmp_path / "run")
    assert record.result is not None
    assert list(record.result["test"]) == ["own", "linear"]
    assert record.result["headline"]["classifier"] == "own"
    judged = record.result["test"]["linear"]
    assert (judged["n"], judged["epochs"]) == (300, 3)
    own = record.result["test"]["own"]
    assert (
        judged["accuracy"].keys() == own["accuracy"].keys() > {"plain"}
    )  # by group too: these digits have a bias
    assert judged["groups"]["n"] == own["groups"]["n"]
    assert judged["best-on-test"]["plain"] >= judged["accuracy"]["plain"]["value"]
    page = write_report(find_runs([tmp_path / "run"]), tmp_path / "report.html").read_text("utf-8")
    assert "linear evaluation" in page
    # The same weights, judged again: the same answers, by a terminal that has a column for them.
    again = ["evaluate", str(tmp_path / "run"), "--out", str(tmp_path / "found.json")]
    shown = CliRunner().invoke(app, again)
    assert shown.exit_code == 0, shown.output
    assert "evaluation" in shown.stdout
    assert "linear evaluation: 100%" in shown.stderr
    assert json.loads((tmp_path / "found.json").read_text())["test"]["linear"] == judged
    other = CliRunner().invoke(app, [*again, "--set", "evaluate.linear_lr=0.01"])
    assert other.exit_code == 0, other.output
    assert (
        json.loads((tmp_path / "found.json").read_text())["test"]["linear"]["loss"]
        != judged["loss"]
    )


def test_ctrl_c_in_linear_evaluation_keeps_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = trained(tmp_path / "undisturbed")

    def stop(self: Display, what: str, done: int, of: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Display, "stage", stop)
        with pytest.raises(
            Interrupted, match="stopped in linear evaluation; the training is done and saved"
        ):
            trained(tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    record = trained(tmp_path / "run")
    assert record.result is not None
    assert undisturbed.result is not None
    assert record.result["test"] == undisturbed.result["test"]
    assert len([event for event in record.metrics if event["event"] == "evaluation"]) == 1
