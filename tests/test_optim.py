import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from fairmargin.config import load
from fairmargin.optim import LARS, OPTIMIZERS, player, schedule
from fairmargin.runs import build

SETTINGS = {
    "lr": 0.1,
    "weight_decay": 0.01,
    "momentum": 0.9,
    "betas": (0.9, 0.999),
    "nesterov": False,
}


def test_step_schedule_falls_after_its_milestones():
    rate = schedule("step", 80, milestones=(26, 53))
    assert [rate(e) for e in (0, 25.99, 26, 52.5, 53, 79)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


def test_milestones_below_one_are_shares_of_the_run():
    rate = schedule("step", 24, milestones=(1 / 3, 2 / 3), factor=0.5)
    assert [rate(e) for e in (7, 8, 15, 16)] == pytest.approx([1, 0.5, 0.5, 0.25])


def test_cosine_changes_once_per_epoch_or_at_every_step():
    by_epoch, by_step = schedule("cosine", 10), schedule("cosine", 10, per="step")
    assert by_epoch(3.9) == by_epoch(3) == pytest.approx((1 + math.cos(0.3 * math.pi)) / 2)
    assert by_step(3.9) == pytest.approx((1 + math.cos(0.39 * math.pi)) / 2)
    assert schedule("cosine", 10, floor=0.25, per="step")(10) == pytest.approx(0.25)


def test_a_whole_epoch_is_reached_in_spite_of_rounding():
    rate = schedule("step", 30, milestones=(3,))
    steps = 49
    assert rate(sum([1 / steps] * (3 * steps))) == pytest.approx(0.1)  # the sum is 2.9999999999999


def test_warm_up_is_linear_to_where_the_schedule_takes_over():
    rate = schedule("cosine", 1000, floor=1e-3, warmup_epochs=10, warmup_from=0.02)
    end = 1e-3 + (1 - 1e-3) * (1 + math.cos(math.pi * 10 / 1000)) / 2
    assert rate(0) == pytest.approx(0.02)
    assert rate(5) == pytest.approx((0.02 + end) / 2)
    assert rate(10) == pytest.approx(end)


def test_unknown_names_get_the_nearest():
    with pytest.raises(ValueError, match="cosine"):
        schedule("cosin", 10)
    with pytest.raises(ValueError, match="adamw"):
        player(
            [nn.Parameter(torch.ones(1))], {"name": "adamv", **SETTINGS}, schedule("constant", 1)
        )


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_minimises_a_bowl(name):
    w = nn.Parameter(torch.tensor([[3.0, -2.0]]))
    lr = {"lars": 20.0, "sgd": 0.05}.get(name, 0.1)
    one = player([w], {"name": name, **SETTINGS, "lr": lr}, schedule("constant", 1))
    for _ in range(200):
        one.set_rate(0)
        one.optimizer.zero_grad()
        w.square().sum().backward()
        one.optimizer.step()
    assert w.abs().max() < 0.2


@pytest.mark.parametrize(
    ("name", "stock"),
    [
        ("adam", lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.01, foreach=False)),
        ("adamw", lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.01, foreach=False)),
        ("sgd", lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01, foreach=False)),
    ],
)
def test_on_a_cpu_one_pass_takes_the_steps_of_pytorch_s_plain_loop(name, stock):
    numbers = torch.Generator().manual_seed(0)
    ours, theirs = (
        [nn.Parameter(torch.linspace(-1, 1, 60).view(3, 20).double())] for _ in range(2)
    )
    optimizers = player(ours, {"name": name, **SETTINGS}, lambda _: 1.0).optimizer, stock(theirs)
    assert optimizers[0].param_groups[0]["fused"]
    for _ in range(30):
        gradient = torch.randn(3, 20, generator=numbers, dtype=torch.double)
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameters[0].grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)
    assert float((ours[0].detach() - torch.linspace(-1, 1, 60).view(3, 20)).abs().max()) > 0.1


def test_elsewhere_pytorch_decides_how_to_take_steps():
    parameters = [nn.Parameter(torch.zeros(2, device="meta"))]
    assert (
        player(parameters, {"name": "adam", **SETTINGS}, lambda _: 1.0).optimizer.param_groups[0][
            "fused"
        ]
        is None
    )


def test_the_rate_is_a_function_of_the_position():
    one = player(
        [nn.Parameter(torch.ones(1))],
        {"name": "adam", **SETTINGS},
        schedule("step", 3, milestones=(1, 2)),
    )
    assert [one.set_rate(e) for e in (0, 1, 2)] == pytest.approx([0.1, 0.01, 0.001])
    assert one.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_lars_takes_steps_in_proportion_to_the_weights_norm():
    w, b = nn.Parameter(torch.tensor([[3.0, 4.0]])), nn.Parameter(torch.tensor([1.0]))
    optimizer = LARS([w, b], lr=2.0, momentum=0.5, weight_decay=0.1, trust=0.01)
    expected_w, expected_b = w.detach().clone(), b.detach().clone()
    velocity_w, velocity_b = torch.zeros_like(expected_w), torch.zeros_like(expected_b)
    for step in range(3):
        w.grad, b.grad = torch.tensor([[1.0, -2.0 + step]]), torch.tensor([0.5])
        optimizer.step()
        g = w.grad + 0.1 * expected_w
        velocity_w = 0.5 * velocity_w + 2.0 * 0.01 * expected_w.norm() / g.norm() * g
        velocity_b = 0.5 * velocity_b + 2.0 * b.grad  # one-dimensional: no decay, no scaling
        expected_w, expected_b = expected_w - velocity_w, expected_b - velocity_b
    assert torch.allclose(w, expected_w)
    assert torch.allclose(b, expected_b)


def test_lars_leaves_zero_weights_able_to_move():
    w = nn.Parameter(torch.zeros(2, 2))
    w.grad = torch.ones(2, 2)
    LARS([w], lr=0.1).step()
    assert torch.allclose(w, torch.full((2, 2), -0.1))


@pytest.mark.parametrize(("valid", "batch"), [(0.0, 30), (0.1, 30), (0.1, 17)])
def test_the_schedule_of_a_run_of_so_many_steps_spans_these(valid, batch):
    """However many epochs they are: DFA's decays are at 40, 60 and 80 % of its steps."""
    changes = [
        "data.train=300",
        f"data.valid_fraction={valid}",
        f"train.batch_size={batch}",
        "train.drop_last=true",
    ]
    steps = [
        "train.epochs=400",
        "train.steps=100",
        "schedule.name=step",
        "schedule.per=step",
        "schedule.factor=0.5",
    ]
    config = load(
        dataset="planted",
        method="ce",
        overrides=[*changes, *steps, "schedule.milestones=[0.4, 0.6, 0.8]"],
    )
    data = build.data(config)
    run = build.training(config, build.method(config, data), data, torch.device("cpu"))
    rates = [run.players["main"].rate(step / len(run.loader)) for step in range(100)]
    assert [step for step in range(1, 100) if rates[step] != rates[step - 1]] == [40, 60, 80]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_steps_go_on_from_the_state_of_an_optimizer_that_left_the_choice_to_pytorch(name):
    """As checkpoints of earlier versions, and of a GPU, hold it."""
    classes = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    ours, theirs = ([nn.Parameter(torch.ones(5, dtype=torch.double))] for _ in range(2))
    options = {"momentum": 0.9} if name == "sgd" else {}
    before = classes[name](theirs, lr=0.1, weight_decay=0.01, **options)
    after = player(ours, {"name": name, **SETTINGS}, lambda _: 1.0).optimizer
    theirs[0].grad = torch.linspace(1, 2, 5, dtype=torch.double)
    before.step()
    with torch.no_grad():
        ours[0].copy_(theirs[0])
    after.load_state_dict(copy.deepcopy(before.state_dict()))  # it would share its tensors
    for parameters, optimizer in ((ours, after), (theirs, before)):
        parameters[0].grad = torch.linspace(-1, 3, 5, dtype=torch.double)
        optimizer.step()
    assert torch.equal(ours[0], theirs[0])
    assert not torch.equal(ours[0], torch.ones(5, dtype=torch.double))


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_steps_are_pytorch_s(name):
    """Also after the state was saved and loaded."""
    stock = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    settings = dict(SETTINGS)
    taken = {"adam": ("betas",), "adamw": ("betas",), "sgd": ("momentum", "nesterov")}[name]
    options = {key: settings[key] for key in ("lr", "weight_decay", *taken)}
    torch.manual_seed(0)
    ours = nn.Linear(5, 3)
    theirs = copy.deepcopy(ours)
    mine = OPTIMIZERS[name](list(ours.parameters()), **settings)
    other = stock(theirs.parameters(), fused=True, **options)
    assert isinstance(mine, stock)
    for step in range(4):
        x = torch.randn(8, 5)
        for network, optimizer in ((ours, mine), (theirs, other)):
            optimizer.zero_grad(set_to_none=True)
            network(x).square().mean().backward()
            optimizer.step()
        if step == 1:
            mine.load_state_dict(copy.deepcopy(mine.state_dict()))
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    assert not ours.weight.grad_fn  # steps are outside of the graph


def test_training_a_small_network_does_not_wait_for_the_compiler(tmp_path):
    """PyTorch's takes a second to import."""
    program = (
        "import sys; from fairmargin.cli.app import app; "
        "app(sys.argv[1:], standalone_mode=False); "
        "assert 'torch.optim' in sys.modules; assert 'torch._dynamo' not in sys.modules"
    )
    words = ["train", "--dataset", "planted", "--method", "ce", "--out", str(tmp_path / "run")]
    for change in ("train.steps=2", "data.train=80", "data.test=32", "evaluate.resamples=10"):
        words += ["--set", change]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").is_file()
