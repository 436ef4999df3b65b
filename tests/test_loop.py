import copy

import pytest
import torch

from fairmargin.data.loader import Loader
from fairmargin.data.samplers import Shuffled
from fairmargin.data.split import ArraySplit
from fairmargin.loop import Diverged, Training, fit
from fairmargin.losses._looks import checked
from fairmargin.methods import METHODS
from fairmargin.methods.base import Method
from fairmargin.optim import player, schedule
from tests.methods import tiny


class Alternating(Method):
    """Two numbers that chase each other: `b` must see the `a` that has just moved."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.zeros(())), torch.nn.Parameter(torch.zeros(()))
        self.seen, self.drawn = [], []

    def players(self):
        return {"a": [self.a], "b": [self.b]}

    def updates(self, batch, step):
        self.drawn.append(torch.rand(()).item())
        yield "a", (self.a - 1) ** 2 + 0 * self.b
        self.seen.append(self.a.item())
        yield "b", (self.b - self.a) ** 2

    def inspect(self, images):
        return images.flatten(1), images.flatten(1)[:, :3]


def loader(data=None, batch_size=10):
    data = data or tiny.split()
    return Loader(data, tiny.views(), Shuffled(len(data)), batch_size)


def training(method, optimizer=tiny.ADAM, **options):
    return Training(
        method,
        tiny.players(method, optimizer),
        options.pop("loader", None) or loader(),
        seed=0,
        **options,
    )


def test_players_move_in_turn_and_see_moved_weights():
    method = Alternating()
    sgd = {**tiny.ADAM, "name": "sgd", "lr": 0.5, "momentum": 0.0}
    players = {
        name: player(p, sgd, schedule("constant", 1)) for name, p in method.players().items()
    }
    fit(Training(method, players, loader(), seed=0), 1, steps=1)
    assert method.a.item() == pytest.approx(1.0)  # 0 − 0.5 · 2(0 − 1)
    assert method.seen == [1.0]
    assert method.b.item() == pytest.approx(
        1.0
    )  # moved towards the new a, whose own gradient it did not touch


def test_fit_runs_epochs_and_steps():
    first = training(Alternating())
    fit(first, 2)
    assert (first.step, first.loader.epoch) == (6, 2)  # 24 samples in batches of 10: three a time
    second = training(Alternating())
    ended = []
    fit(second, 5, steps=4, after_epoch=lambda: ended.append(second.step))
    assert second.step == 4
    assert ended == [3, 4]


def test_random_numbers_depend_on_seed_and_step_only():
    whole, again = Alternating(), Alternating()
    fit(training(whole), 1)
    torch.rand(7)  # somebody else draws
    second = training(again)
    second.step = 1
    fit(second, 1, steps=3)
    assert again.drawn == whole.drawn[1:]
    assert len(set(whole.drawn)) == 3


def test_values_are_checked_in_the_first_step_and_then_as_the_device_likes():
    class Looking(Alternating):
        def updates(self, batch, step):
            for update in super().updates(batch, step):
                looks.append((step, checked(torch.empty(0, device="meta"))))
                yield update

    looks = []
    run = training(Looking())
    fit(run, 1)
    resumed = training(Looking())
    resumed.load_state_dict(run.state_dict())
    fit(resumed, 2, steps=5)
    first = {0, 3}
    assert looks == [(step, step in first) for step in range(5) for _ in range(2)]
    assert not checked(torch.empty(0, device="meta"))


def test_the_schedule_follows_the_position():
    method = tiny.method("ce")
    rate = schedule("cosine", 2, per="step")
    players = {name: player(p, tiny.ADAM, rate) for name, p in method.players().items()}
    run, rates = Training(method, players, loader(), seed=0), []
    fit(run, 2, after_step=lambda batch: rates.append(run.rates["main"]))
    assert rates == pytest.approx([tiny.ADAM["lr"] * rate(k / 3) for k in range(6)])


def test_clipping_bounds_the_gradient_of_each_player():
    free, clipped = tiny.method("ce"), tiny.method("ce")
    fit(training(free), 1, steps=1)
    fit(training(clipped, clip=1e-3), 1, steps=1)
    norm = lambda m: torch.stack([p.grad.norm() for p in m.parameters()]).norm().item()
    assert norm(free) > 0.01
    assert norm(clipped) == pytest.approx(1e-3, rel=1e-3)


def test_bfloat16_trains_close_to_float32():
    exact, half = tiny.method("eps-supinfonce+fairkl"), tiny.method("eps-supinfonce+fairkl")
    fit(training(exact), 1)
    fit(training(half, precision="bfloat16"), 1)
    assert all(p.dtype == torch.float32 for p in half.parameters())
    assert half.terms["eps-supinfonce"] == pytest.approx(
        exact.terms["eps-supinfonce"].item(), rel=0.2
    )
    assert not torch.equal(half.classifier.weight, exact.classifier.weight)


# Those with a bias network of 128 features are left out: bfloat16 products of that width are an
# illegal instruction in PyTorch on some CPUs.
WIDE = {"learned-mixin", "learned-mixin+h", "rebias", "rubi"}


@pytest.mark.parametrize("name", sorted(set(METHODS) - WIDE - {"softcon"}))
def test_every_method_trains_in_mixed_precision(name):
    method = tiny.tamed(name)
    data = tiny.split()
    ordinary = Loader(data, tiny.views(tiny.number_of_views(method)), Shuffled(len(data)), 12)
    run = training(method, loader=ordinary, precision="bfloat16", sweep=tiny.sweep)
    fit(run, 1)
    assert all(torch.isfinite(p).all() for p in method.parameters())
    assert all(torch.isfinite(term) for term in method.terms.values())


def test_channels_last_changes_the_layout_not_the_result():
    plain, other = tiny.method("ce"), tiny.method("ce")
    fit(training(plain), 1)
    fit(training(other, channels_last=True), 1)
    weight = other.encoder.blocks[1][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(weight, plain.encoder.blocks[1][0].weight, atol=1e-4)


@pytest.mark.slow
def test_compiled_networks_take_the_same_steps():
    plain, compiled = tiny.method("eps-supinfonce+fairkl"), tiny.method("eps-supinfonce+fairkl")
    fit(training(plain, tiny.SGD), 2)
    fit(training(compiled, tiny.SGD, compiled=True), 2)
    a, b = plain.state_dict(), compiled.state_dict()
    assert a.keys() == b.keys()  # a checkpoint of one can be loaded by the other
    assert all(torch.allclose(a[key].float(), b[key].float(), atol=1e-3) for key in a)


def test_a_loss_that_is_not_finite_names_step_term_and_cause():
    method = tiny.method("ce")
    run = training(method)
    fit(run, 1, steps=2)
    with torch.no_grad():
        method.encoder.blocks[0][0].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(Diverged, match=r"step 2.*ce = nan.*lower optimizer\.lr \(now 0\.01\)"):
        fit(run, 1)


def test_features_that_are_not_finite_are_a_divergence_too():
    method = tiny.method("eps-supinfonce+fairkl")
    with torch.no_grad():
        method.encoder.blocks[0][0].weight[0, 0, 0, 0] = float("inf")
    with pytest.raises(Diverged, match="an earlier step made weights infinite"):
        fit(training(method), 1)


def test_broken_inputs_are_named():
    class Broken(type(tiny.views())):
        def __call__(self, images, generator=None):
            x = super().__call__(images, generator)
            x[0, 0, 0, 0] = float("nan")
            return x

    data = tiny.split()
    views = Broken((), (0.5,) * 3, (0.5,) * 3)
    broken = Loader(data, views, Shuffled(len(data)), 10)
    with pytest.raises(Diverged, match="input images are not finite"):
        fit(training(tiny.method("ce"), loader=broken), 1)


def test_gradients_that_are_never_finite_end_a_float16_run():
    """The loss is finite and every step is skipped.

    Without an end the run would stand still and look healthy.
    """
    run = training(tiny.method("ce"))
    run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=True)
    (weight,) = [p for name, p in run.method.named_parameters() if name == "classifier.weight"]
    weight.register_hook(lambda gradient: gradient * float("nan"))
    before = weight.detach().clone()
    with pytest.raises(Diverged, match="gradients of player 'main' are not finite at any scale"):
        fit(run, 20)
    assert torch.equal(weight, before)


def test_unknown_precision_gets_the_nearest():
    with pytest.raises(ValueError, match="bfloat16"):
        training(tiny.method("ce"), precision="bfloat")


def test_a_last_batch_of_one_sample_is_survived():
    """21 samples in batches of 10: the last has no pair, and contrastive losses say so once."""
    data = tiny.split(21)
    run = training(tiny.method("eps-supinfonce+fairkl"), loader=loader(data))
    with pytest.warns(UserWarning, match="no anchor in this batch has a positive"):
        fit(run, 1)
    assert run.step == 3
    assert all(torch.isfinite(p).all() for p in run.method.parameters())


def test_arrays_without_bias_still_train():
    data = tiny.split()
    fit(training(tiny.method("ce"), loader=loader(ArraySplit(data.pixels, data.labels))), 1)


class Watching(Alternating):
    """Notes what the loop tells it, in a buffer as it should."""

    def __init__(self):
        super().__init__()
        self.register_buffer("started", torch.zeros(8))
        self.register_buffer("finished", torch.zeros(()))
        self.register_buffer("seconds", torch.full((40, 2), -1.0))

    def start_epoch(self, epoch, sweep):
        self.started[epoch] += sum(len(batch) for batch in sweep("train"))

    def finish(self, sweep):
        self.finished += sum(len(batch) for batch in sweep("valid"))

    def updates(self, batch, step):
        if batch.second is not None:
            self.seconds[step] = batch.second.index[:2].float()
        yield from super().updates(batch, step)


def watched(method):
    data = tiny.split()
    sweep = lambda name: Loader(
        data if name == "train" else tiny.split(6), tiny.views(), Shuffled(6), 4
    )
    second = Loader(data, tiny.views(2), Shuffled(len(data), seed=9), 7, seed=9)
    return training(method, sweep=sweep, second=second)


def test_epochs_are_announced_and_the_end_too():
    run = watched(Watching())
    fit(run, 2)
    assert run.method.started.tolist() == [6, 6, 0, 0, 0, 0, 0, 0]
    assert run.method.finished == 6


def test_the_second_stream_goes_on_over_its_own_epochs_and_resumes():
    """24 samples: three batches of the first stream an epoch, four of the second."""
    whole, first, again = (watched(Watching()) for _ in range(3))
    fit(whole, 3)
    fit(first, 3, steps=5)
    again.load_state_dict(first.state_dict())
    fit(again, 3)
    order = Shuffled(24, seed=9)
    expected = [batch[:2].tolist() for epoch in range(3) for batch in order.batches(epoch, 7)][:9]
    assert whole.method.seconds[:9].tolist() == expected
    assert torch.equal(again.method.seconds, whole.method.seconds)
    assert torch.equal(again.method.started, whole.method.started)


def test_a_run_saved_at_its_last_step_still_ends_properly():
    """The state may be saved between the last step and what follows it."""
    whole, first, again = (watched(Watching()) for _ in range(3))
    states = []
    fit(whole, 3, steps=4)
    fit(
        first, 3, steps=4, after_step=lambda batch: states.append(copy.deepcopy(first.state_dict()))
    )
    ended = []
    again.load_state_dict(states[-1])
    fit(again, 3, steps=4, after_epoch=lambda: ended.append(again.step))
    assert ended == [4]
    assert again.step == 4
    assert again.method.finished == whole.method.finished == 6
    fit(again, 3, steps=4, after_epoch=lambda: ended.append(again.step))
    assert ended == [4]  # an ended run stays as it is


def test_a_method_that_sweeps_needs_something_to_sweep():
    with pytest.raises(ValueError, match="without a way to sweep"):
        fit(training(Watching()), 1)


def test_the_loop_knows_no_method_by_name():
    from pathlib import Path

    import fairmargin
    from fairmargin.runs.build import SAMPLERS

    words = {word.removesuffix("+fairkl") for word in METHODS} | {"fairkl", "Objective", "ROWS"}
    words -= set(SAMPLERS)  # group-balanced is a way to draw samples, too
    words.remove("fairmargin")  # the name of the package
    for name in ("loop.py", "run.py", "runs/build.py"):
        text = (Path(fairmargin.__file__).parent / name).read_text("utf-8")
        assert not [word for word in words if f'"{word}"' in text or f" {word}(" in text]
    assert len((Path(fairmargin.__file__).parent / "run.py").read_text("utf-8").splitlines()) <= 56
