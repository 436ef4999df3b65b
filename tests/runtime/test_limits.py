"""Small files that unpack to gigabytes are refused before they are unpacked."""

import io
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from fairmargin.data.arrays import read
from fairmargin.data.decode import UnreadableImage, open_rgb
from fairmargin.runs.record import RunError, RunRecord
from fairmargin.runtime.limits import ARRAYS, IMAGE, limit
from tests.report.fake_runs import write_run


def bomb(path, gigabytes):
    """An .npz that says that it holds so much; its content is some kilobytes."""
    header = io.BytesIO()
    shape = (gigabytes << 30,)
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embeddings.npy", header.getvalue() + bytes(1 << 20))
    content = bytearray(path.read_bytes())
    # The size that the directory at the end tells.
    at = content.rindex(b"PK\x01\x02") + 24
    content[at : at + 4] = min(gigabytes << 30, 0xFFFFFFFE).to_bytes(4, "little")
    path.write_bytes(content)
    return path


def png(path, width, height):
    """A PNG of one colour of any size, written without its pixels in memory."""

    def chunk(kind, content):
        sum_ = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + sum_

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([1, 0, 0, 0, 0])
    packed = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    body = b"".join(packed.compress(row) for _ in range(height)) + packed.flush()
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )
    return path


def test_arrays_above_the_limit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(ARRAYS[0], "1")
    file = bomb(tmp_path / "e.npz", 3)
    assert file.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"unpacks to 3\.0 GiB, more than 1; .*ARRAYS=3"):
        read(file)


def test_arrays_of_a_run_too(tmp_path, monkeypatch):
    monkeypatch.setenv(ARRAYS[0], "1")
    run = write_run(tmp_path / "run", "ce", n=50)
    bomb(run / "test.npz", 3)
    with pytest.raises(RunError, match=r"unpacks to 3\.0 GiB"):
        _ = RunRecord.read(run).test


def test_pictures_above_the_limit_are_refused(tmp_path, monkeypatch):
    file = png(tmp_path / "large.png", 13_000, 13_000)
    assert file.stat().st_size < 100_000
    with pytest.raises(UnreadableImage, match=r"169 megapixels, more than 100; .*IMAGE=169"):
        open_rgb(file)
    monkeypatch.setenv(IMAGE[0], "0.01")
    with pytest.raises(UnreadableImage, match=r"more than 0\.01"):
        open_rgb(png(tmp_path / "small.png", 200, 200))
    usual = Image.MAX_IMAGE_PIXELS
    monkeypatch.setenv(IMAGE[0], "0.05")
    assert open_rgb(tmp_path / "small.png").size == (200, 200)
    assert usual == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan"])
def test_a_limit_must_be_a_number(text, monkeypatch):
    monkeypatch.setenv(IMAGE[0], text)
    with pytest.raises(ValueError, match="must be a number above 0"):
        limit(IMAGE)
