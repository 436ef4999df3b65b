"""Every step against the same operation on one image at a time, written as one would by hand."""

import colorsys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from fairmargin.data import image_ops, views
from fairmargin.data.views import (
    CIFAR10,
    HALF,
    JITTER,
    ColourJitter,
    Flip,
    Grey,
    PaddedCrop,
    PartOf,
    ResizedCrop,
    Rotate,
    Views,
)

STEPS = [PaddedCrop(8, 2), Flip(), Rotate(20), ResizedCrop(8), JITTER, Grey(0.5)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(n: int = 6, height: int = 8, width: int = 8, seed: int = 0) -> Tensor:
    return torch.randint(
        0, 256, (n, 3, height, width), dtype=torch.uint8, generator=generator(seed)
    )


def to_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def from_pil(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def test_plain_is_the_normalization_formula():
    x = pixels()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in CIFAR10)
    out = views.plain(*CIFAR10)(x)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, (x / 255 - mean) / std)
    assert views.plain(*HALF)(
        torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 1, 1)
    ).unique(sorted=True).tolist() == [-1, 1]


def test_floats_are_refused():
    with pytest.raises(TypeError, match=r"uint8 images and these are torch.float32"):
        views.plain(*HALF)(torch.rand(2, 3, 4, 4))


def test_crop_is_a_slice():
    x = pixels(5, 8, 10)
    top, left = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([6, 0, 3, 2, 5])
    out = image_ops.crop(x, top, left, 4)
    for i in range(5):
        assert torch.equal(out[i], x[i, :, top[i] : top[i] + 4, left[i] : left[i] + 4])


def test_padded_crop_takes_every_offset_of_the_padded_image():
    image = pixels(1, 4, 4).clamp(min=1)
    padded = torch.zeros(3, 6, 6, dtype=torch.uint8)
    padded[:, 1:5, 1:5] = image[0]
    out = PaddedCrop(4, 1)(image.expand(400, -1, -1, -1), generator())
    windows = [padded[:, i : i + 4, j : j + 4] for i in range(3) for j in range(3)]
    counts = [sum(torch.equal(crop, window) for crop in out) for window in windows]
    assert sum(counts) == 400
    assert min(counts) > 20  # 44 expected


def test_padded_crop_too_large():
    with pytest.raises(ValueError, match="no crop of 9 fits in 4×6 padded by 1"):
        PaddedCrop(9, 1)(pixels(1, 4, 6), None)


def test_flip_mirrors_about_half():
    x = pixels(1000, 1, 3)
    out = Flip()(x, generator())
    same, mirrored = (out == x).flatten(1).all(1), (out == x.flip(3)).flatten(1).all(1)
    assert (same | mirrored).all()
    assert 420 < (mirrored & ~same).sum() < 580
    assert torch.equal(Flip(0.0)(x, None), x)
    assert torch.equal(Flip(1.0)(x, None), x.flip(3))


def test_rotation_by_right_angles_is_exact():
    for side in (5, 8):
        x = pixels(4, side, side)
        out = image_ops.rotate(x, torch.tensor([0.0, 90.0, 180.0, -90.0]))
        for i, quarters in enumerate((0, 1, 2, 3)):
            assert torch.equal(out[i], x[i].rot90(quarters, (1, 2)))


def test_rotation_agrees_with_pillow():
    x = pixels(4, 12, 9)
    angles = [-17.3, 8.1, 33.7, 120.2]
    out = image_ops.rotate(x, torch.tensor(angles))
    for i, angle in enumerate(angles):
        expected = from_pil(to_pil(x[i]).rotate(angle)) * 255
        assert (out[i] != expected).any(
            0
        ).float().mean() < 0.02  # Pillow rounds coordinates to 1/65536


def test_resized_crop_of_the_whole_image_is_the_image():
    x = pixels() / 255
    zero, full = torch.zeros(6, dtype=torch.long), torch.full((6,), 8)
    assert torch.equal(image_ops.resized_crop(x, zero, zero, full, full, 8), x)
    torch.testing.assert_close(ResizedCrop(8, scale=(1.0, 1.0), ratio=(1.0, 1.0))(x, None), x)


@pytest.mark.parametrize("size", [5, 8, 20])
def test_resized_crop_agrees_with_pillow_enlarging_and_shrinking(size: int):
    x = pixels(4, 16, 24)
    boxes = torch.tensor([[0, 0, 16, 24], [3, 5, 7, 11], [9, 1, 7, 23], [15, 20, 1, 4]])
    out = image_ops.resized_crop(x / 255, *boxes.T, size)
    for i, (top, left, height, width) in enumerate(boxes.tolist()):
        part = to_pil(x[i]).crop((left, top, left + width, top + height))
        expected = from_pil(part.resize((size, size), Image.Resampling.BILINEAR))
        torch.testing.assert_close(out[i], expected, atol=1.1 / 255, rtol=0)  # Pillow rounds twice


def test_resized_crop_draws_boxes_of_the_asked_area_and_shape(monkeypatch: pytest.MonkeyPatch):
    seen = {}
    monkeypatch.setattr(
        views, "resized_crop", lambda x, *box: seen.update(box=torch.stack(box[:4]))
    )
    ResizedCrop(8, (0.2, 1.0))(torch.zeros(4000, 3, 32, 32), generator())
    top, left, height, width = seen["box"]
    assert (torch.stack([top, left]) >= 0).all()
    assert (top + height <= 32).all()
    assert (left + width <= 32).all()
    share, ratio = height * width / 1024, width / height
    assert 0.18 < share.min() < 0.22  # sides are rounded to whole pixels
    assert share.max() <= 1
    assert (
        0.55 < share.mean() < 0.6
    )  # a little below 0.6: large boxes of long shape do not fit and are drawn again
    assert 0.7 < ratio.min() < ratio.max() < 1.43
    assert abs(ratio.log().mean()) < 0.01
    assert (top == 0).any()
    assert (top + height == 32).any()


def test_resized_crop_falls_back_to_the_centre(monkeypatch: pytest.MonkeyPatch):
    seen = {}
    monkeypatch.setattr(
        views, "resized_crop", lambda x, *box: seen.update(box=torch.stack(box[:4]).T.tolist())
    )
    step = ResizedCrop(8, (0.9, 1.0))  # no such share fits in a strip with a shape from 3/4 to 4/3
    step(torch.zeros(2, 3, 10, 40), None)
    assert seen["box"] == [[0, 13, 10, 13]] * 2
    step(torch.zeros(2, 3, 40, 10), None)
    assert seen["box"] == [[13, 0, 13, 10]] * 2


def test_grey_is_luma():
    x = pixels()
    out = Grey(1.0)(x / 255, None)
    for i in range(len(x)):
        torch.testing.assert_close(
            out[i], from_pil(to_pil(x[i]).convert("L").convert("RGB")), atol=0.51 / 255, rtol=0
        )
    assert torch.equal(Grey(0.0)(x / 255, None), x / 255)


def test_grey_needs_colours():
    with pytest.raises(ValueError, match="3 channels and these images have 1"):
        Grey(1.0)(torch.zeros(2, 1, 4, 4), None)


@pytest.mark.parametrize(
    ("adjust", "enhance"),
    [
        (image_ops.adjust_brightness, ImageEnhance.Brightness),
        (image_ops.adjust_contrast, ImageEnhance.Contrast),
        (image_ops.adjust_saturation, ImageEnhance.Color),
    ],
)
def test_blends_agree_with_pillow(adjust, enhance):
    x = pixels(3)
    factors = [0.6, 1.0, 1.4]
    out = adjust(x / 255, torch.tensor(factors))
    assert torch.equal(out[1], x[1] / 255)
    for i, factor in enumerate(factors):
        expected = from_pil(enhance(to_pil(x[i])).enhance(factor))
        torch.testing.assert_close(
            out[i], expected, atol=1.5 / 255, rtol=0
        )  # Pillow truncates; its base is rounded


def test_hue_turns_pure_colours():
    colours = torch.tensor(
        [[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0.5, 0.5, 0.5], [0, 0, 0]]
    )
    x = colours.view(6, 3, 1, 1)
    third = image_ops.adjust_hue(x, torch.full((6,), 1 / 3)).view(6, 3)
    expected = torch.tensor(
        [[0, 1.0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 1], [0.5, 0.5, 0.5], [0, 0, 0]]
    )
    torch.testing.assert_close(third, expected, atol=1e-6, rtol=0)
    sixth_back = image_ops.adjust_hue(x[:1], torch.tensor([-1 / 6])).view(3)
    torch.testing.assert_close(sixth_back, torch.tensor([1.0, 0, 1]), atol=1e-6, rtol=0)


def test_hue_agrees_with_colorsys():
    x = torch.rand(1, 3, 20, 20, generator=generator())
    for shift in (-0.5, -0.1, 0.0, 0.07, 0.5):
        out = image_ops.adjust_hue(x, torch.tensor([shift]))
        for rgb, ours in zip(x[0].flatten(1).T.tolist(), out[0].flatten(1).T, strict=True):
            h, s, v = colorsys.rgb_to_hsv(*rgb)
            expected = torch.tensor(colorsys.hsv_to_rgb((h + shift) % 1, s, v))
            torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_jitter_of_no_strength_is_the_identity():
    x = pixels() / 255
    assert torch.equal(ColourJitter(0, 0, 0, 0)(x, None), x)
    assert torch.equal(replace(JITTER, p=0.0)(x, None), x)
    assert x is not ColourJitter(0, 0, 0, 0)(x, None)


def test_jitter_applies_each_operation_once_in_the_images_own_order():
    x = pixels(40) / 255
    out = JITTER(x, generator())
    u = torch.rand(40, 9, generator=generator())
    orders = set()
    for i in range(40):
        image = x[i : i + 1]
        order = u[i, 4:8].argsort().tolist()
        for kind in order if u[i, 8] < 0.8 else []:
            centre, strength = (0, 0.1) if kind == 3 else (1, 0.4)
            image = image_ops.ADJUSTMENTS[kind](
                image, centre + strength * (2 * u[i, kind : kind + 1] - 1)
            )
        torch.testing.assert_close(out[i : i + 1], image, atol=1e-5, rtol=0)
        orders.add(tuple(order))
    assert len(orders) > 12  # of 24


def test_jitter_and_grey_rates():
    x = torch.rand(2000, 3, 1, 2, generator=generator()).mul(0.5).add(0.25)
    changed = (JITTER(x, generator(1)) != x).flatten(1).any(1).float().mean()
    assert 0.76 < changed < 0.84
    changed = (Grey(0.2)(x, generator(1)) != x).flatten(1).any(1).float().mean()
    assert 0.16 < changed < 0.24


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_contract_of_every_step(step):
    x = pixels(32) / 255
    before = x.clone()
    out = step(x, generator(3))
    assert out.shape == x.shape
    assert out.dtype == torch.float32
    assert out.min() >= -1e-6
    assert out.max() <= 1 + 1e-6
    assert torch.equal(x, before), "the input was changed"
    assert torch.equal(out, step(x, generator(3)))
    assert not torch.equal(out, step(x, generator(4)))
    assert step(x[:0], generator()).shape == (0, 3, 8, 8)


@pytest.mark.parametrize(
    "step", [s for s in STEPS if isinstance(s, views.MOVES_PIXELS)], ids=lambda s: type(s).__name__
)
def test_bytes_and_floats_move_alike(step):
    x = pixels(16)
    moved = step(x, generator())
    assert moved.dtype == torch.uint8
    assert torch.equal(moved / 255, step(x / 255, generator()))


def test_crop_flip_on_bytes_equals_the_float_path():
    x = pixels(16)
    augment = views.crop_flip(8, 2, *CIFAR10)
    g, y = generator(), x / 255
    for step in augment.steps:
        y = step(y, g)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in CIFAR10)
    torch.testing.assert_close(augment(x, generator()), (y - mean) / std, atol=1e-5, rtol=1e-5)


def test_views_differ_and_repeat_with_the_generator():
    x = pixels(16, 32, 32)
    augment = views.supcon(32, *CIFAR10)
    out = augment(x, generator())
    assert out.shape == (16, 2, 3, 32, 32)
    assert (out[:, 0] != out[:, 1]).flatten(1).any(1).all()
    assert torch.equal(out, augment(x, generator()))
    assert torch.equal(out[:, 0], views.supcon(32, *CIFAR10, number=1)(x, generator()))
    torch.manual_seed(5)
    first = augment(x)
    torch.manual_seed(5)
    assert torch.equal(first, augment(x))


def test_factories_are_the_published_recipes():
    assert views.supcon(32, *CIFAR10).steps == (
        ResizedCrop(32, (0.2, 1.0)),
        Flip(0.5),
        ColourJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        Grey(0.2),
    )
    assert views.biascon_mnist(*HALF) == Views(
        (Rotate(20), ColourJitter(0.4, 0.4, 0.4, 0.1, p=0.8)), *HALF, number=2
    )
    assert views.resized_crop_flip(224, (0.08, 1.0), *CIFAR10).steps == (
        ResizedCrop(224, (0.08, 1.0)),
        Flip(),
    )
    assert views.biascon_mnist(*HALF)(pixels(4, 28, 28)).shape == (4, 2, 3, 28, 28)


def test_without_colour_there_is_one_view_by_the_same_crops_and_flips():
    assert views.without_colour(views.supcon(32, *CIFAR10)) == views.resized_crop_flip(
        32, (0.2, 1.0), *CIFAR10
    )
    assert views.without_colour(views.biascon_mnist(*HALF)) == Views((Rotate(20),), *HALF)
    for same in (views.crop_flip(32, 4, *CIFAR10), views.plain(*CIFAR10)):
        assert views.without_colour(same) == same


@pytest.mark.parametrize("augment", [views.supcon(8, *CIFAR10), views.crop_flip(8, 2, *CIFAR10)])
def test_parts_of_a_batch_are_augmented_as_in_the_whole(augment: Views):
    x = pixels(10)
    whole = augment(x, generator())
    parts = [augment(x[a:b], PartOf(generator(), a, 10)) for a, b in ((0, 3), (3, 3), (3, 10))]
    torch.testing.assert_close(torch.cat(parts), whole)
