import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.data.bias import count_cells
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import HALF, plain, supcon
from fairmargin.evaluate import CLASSIFIERS, NAMES, USUAL, collect, evaluate, judge, quick
from fairmargin.evaluate.accuracy import values
from fairmargin.evaluate.probe import fit_probe, knn_logits
from fairmargin.evaluate.similarity import ordering, similarities
from fairmargin.methods.base import Method
from fairmargin.vectors import unit

CLASSES, BIASES = 3, 4


class Small(Method):
    """Batch norm and dropout, so that the mode shows; one part is always in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.encoder = nn.Sequential(
                nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
            )
            self.head = nn.Linear(8, CLASSES)
        self.frozen = nn.Dropout().eval()

    def players(self) -> dict[str, list[nn.Parameter]]:
        return {"main": list(self.parameters())}

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        yield "main", nn.functional.cross_entropy(self.predict(batch.images), batch.labels)

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        h = self.encoder(images)
        return h, self.head(h)


def split(seed: int, n: int = 90) -> ArraySplit:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=g)
    bias = torch.randint(BIASES, (n,), generator=g)
    pixels = torch.randint(0, 256, (n, 3, 4, 4), dtype=torch.uint8, generator=g)
    pixels[torch.arange(n), 0, 0, labels] = 255
    pixels[torch.arange(n), 1, 1, bias] = 255
    return ArraySplit(pixels, labels, bias)


@pytest.fixture
def data() -> Data:
    train, valid, test, extra = (split(seed) for seed in range(4))
    info = DataInfo(
        "small",
        tuple("abc"),
        tuple("wxyz"),
        (3, 4, 4),
        count_cells(train.labels, train.bias, CLASSES, BIASES),
    )
    hidden = ArraySplit(extra.pixels, extra.labels)
    return Data(
        train, valid, test, info, supcon(4, *HALF), plain(*HALF), {"extra": extra, "hidden": hidden}
    )


def test_collect_equals_direct_prediction(data):
    method = Small()
    for _ in range(3):
        method.predict(data.eval_views(data.train.pixels))  # moves the running statistics
    found = collect(method, data.test, data.eval_views, batch_size=32)
    method.eval()
    images = data.eval_views(data.test.pixels)
    with torch.no_grad():
        torch.testing.assert_close(found.features, method.features(images))
        torch.testing.assert_close(found.logits, method.predict(images))
    assert torch.equal(found.labels, data.test.labels)
    assert torch.equal(found.bias, data.test.bias)


def test_collect_puts_every_mode_back(data):
    method = Small()
    before = {name: part.training for name, part in method.named_modules()}
    assert before["encoder"]
    assert not before["frozen"]
    statistics = method.encoder[2].running_mean.clone()
    collect(method, data.test, data.eval_views)
    assert {name: part.training for name, part in method.named_modules()} == before
    assert torch.equal(method.encoder[2].running_mean, statistics)
    method.eval()
    collect(method, data.test, data.eval_views)
    assert not method.training


def test_modes_are_put_back_after_an_error(data):
    method = Small()
    method.head = nn.Linear(5, 2)
    with pytest.raises(RuntimeError):
        collect(method, data.test, data.eval_views)
    assert method.training


def test_outputs_can_be_trained_on(data):
    found = collect(Small(), data.test, data.eval_views)
    layer = nn.Linear(8, 2)
    layer(found.features).sum().backward()
    assert layer.weight.grad is not None
    assert not found.features.requires_grad


def test_collect_of_an_empty_split(data):
    found = collect(Small(), data.test.subset(torch.arange(0)), data.eval_views)
    assert len(found.features) == len(found.logits) == len(found.labels) == 0
    assert quick(Small(), data.test.subset(torch.arange(0)), data.eval_views, data.info) == {}
    judged = judge(found.logits, found.labels, found.bias, data.info)
    assert (judged["n"], judged["accuracy"], judged["groups"], judged["calibration"]) == (
        0,
        {},
        None,
        None,
    )


def test_several_views_are_refused(data):
    with pytest.raises(ValueError, match="these views make 2; give eval_views"):
        collect(Small(), data.test, data.train_views)


def test_judged_is_what_the_run_folder_promises(data):
    found = collect(Small(), data.test, data.eval_views)
    judged = judge(found.logits, found.labels, found.bias, data.info, resamples=50)
    assert list(judged) == [
        "n",
        "accuracy",
        "groups",
        "equalised_odds_gap",
        "calibration",
        "warnings",
    ]
    assert judged["n"] == 90
    assert tuple(judged["accuracy"]) == NAMES
    assert set(judged["accuracy"]["plain"]) == {"value", "low", "high"}
    assert (
        torch.tensor(judged["groups"]["n"]).tolist()
        == count_cells(data.test.labels, data.test.bias, 3, 4).tolist()
    )
    assert set(judged["groups"]) == {"n", "correct", "low", "high"}
    assert set(judged["calibration"]) == {"ece", "nll", "brier", "bins"}
    assert set(judged["calibration"]["bins"][0]) == {"confidence", "accuracy", "n"}
    assert "fewer than 10 test samples; the smallest, (label=" in judged["warnings"][0]
    assert json.loads(json.dumps(judged, allow_nan=False)) == judged


def test_judge_without_bias(data):
    found = collect(Small(), data.test, data.eval_views)
    unnamed = replace(data.info, bias_names=(), counts=torch.zeros(3, 0, dtype=torch.long))
    cases = [(None, data.info), (torch.full((90,), -1), data.info), (found.bias, unnamed)]
    for bias, info in cases:
        judged = judge(found.logits, found.labels, bias, info)
        assert list(judged["accuracy"]) == ["plain"]
        assert judged["groups"] is None
        assert judged["equalised_odds_gap"] is None
        assert judged["calibration"] is not None
        assert judged["warnings"] == []


def test_empty_groups_are_null(data):
    found = collect(Small(), data.test, data.eval_views)
    chosen = ~((found.labels == 1) & (found.bias == 2))
    judged = judge(found.logits[chosen], found.labels[chosen], found.bias[chosen], data.info)
    assert judged["groups"]["n"][1][2] == 0
    assert judged["groups"]["low"][1][2] is None
    assert "1 of 12 groups has no test samples" in judged["warnings"]


def test_logits_that_are_not_finite_count_as_wrong():
    info = DataInfo("tiny", ("a", "b"), (), (3, 4, 4), torch.zeros(2, 0, dtype=torch.long))
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor([[1.0, 0.0], [nan, 0.0], [inf, 0.0], [-inf, -inf], [-inf, 0.0]])
    judged = judge(logits, torch.tensor([0, 0, 0, 0, 1]), None, info)
    assert judged["accuracy"]["plain"]["value"] == pytest.approx(2 / 5)
    assert judged["calibration"] is None
    assert judged["warnings"] == [
        "3 of 5 samples have logits that are not finite; they count as wrong"
    ]


def test_quick_is_the_own_classifier(data):
    method = Small()
    found = quick(method, data.valid, data.eval_views, data.info)
    outputs = collect(method, data.valid, data.eval_views)
    expected = values(
        outputs.logits.argmax(1), data.valid.labels, data.valid.bias, data.info.counts
    )
    assert found == expected
    assert tuple(found) == NAMES


def test_evaluate_judges_every_classifier_on_every_set(data):
    method = Small()
    found = evaluate(method, data, resamples=50)
    assert tuple(found.test) == USUAL
    assert set(found.extra_tests) == {"extra", "hidden"}
    train, test, extra = (
        collect(method, part, data.eval_views)
        for part in (data.train, data.test, data.extra_tests["extra"])
    )
    probe = fit_probe(unit(train.features), train.labels, CLASSES)
    for outputs, judged in ((test, found.test), (extra, found.extra_tests["extra"])):
        logits = {
            "own": outputs.logits,
            "probe": probe.logits(unit(outputs.features)),
            "knn": knn_logits(train.features, train.labels, outputs.features, CLASSES),
        }
        for name in USUAL:
            expected = judge(logits[name], outputs.labels, outputs.bias, data.info, resamples=50)
            assert judged[name]["accuracy"] == expected["accuracy"]
            assert judged[name]["calibration"]["nll"] == pytest.approx(
                expected["calibration"]["nll"], rel=1e-4
            )
    assert list(found.extra_tests["hidden"]["knn"]["accuracy"]) == ["plain"]
    assert found.test["probe"]["converged"] is True
    assert found.test["probe"]["iterations"] == probe.iterations
    assert found.similarity == similarities(test.features, test.labels, test.bias)
    assert found.ordering == ordering(test.features, test.labels, test.bias)
    assert torch.equal(found.outputs.logits, test.logits)
    assert found.warnings == []
    json.dumps([found.test, found.extra_tests, found.similarity, found.ordering], allow_nan=False)
    assert {*USUAL, "linear"} == set(CLASSIFIERS)  # test_linear.py


def test_evaluate_another_test_set_with_fewer_classifiers(data):
    method = Small()
    other = split(9, n=40)
    found = evaluate(method, data, classifiers=("own",), test=other, resamples=10)
    assert list(found.test) == ["own"]
    assert found.test["own"]["n"] == 40
    assert torch.equal(found.outputs.labels, other.labels)
    with pytest.raises(ValueError, match="unknown classifier 'knnn': did you mean 'knn'"):
        evaluate(method, data, classifiers=("own", "knnn"))


def test_evaluate_without_bias_labels(data):
    bare = ArraySplit(data.test.pixels, data.test.labels)
    found = evaluate(Small(), data, test=bare, resamples=10)
    assert found.similarity is None
    assert found.ordering is None
    assert list(found.test["own"]["accuracy"]) == ["plain"]


def test_a_class_that_training_never_saw_is_said(data):
    kept = (data.train.labels != 1).nonzero().flatten()
    found = evaluate(Small(), replace(data, train=data.train.subset(kept)), resamples=10)
    judged = found.test["probe"]
    assert "no training samples of class 1: the probe never answers it" in judged["warnings"]
    assert judged["calibration"]["nll"] is None  # infinite: the class was ruled out
    assert judged["calibration"]["brier"] is not None


def test_a_network_that_diverged_is_judged_and_not_an_error(data):
    method = Small()
    with torch.no_grad():
        method.encoder[1].weight.fill_(torch.nan)
    found = evaluate(method, data, resamples=10)
    assert list(found.test) == ["own"]
    assert found.test["own"]["accuracy"]["plain"]["value"] == 0
    assert found.similarity is None
    assert found.warnings == [
        "the features of the training set are not finite: neither probe nor nearest neighbours"
    ]
    assert quick(method, data.valid, data.eval_views, data.info)["plain"] == 0


def test_broken_test_features_leave_the_others_alone(data):
    class Fragile(Small):
        def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
            h, logits = super().inspect(images)
            return h.index_fill(0, torch.tensor([2]), torch.nan) if len(h) == 30 else h, logits

    found = evaluate(Fragile(), data, test=split(5, n=30), resamples=10)
    for name in ("probe", "knn"):
        assert (
            "1 of 30 samples have logits that are not finite; they count as wrong"
            in found.test[name]["warnings"]
        )
        assert found.test[name]["accuracy"]["plain"]["value"] > 0
    assert found.similarity is None
