import os
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from fairmargin.data.decode import Decoder, UnreadableImage, open_rgb


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_pixels_of_the_right_size_come_back_unchanged(tmp_path):
    pixels = noise(5, 7)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for mode in ("stretch", "crop", "pad"):
        decoded = Decoder((5, 7), mode)(tmp_path / "a.png")
        assert decoded.dtype == torch.uint8
        assert decoded.is_contiguous()
        assert torch.equal(decoded, torch.from_numpy(pixels).permute(2, 0, 1))


def test_modes_treat_a_wide_image_each_in_their_way(tmp_path):
    pixels = np.zeros((8, 24, 3), np.uint8)  # a red, a green and a blue square, side by side
    for k in range(3):
        pixels[:, 8 * k : 8 * k + 8, k] = 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")

    crop = Decoder(8, "crop")(tmp_path / "wide.png")
    assert crop.shape == (3, 8, 8)
    assert crop[1].min() == 255 and not crop[[0, 2]].any()  # noqa: PT018  (one fact: the green middle)
    pad = Decoder(24, "pad")(tmp_path / "wide.png")
    assert torch.equal(pad[:, 8:16], torch.from_numpy(pixels).permute(2, 0, 1))
    assert not pad[:, :8].any()
    assert not pad[:, 16:].any()
    stretch = Decoder(12, "stretch")(tmp_path / "wide.png")
    assert stretch[0, :, 0].min() == 255  # red still at the left edge
    assert stretch[2, :, -1].min() == 255  # and blue at the right


def test_a_hair_thin_image_is_padded_not_lost(tmp_path):
    Image.new("RGB", (1, 500), "white").save(tmp_path / "thin.png")
    assert Decoder(16, "pad")(tmp_path / "thin.png").any()


@pytest.mark.parametrize(
    ("image", "colour"),
    [
        (Image.new("L", (4, 4), 90), (90, 90, 90)),
        (Image.new("1", (4, 4), 1), (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (0, 0, 0, 51)), (204, 204, 204)),
        (Image.new("LA", (4, 4), (0, 255)), (0, 0, 0)),
        (Image.new("RGB", (4, 4), (1, 2, 3)).quantize(), (1, 2, 3)),
        (Image.fromarray(np.full((4, 4), 65535, np.uint16)), (255, 255, 255)),
        (Image.fromarray(np.full((4, 4), 100 * 257, np.uint16)), (100, 100, 100)),
    ],
    ids=[
        "grey",
        "bilevel",
        "transparent",
        "translucent",
        "grey-alpha",
        "palette",
        "16-bit white",
        "16-bit grey",
    ],
)
def test_every_kind_of_pixel_becomes_rgb(tmp_path, image, colour):
    image.save(tmp_path / "a.png")
    decoded = Decoder(4)(tmp_path / "a.png")
    assert torch.equal(
        decoded, torch.tensor(colour, dtype=torch.uint8).view(3, 1, 1).expand(3, 4, 4)
    )


def test_palette_with_a_transparent_entry_is_laid_over_white(tmp_path):
    image = Image.new("P", (4, 4), 0)
    image.putpalette([200, 0, 0, 0, 200, 0])
    image.putpixel((0, 0), 1)
    image.save(tmp_path / "a.gif", transparency=0)
    picture = open_rgb(tmp_path / "a.gif")
    assert picture.getpixel((3, 3)) == (255, 255, 255)
    assert picture.getpixel((0, 0)) == (0, 200, 0)


def test_cmyk_photographs_are_read(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg")
    red, green, blue = open_rgb(tmp_path / "a.jpg").getpixel((4, 4))
    assert red > 200
    assert max(green, blue) < 80


def test_exif_orientation_is_honoured_and_broken_exif_ignored(tmp_path):
    pixels = noise(4, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # hold the camera a quarter turn clockwise
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    upright = np.asarray(open_rgb(tmp_path / "turned.png"))
    assert np.array_equal(upright, np.rot90(pixels, -1))
    Image.fromarray(pixels).save(tmp_path / "broken.png", exif=b"Exif\0\0nonsense")
    assert np.array_equal(np.asarray(open_rgb(tmp_path / "broken.png")), pixels)


def test_unreadable_files_are_named_with_their_reason(tmp_path, monkeypatch):
    Image.fromarray(noise(40, 40)).save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(noise(64, 64)).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:900])
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "drawing.eps").write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    )
    zero = whole[:16] + struct.pack(">I", 0) + whole[20:]  # a PNG header that says: no pixels wide
    (tmp_path / "zero.png").write_bytes(zero)
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "float.tif")
    reasons = {
        "cut.png": "truncated",
        "cut.jpg": "truncated",
        "text.png": "not an image",
        "empty.png": "0 bytes",
        "folder.png": "a folder",
        "drawing.eps": "not an image",
        "zero.png": "",
        "float.tif": "no agreed range",
        "missing.png": "no such file",
        "nul\0.png": "null",
    }
    for name, reason in reasons.items():
        with pytest.raises(UnreadableImage) as caught:
            Decoder(8)(tmp_path / name)
        assert name in str(caught.value)
        assert reason in caught.value.args[1]
        assert (
            pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
        )  # it crosses process borders

    monkeypatch.setenv("FAIRMARGIN_LARGEST_IMAGE", "0.001")  # 40 × 40 is now above the limit
    with pytest.raises(UnreadableImage, match="megapixels, more than"):
        Decoder(8)(tmp_path / "whole.png")


def tiff_of_floats(path, channels, size):
    """Write an uncompressed TIFF of 4×4 floating-point pixels, of `size` bytes each."""
    pixels = bytes(16 * channels * size)
    tail = 8 + len(pixels)
    bits, floats = [8 * size] * channels, [3] * channels
    lists = b"".join(struct.pack(f"<{channels}H", *values) for values in (bits, floats))
    entries = [(256, 4), (257, 4), (259, 1), (262, 2 if channels == 3 else 1), (273, 8)]
    entries += [(277, channels), (278, 4), (279, len(pixels))]
    several = {258: (bits, tail), 339: (floats, tail + 2 * channels)}
    table = b""
    for tag in sorted([tag for tag, _ in entries] + list(several)):
        value = dict(entries).get(tag, 0)
        count, kind = 1, 4
        if tag in several:
            values, offset = several[tag]
            count, kind = channels, 3
            value = offset if channels > 2 else values[0]
        table += struct.pack("<HHII", tag, kind, count, value)
    head = b"II*\0" + struct.pack("<I", tail + len(lists))
    rows = len(entries) + len(several)
    path.write_bytes(head + pixels + lists + struct.pack("<H", rows) + table + bytes(4))
    return path


@pytest.mark.parametrize(("channels", "size"), [(1, 4), (1, 8), (3, 4)])
def test_floating_point_pixels_are_refused_in_one_sentence(tmp_path, channels, size):
    file = tiff_of_floats(tmp_path / "x.tiff", channels, size)
    with pytest.raises(UnreadableImage) as caught:
        open_rgb(file)
    reason = caught.value.args[-1]
    assert "floating-point" in reason
    assert reason.endswith("save the image with 8 or 16 bits")
    assert "cannot be decoded" not in reason


@pytest.mark.parametrize("kind", ["bmp", "gif", "jpg", "png", "ppm", "webp"])
def test_a_file_cut_anywhere_is_refused_or_loses_no_pixel(tmp_path, kind):
    Image.fromarray(noise(12, 12)).save(tmp_path / f"whole.{kind}")
    whole, cut = (tmp_path / f"whole.{kind}").read_bytes(), tmp_path / f"cut.{kind}"
    pixels, refused = Decoder(12)(tmp_path / f"whole.{kind}"), 0
    for length in range(0, len(whole), 5):
        cut.write_bytes(whole[:length])
        try:
            assert torch.equal(Decoder(12)(cut), pixels)
        except UnreadableImage:
            refused += 1
    assert refused > 0.9 * len(whole) / 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(UnreadableImage, match="not a regular file"):
        Decoder(8)(tmp_path / "pipe.png")


def test_a_decoder_is_a_value_and_refuses_nonsense():
    assert pickle.loads(pickle.dumps(Decoder((3, 4), "pad"))) == Decoder((3, 4), "pad")
    assert Decoder((3, 4)).shape == (3, 3, 4)
    with pytest.raises(ValueError, match="did you mean 'crop'"):
        Decoder(8, "crops")
    with pytest.raises(ValueError, match="at least one pixel"):
        Decoder((8, 0))
