from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fairmargin.batch import Batch, DataInfo
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import Shuffled
from fairmargin.evaluate.probe import fit_probe
from fairmargin.loop import Training, fit
from fairmargin.methods import build_method
from fairmargin.methods.dfr import CHOICES, balanced, fit_l1
from fairmargin.networks import Encoder
from tests.methods import tiny

MAKE = tiny.without_batch_norm()


class Raw(Encoder):
    """The image's channels as features; nothing to learn but a scale."""

    def __init__(self):
        super().__init__(dim=3)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def maps(self, images):
        return images * self.scale


def shortcut(n, aligned, seed=0):
    """Three features: a noisy core, a clean shortcut that agrees as often as told, a constant."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    b = torch.where(torch.rand(n, generator=g) < aligned, y, 1 - y)
    core = (2 * y - 1) * 20.0 + 30 * torch.randn(n, generator=g)
    x = torch.stack(
        [core, 2.0 * b - 1 + 0.1 * torch.randn(n, generator=g), torch.full((n,), 3.0)], 1
    )
    return Batch(x[:, :, None, None], y, b, torch.arange(n))


def raw_method(**options):
    counts = torch.tensor([[475, 25], [25, 475]])
    info = DataInfo("raw", ("a", "b"), ("0", "1"), (3, 1, 1), counts, train_size=1000)
    torch.manual_seed(0)
    return build_method("dfr", Raw, info, **options)


def raw_sweep(name):
    return [shortcut(1000, 0.95 if name == "train" else 0.9, seed=int(name == "valid"))]


def test_balanced_draws_every_group_as_often_as_the_smallest():
    groups = torch.tensor([3, 0, 0, 3, 0, 5, 5, 0])
    draws = [balanced(groups, torch.Generator().manual_seed(seed)) for seed in range(30)]
    for chosen in draws:
        assert torch.bincount(groups[chosen], minlength=6).tolist() == [2, 0, 0, 2, 0, 2]
        assert len(set(chosen.tolist())) == len(chosen)
    # Random, not always the first.
    assert {i for chosen in draws for i in chosen.tolist()} == set(range(8))


@pytest.mark.parametrize("strength", [0.003, 0.03, 0.3])
def test_fit_l1_satisfies_the_conditions_of_its_optimum(strength):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 8, generator=g).double(), torch.randint(3, (60,), generator=g)
    x[:, 0] += y
    weight, intercept = fit_l1(x, y, 3, strength)
    weight.requires_grad_()
    intercept.requires_grad_()
    slope, level = torch.autograd.grad(
        F.cross_entropy(x @ weight.T + intercept, y), [weight, intercept]
    )
    assert level.abs().max() < 1e-5
    assert slope.abs().max() < strength + 1e-5
    used = weight.abs() > 1e-6
    assert torch.allclose(slope[used], -strength * weight[used].sign(), atol=1e-5)
    assert (~used).sum() > 0  # some are exactly out
    assert fit_l1(x, y, 5, strength)[1][3:].tolist() == [-torch.inf] * 2


@pytest.mark.slow
def test_predictions_are_the_trained_classifiers_until_the_end_and_training_is_that_of_ce():
    data = tiny.split()
    runs = {}
    for name in ("ce", "dfr"):
        method = tiny.method(name, MAKE)
        loader = Loader(data, tiny.views(), Shuffled(len(data)), 10)
        runs[name] = Training(method, tiny.players(method), loader, seed=3, sweep=tiny.sweep)
    images = tiny.batch().images
    last = {}

    def keep(name):
        def after_step(batch):
            last[name] = runs[name].method.predict(images).detach()

        return after_step

    for name, run in runs.items():
        fit(run, 2, after_step=keep(name))
    assert torch.equal(last["ce"], last["dfr"])
    method = runs["dfr"].method
    assert method.retrained
    assert not torch.allclose(method.predict(images), last["dfr"], atol=1e-3)
    # Kept, for a longer training.
    assert torch.equal(method.classifier(method.features(images)), last["dfr"])
    next(method.updates(tiny.batch(), 0))
    assert torch.equal(method.predict(images), last["dfr"])


def test_the_retrained_layer_is_the_average_over_the_draws():
    method = tiny.method("dfr", MAKE, penalty="l2", inverse_strength=0.5, draws=3)
    method.finish(tiny.sweep)
    batches = list(tiny.sweep("valid"))
    h = torch.cat([method.encoder(b.images).detach() for b in batches]).double()
    y, b = torch.cat([x.labels for x in batches]), torch.cat([x.bias for x in batches])
    deviation = h.std(0, correction=0)
    x = torch.where(deviation > 0, (h - h.mean(0)) / deviation, 0)
    expected = 0
    for draw in range(3):
        chosen = balanced(y * tiny.BIASES + b, torch.Generator().manual_seed(draw))
        probe = fit_probe(x[chosen], y[chosen], 3, l2=1 / (0.5 * len(chosen)), standardise=False)
        expected = expected + probe.logits(x) / 3
    found = method.predict(torch.cat([b.images for b in batches]))
    assert torch.allclose(found.double(), expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", ["l1", "l2"])
@pytest.mark.parametrize("source", ["valid", "train"])
def test_retraining_on_balanced_groups_lets_the_shortcut_go(source, penalty):
    method = raw_method(source=source, penalty=penalty)
    x, y, b = (
        raw_sweep(source)[0].images.flatten(1),
        raw_sweep(source)[0].labels,
        raw_sweep(source)[0].bias,
    )
    unbalanced = fit_probe(x, y, 2, l2=0.01).weight
    method.start_epoch(0, raw_sweep)
    method.finish(raw_sweep)
    scale = x.std(0).double()
    before, after = ((w[1] - w[0]).double().abs() * scale for w in (unbalanced, method.weight))
    assert before[1] > before[0]  # what the data invite: the clean shortcut
    assert after[0] > 3 * after[1]
    assert after[2] == 0
    assert (method.predict(raw_sweep(source)[0].images).argmax(1) == y)[
        b != y
    ].double().mean() > 0.65


def test_c_is_the_one_with_the_best_worst_group(monkeypatch):
    method = raw_method()
    right, wrong = (
        torch.tensor([[0.0, 0, 0], [1.0, 0, 0]]),
        torch.tensor([[0.0, 0, 0], [-1.0, 0, 0]]),
    )
    asked = []

    def fake(x, y, group, inverse_strength, draw):
        asked.append(inverse_strength)
        return (right if inverse_strength in (0.3, 0.07) else wrong).double(), torch.zeros(
            2
        ).double()

    monkeypatch.setattr(method, "_fit", fake)
    assert method._chosen(*[method._see(raw_sweep("valid"))] * 2) == 0.3  # the first of equals
    assert tuple(asked) == CHOICES


def test_choosing_c_looks_at_samples_that_were_not_fitted_to(monkeypatch):
    method = raw_method(draws=1)
    seen = {}

    def chosen(fitted, judged):
        seen["fitted"], seen["judged"] = fitted[0], judged[0]
        return 1.0

    monkeypatch.setattr(method, "_chosen", chosen)
    method.finish(raw_sweep)
    rows = [{tuple(row.tolist()) for row in seen[name]} for name in ("fitted", "judged")]
    assert len(rows[0]) == len(rows[1]) == 500
    assert not rows[0] & rows[1]
    method = raw_method(draws=1, source="train")
    monkeypatch.setattr(method, "_chosen", chosen)
    method.finish(raw_sweep)
    assert (len(seen["fitted"]), len(seen["judged"])) == (1000, 1000)


@pytest.mark.slow
def test_samples_of_unknown_bias_are_left_out():
    def with_unknown(name):
        known = raw_sweep(name)[0]
        extra = replace(known, images=-known.images, bias=torch.full_like(known.bias, -1))
        return [known, extra]

    a, b = raw_method(), raw_method()
    a.finish(raw_sweep)
    b.finish(with_unknown)
    assert torch.equal(a.weight, b.weight)


def test_what_is_missing_is_said_before_the_training():
    def without_bias(name):
        return [replace(raw_sweep(name)[0], bias=None)]

    def of_one_class(name):
        batch = raw_sweep(name)[0]
        return [replace(batch, labels=torch.zeros_like(batch.labels))]

    for sweep, match in (
        (without_bias, "class a, b"),
        (of_one_class, "class b"),
        (lambda name: [], "class a, b"),
    ):
        with pytest.raises(ValueError, match=match):
            raw_method().start_epoch(0, sweep)
        raw_method(source="train", inverse_strength=1.0).start_epoch(0, sweep)
    with pytest.raises(ValueError, match="needs to know the bias"):
        tiny.method("dfr", data_info=tiny.info(biased=False))
    with pytest.raises(ValueError, match="source"):
        tiny.method("dfr", source="test")
    with pytest.raises(ValueError, match="penalty"):
        tiny.method("dfr", penalty="l3")
