"""The time that is printed before a training costs the training nothing."""

import pytest
import torch

from fairmargin.runs import build
from fairmargin.runs.estimate import in_words, training_seconds
from tests.small_runs import config


def test_an_estimate_leaves_the_training_as_it_was():
    chosen = config(method="ce")
    data = build.data(chosen)

    def new():
        return build.training(chosen, build.method(chosen, data), data, torch.device("cpu"))

    torch.manual_seed(0)
    asked, other = new(), new()
    other.method.load_state_dict(asked.method.state_dict())
    before = torch.get_rng_state()
    seconds = training_seconds(asked, 100)
    assert seconds is not None
    assert seconds > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert asked.loader.state_dict() == other.loader.state_dict()
    # The first batch is not lost.
    assert torch.equal(next(iter(asked.loader)).index, next(iter(other.loader)).index)
    for name, value in other.method.state_dict().items():
        assert torch.equal(asked.method.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.3, "a second"),
        (40, "40 seconds"),
        (70, "a minute"),
        (200, "3 minutes"),
        (9000, "2.5 hours"),
    ],
)
def test_seconds_in_words(seconds, said):
    assert in_words(seconds) == said
