"""SIN needs stylised images; its proxy changes amplitudes or statistics, and no phases."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from fairmargin.config.options import options_of
from fairmargin.data.datasets import imagenet
from fairmargin.data.views import IMAGENET, plain
from fairmargin.methods import METHODS
from fairmargin.methods.sin import (
    SINProxy,
    amplitude,
    build_sin,
    statistics,
    with_amplitude,
    with_statistics,
)
from tests.methods import tiny

SIZES = [(8, 8), (9, 7), (8, 11)]
KINDS = ("amplitude", "statistics")


def pixels(side=(8, 8), n=4, seed=0):
    return torch.rand(
        n, 3, *side, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def proxy(**options):
    torch.manual_seed(0)
    return SINProxy(tiny.convolutional(), tiny.info(), **options).train()


def sin():
    torch.manual_seed(0)
    return build_sin(
        tiny.convolutional(), replace(tiny.info(), notes={"stylized": "24 images"})
    ).train()


def test_sin_refuses_a_dataset_without_stylised_images():
    with pytest.raises(
        ValueError, match=r"tiny was built without stylised ones.*data\.stylized.*sin-proxy"
    ):
        build_sin(tiny.convolutional(), replace(tiny.info(), notes={}))


def test_sin_takes_what_the_imagenet_builder_says(tmp_path):
    wnid = imagenet.NINE["dog"][0]
    for folder in ("imagenet/train", "imagenet/val", "sin"):
        (tmp_path / folder / wnid).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (8, 8)).save(tmp_path / folder / wnid / f"{i}.JPEG")
    without = imagenet.build_9(tmp_path, valid_fraction=0.0)
    union = imagenet.build_9(tmp_path, valid_fraction=0.0, stylized=tmp_path / "sin")
    assert (len(without.train), len(union.train)) == (4, 8)
    assert build_sin(tiny.convolutional(), union.info).classifier.out_features == 9
    with pytest.raises(ValueError, match="imagenet9 was built without stylised ones"):
        build_sin(tiny.convolutional(), without.info)


def test_sin_on_an_empty_stylised_set_is_cross_entropy():
    batch, method, ce = tiny.batch(), sin(), tiny.method("ce").train()
    assert [(p, loss.item()) for p, loss in method.updates(batch, 0)] == [
        (p, loss.item()) for p, loss in ce.updates(batch, 0)
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("band", [0.0, 0.2, 0.5])
def test_an_image_with_its_own_style_is_itself(size, band):
    x = pixels(size)
    assert torch.allclose(with_amplitude(x, amplitude(x, band), band), x, atol=1e-12)
    assert torch.allclose(with_statistics(x, statistics(x)), x, atol=1e-12)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("band", [0.0, 0.2, 0.5])
def test_low_amplitudes_are_the_donors_and_phases_stay(size, band):
    x, donor = pixels(size), pixels(size, seed=1)
    new = torch.fft.fft2(with_amplitude(x, amplitude(donor, band), band))
    old, given = torch.fft.fft2(x), torch.fft.fft2(donor)
    down, along = (torch.fft.fftfreq(side, dtype=torch.float64).abs() for side in size)
    low = (down[:, None] <= band) & (along <= band)  # both halves of the spectrum
    assert low[0, 0]
    assert torch.allclose(new.abs()[..., low], given.abs()[..., low], atol=1e-10)
    assert torch.allclose(new[..., ~low], old[..., ~low], atol=1e-10)
    turn = torch.polar(torch.ones_like(old.real), new.angle() - old.angle())
    assert torch.allclose(turn, torch.ones_like(turn), atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_exchange_on_normalized_images_is_that_on_pixels(kind):
    """Normalized means may be negative, where |F(0)| would lose their sign."""
    raw = (pixels((16, 16)) * 255).byte()
    x = raw / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in IMAGENET)
    normalized = plain(*IMAGENET)(raw)
    assert (normalized.mean((2, 3)) < 0).any() or (normalized.mean((2, 3)).abs() < 1).any()
    donor = torch.tensor([1, 2, 3, 0])
    if kind == "amplitude":
        expected = with_amplitude(x, amplitude(x, 0.1)[donor], 0.1)
        got = with_amplitude(normalized, amplitude(normalized, 0.1)[donor], 0.1)
    else:
        expected, got = (with_statistics(v, statistics(v)[donor]) for v in (x, normalized))
    assert torch.allclose(got * std + mean, expected, atol=1e-5)


def test_the_sign_of_a_mean_is_the_donors():
    dark, bright = -torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8) * 0.5
    assert torch.allclose(with_amplitude(dark, amplitude(bright, 0.1), 0.1), bright)
    assert torch.allclose(with_amplitude(bright, amplitude(dark, 0.1), 0.1), dark)


def test_statistics_are_the_donors():
    x, donor = pixels(), pixels(seed=1) * 3 - 1
    new = with_statistics(x, statistics(donor))
    assert torch.allclose(new.mean((2, 3)), donor.mean((2, 3)))
    assert torch.allclose(new.std((2, 3), correction=0), donor.std((2, 3), correction=0))


def test_a_flat_channel_stays_flat():
    x, donor = torch.full((1, 3, 28, 28), 0.1), pixels((28, 28), 1).float()
    new = with_statistics(x, statistics(donor))
    assert torch.allclose(new, donor.mean((2, 3), keepdim=True).expand_as(new), atol=1e-3)
    assert with_amplitude(x, amplitude(donor, 0.1), 0.1).isfinite().all()
    assert with_statistics(donor, statistics(x)).std() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_half_of_the_images_take_the_style_of_another(kind):
    x = pixels(n=400).float()
    restyled = proxy(kind=kind).restyle(x)
    kept = torch.stack(
        [torch.equal(a, b) * torch.ones(()) for a, b in zip(restyled, x, strict=True)]
    )
    assert 0.4 < kept.mean() < 0.6
    means, new = x.mean((2, 3)), restyled.mean((2, 3))
    distance = (new[:, None] - means).abs().amax(2)  # [400, 400]
    # Everybody has somebody's mean.
    assert torch.allclose(distance.amin(1), torch.zeros(400), atol=1e-5)
    assert (
        distance.argmin(1)[kept == 0] != torch.arange(400)[kept == 0]
    ).float().mean() > 0.9  # most, another's


@pytest.mark.parametrize("kind", KINDS)
def test_every_image_is_restyled_at_probability_one(kind):
    x = pixels(n=40).float()
    method = proxy(kind=kind, probability=1.0)
    torch.manual_seed(7)
    restyled = method.restyle(x)
    torch.manual_seed(7)
    donor = torch.randperm(40)
    assert torch.allclose(restyled.mean((2, 3)), x.mean((2, 3))[donor], atol=1e-6)


def test_at_probability_zero_it_is_cross_entropy_also_with_views():
    for batch in (tiny.batch(), tiny.batch(number=2)):
        ce = [loss.item() for _, loss in tiny.method("ce").train().updates(batch, 0)]
        assert [loss.item() for _, loss in proxy(probability=0.0).updates(batch, 0)] == ce
        assert [loss.item() for _, loss in proxy(probability=1.0).updates(batch, 0)] != ce


def test_every_step_draws_again_and_evaluation_does_not():
    batch = tiny.batch()
    torch.manual_seed(1)
    a, b = (proxy().restyle(batch.images) for _ in range(2))
    assert torch.equal(a, b)  # as the generator says
    method = proxy()
    assert not torch.equal(method.restyle(batch.images), method.restyle(batch.images))
    method.eval()
    assert torch.equal(method.predict(batch.images), method.predict(batch.images))
    assert torch.equal(method.predict(batch.images), method.network.predict(batch.images))


def test_the_batch_itself_is_not_changed():
    batch = tiny.batch()
    before = batch.images.clone()
    for kind in KINDS:
        list(proxy(kind=kind, probability=1.0).updates(batch, 0))
    assert torch.equal(batch.images, before)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_part_passes_through(kind):
    assert proxy(kind=kind).restyle(torch.empty(0, 3, 8, 8)).shape == (0, 3, 8, 8)


def test_options_and_what_is_refused():
    assert {name: o.default for name, o in options_of(METHODS["sin-proxy"]).items()} == {
        "kind": "amplitude",
        "probability": 0.5,
        "band": 0.1,
    }
    assert options_of(build_sin) == {}
    with pytest.raises(ValueError, match="amplitude"):
        proxy(kind="amplitud")
    with pytest.raises(ValueError, match=r"probability must lie in \[0, 1\]; got 50"):
        proxy(probability=50.0)
    with pytest.raises(ValueError, match=r"band must lie in \[0, 0.5\]"):
        proxy(band=22.0)
