"""Features that say what there is and where, and little of a shape."""

import pytest
import torch

from fairmargin.networks import build_encoder
from fairmargin.networks.encoder import mean_and_middle


def test_the_middle_of_a_spot_is_its_place():
    maps = torch.zeros(1, 2, 5, 9)
    maps[0, 0, 0, 8] = 4.0  # top right
    maps[0, 1, 4, 4] = -4.0  # in the middle of the last row
    mean, other, down, down_2, right, right_2 = mean_and_middle(maps)[0].tolist()
    assert (mean, other) == pytest.approx((4 / 45, -4 / 45))
    assert (down, right) == pytest.approx((-1, 1), abs=0.02)
    assert (down_2, right_2) == pytest.approx((1, 0), abs=0.02)


def test_an_empty_map_lies_in_the_middle_and_gradients_are_finite():
    maps = torch.zeros(2, 3, 4, 4, requires_grad=True)
    features = mean_and_middle(maps)
    assert torch.equal(features, torch.zeros(2, 9))
    features.sum().backward()
    assert maps.grad.isfinite().all()


@pytest.mark.parametrize("name", ["simple-conv-1", "bagnet18"])
def test_pixels_that_change_places_matter_only_with_places(name):
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    mirrored = images.flip(3)
    for places in (False, True):
        torch.manual_seed(0)
        encoder = build_encoder(name, places=places).eval()
        with torch.inference_mode():
            one, two = encoder(images), encoder(mirrored)
        assert one.shape == (2, encoder.dim)
        if name == "simple-conv-1":
            assert torch.allclose(one, two, atol=1e-5) is not places
