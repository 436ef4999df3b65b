import math

import pytest
import torch

from fairmargin.evaluate.calibration import measure


def loops(logits, labels, bins=15):
    """(ece, nll, brier, [(confidence, accuracy, n)]) in plain Python."""
    held = [[] for _ in range(bins)]
    nll = brier = 0.0
    for row, y in zip(logits.tolist(), labels.tolist(), strict=True):
        e = [math.exp(v - max(row)) for v in row]
        p = [v / sum(e) for v in e]
        nll -= math.log(p[y])
        brier += sum((v - (c == y)) ** 2 for c, v in enumerate(p))
        i = next(i for i in range(bins) if max(p) <= (i + 1) / bins or i == bins - 1)
        held[i].append((max(p), p.index(max(p)) == y))
    n = len(labels)
    table = [
        (sum(c for c, _ in h) / len(h), sum(r for _, r in h) / len(h), len(h)) for h in held if h
    ]
    return sum(k / n * abs(a - c) for c, a, k in table), nll / n, brier / n, table


@pytest.mark.parametrize("scale", [0.1, 1, 5])
@pytest.mark.parametrize("bins", [15, 4])
def test_equals_loops(scale, bins):
    g = torch.Generator().manual_seed(0)
    logits, labels = (
        scale * torch.randn(200, 5, generator=g).double(),
        torch.randint(5, (200,), generator=g),
    )
    ece, nll, brier, table = loops(logits, labels, bins)
    found = measure(logits, labels, bins=bins)
    assert (found.ece, found.nll, found.brier) == pytest.approx((ece, nll, brier), abs=1e-12)
    assert [(b.confidence, b.accuracy, b.n) for b in found.bins] == [
        pytest.approx(row) for row in table
    ]
    assert sum(b.n for b in found.bins) == 200


def test_known_values():
    even = measure(
        torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])
    )  # always says ½, right half of the time
    assert even.ece == 0
    assert even.nll == pytest.approx(math.log(2))
    assert even.brier == pytest.approx(0.5)
    assert [(b.confidence, b.accuracy, b.n) for b in even.bins] == [(0.5, 0.5, 4)]
    sure = measure(
        torch.tensor([[1e4, 0.0]]), torch.tensor([1])
    )  # certain and wrong, without overflow
    assert (sure.ece, sure.nll, sure.brier) == (1, 1e4, 2)
    right = measure(torch.tensor([[0.0, -torch.inf]]), torch.tensor([0]))
    assert (right.ece, right.nll, right.brier) == (0, 0, 0)


def test_a_class_ruled_out_costs_infinitely_much():
    found = measure(torch.tensor([[0.0, -torch.inf], [0.0, -torch.inf]]), torch.tensor([0, 1]))
    assert found.nll == math.inf
    assert found.brier == 1


def test_a_constant_added_to_logits_changes_nothing():
    g = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(50, 3, generator=g).double(), torch.randint(3, (50,), generator=g)
    first, second = measure(logits, labels), measure(logits + 1e3, labels)
    assert (first.ece, first.nll, first.brier) == pytest.approx(
        (second.ece, second.nll, second.brier), abs=1e-9
    )


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        measure(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))


def test_a_bin_holds_its_upper_end():
    found = measure(torch.tensor([[0.0, 0.0], [1.0, 0.0]]).double(), torch.tensor([0, 0]), bins=2)
    assert [b.n for b in found.bins] == [1, 1]  # ½ lies in (0, ½], 0.73 in (½, 1]
