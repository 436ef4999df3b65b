"""Augmentations of people's own images by name."""

from typing import get_args

import pytest
import torch
from PIL import Image

from fairmargin.data import build
from fairmargin.data.augment import MEANINGS, Augment, RandAugment, augment_named, augmented
from fairmargin.data.own import from_datasets
from fairmargin.data.show_views import draw_augmented, pixels_of
from fairmargin.data.views import HALF

NAMES = get_args(Augment)


def images(n=40, size=16):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator)


def seen(name, pixels, seed=0):
    views = augmented(name, pixels.shape[-1], *HALF)
    return pixels_of(views, pixels, torch.Generator().manual_seed(seed))


def same_or_mirrored(pixels, views):
    """How many images came out as they are, and how many as their mirror image."""
    alike = lambda a, b: int((a == b).flatten(1).all(1).sum())
    return alike(views[:, 0], pixels), alike(views[:, 0], pixels.flip(3))


def test_every_name_has_a_meaning():
    assert set(MEANINGS) == set(NAMES)


def test_none_changes_nothing():
    pixels = images()
    assert same_or_mirrored(pixels, seen("none", pixels)) == (40, 0)


def test_crop_never_mirrors_and_crop_flip_does():
    """Without room to shift, what is left is the mirror."""
    pixels = images(size=7)
    assert same_or_mirrored(pixels, seen("crop", pixels)) == (40, 0)
    same, mirrored = same_or_mirrored(pixels, seen("crop-flip", pixels))
    assert same + mirrored == 40
    assert same > 5
    assert mirrored > 5
    shifted = images()
    assert same_or_mirrored(shifted, seen("crop", shifted))[0] < 30


def test_supcon_gives_two_views():
    views = seen("supcon", images())
    assert views.shape == (40, 2, 3, 16, 16)
    assert not torch.equal(views[:, 0], views[:, 1])


def test_randaugment_is_within_bounds_repeatable_and_of_one_device_size():
    x = images().float() / 255
    once = RandAugment()(x, torch.Generator().manual_seed(3))
    assert once.shape == x.shape
    assert 0 <= float(once.min()) <= float(once.max()) <= 1
    assert torch.equal(once, RandAugment()(x, torch.Generator().manual_seed(3)))
    changed = (once != x).flatten(1).any(1)
    assert float(changed.float().mean()) > 0.6
    assert torch.equal(RandAugment(changes=0)(x, None), x)


def test_old_switches_and_unknown_names():
    assert (augment_named(True), augment_named(False)) == ("crop-flip", "none")
    with pytest.raises(ValueError, match="did you mean 'crop-flip'"):
        augment_named("cropflip")
    with pytest.raises(ValueError, match="have 1 channels; choose crop-flip, crop or none"):
        augmented("supcon", 16, (0.5,), (0.5,))


def pictures(folder):
    for i in range(12):
        where = folder / ("train" if i < 8 else "test") / "ab"[i % 2]
        where.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (20 * i, 99, 0)).save(where / f"{i}.png")
    return folder


@pytest.mark.parametrize(("given", "number"), [("supcon", 2), ("crop", 1), (False, 1)])
def test_a_folder_takes_it_and_shows_it(tmp_path, given, number):
    data = build("folder", pictures(tmp_path / "mine"), image_size=16, augment=given)
    assert data.train_views.number == number
    assert data.eval_views.steps == ()
    assert draw_augmented(data, tmp_path / "seen.png").stat().st_size > 1000


def test_datasets_from_python_take_it():
    samples = [(image, i % 2) for i, image in enumerate(images(8))]
    assert from_datasets(samples, None, samples, augment="supcon").train_views.number == 2
    floats = [(image.float(), y) for image, y in samples]
    with pytest.raises(ValueError, match="is for square uint8 images"):
        from_datasets(floats, None, floats, augment="supcon")
