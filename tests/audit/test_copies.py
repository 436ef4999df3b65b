"""Copies are found by what pictures show, and honest pictures have none."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from fairmargin.audit import copies
from fairmargin.audit.sight import look
from fairmargin.data import build
from tests.audit.small_photos import dataset, photos

N = 300
CHANGED = 12


def _changed(pixels, change):
    made = []
    for image in pixels:
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        made.append(torch.from_numpy(np.array(change(picture))).permute(2, 0, 1))
    return torch.stack(made)


def _jpeg(picture):
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=75)
    return Image.open(stream).convert("RGB")


def _smaller(picture):
    small = picture.resize((24, 24), Image.Resampling.BILINEAR)
    return small.resize((32, 32), Image.Resampling.BILINEAR)


CHANGES = {
    "exact": lambda picture: picture,
    "jpeg": _jpeg,
    "brightness": lambda picture: ImageEnhance.Brightness(picture).enhance(0.9),
    "resized": _smaller,
    "mirrored": lambda picture: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


def _found(data):
    chosen = {name: np.arange(len(getattr(data, name))) for name in ("train", "valid", "test")}
    sight = look(data, chosen)
    return copies.find(data, sight), sight


@pytest.mark.parametrize("kind", CHANGES)
def test_copies_are_found(kind):
    train = photos(N)
    test = torch.cat([_changed(train[:CHANGED], CHANGES[kind]), photos(40, seed=1)])
    y = torch.arange(N) % 3
    data = dataset(train, test, y, torch.arange(len(test)) % 3)
    pairs, sight = _found(data)
    assert {(p.first, p.second) for p in pairs} == {(i, N + i) for i in range(CHANGED)}
    expected = kind if kind in ("exact", "mirrored") else "near"
    assert {p.kind for p in pairs} == {expected}
    assert sight.name(N) == "test/0.png"


def test_every_copy_is_paired_with_the_first():
    train = photos(60)
    train[1] = train[0]
    test = photos(10, seed=1)
    test[3] = test[7] = train[0]
    pairs, _ = _found(dataset(train, test, torch.arange(60) % 2, torch.arange(10) % 2))
    assert [(p.first, p.second) for p in pairs] == [(0, 1), (0, 63), (0, 67)]


def test_copies_of_a_near_copy_leak_too():
    train = photos(60)
    near = _changed(train[:1], _jpeg)[0]
    test = photos(10, seed=1)
    test[3] = test[7] = near
    pairs, sight = _found(dataset(train, test, torch.arange(60) % 2, torch.arange(10) % 2))
    across = [p for p in pairs if sight.split[p.first] != sight.split[p.second]]
    assert [(p.first, p.second, p.kind) for p in across] == [(0, 63, "near"), (0, 67, "near")]


def test_plain_colours_are_copies_only_if_equal():
    train = photos(40)
    train[0], train[1], train[2] = 10, 10, 11
    pairs, _ = _found(dataset(train, photos(4, seed=1), torch.arange(40) % 2, torch.arange(4) % 2))
    assert [(p.first, p.second, p.kind) for p in pairs] == [(0, 1, "exact")]


def test_digits_written_alike_are_no_copies():
    pairs, _ = _found(build("mnist-mini"))
    assert len(pairs) <= 2


def test_bits_are_counted_without_new_numpy(monkeypatch):
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    x = np.array([0, 1, 2**64 - 1, 0b1011 << 40], np.uint64)
    assert copies._bits(x).tolist() == [0, 1, 64, 3]
