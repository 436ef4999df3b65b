"""Small files that unpack to gigabytes are refused before they are unpacked."""

import io
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.data import build, manifest
from fairmargin.data.arrays import read
from fairmargin.data.decode import Decoder, UnreadableImage, open_rgb
from fairmargin.data.loader import Loader
from fairmargin.data.preprocessing import Preprocessing
from fairmargin.data.samplers import InOrder
from fairmargin.data.views import HALF, plain
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


def own_table(folder, large=(200, 200)):
    """Forty small pictures and one large one, with their table."""
    rows = ["path,label,split"]
    for k in range(41):
        size = large if k == 40 else (4, 4)
        png(folder / f"{k}.png", *size)
        rows.append(f"{k}.png,{'ab'[k % 2]},{'test' if k % 4 == 3 else 'train'}")
    table = folder / "my.csv"
    table.write_text("\n".join(rows))
    return table


# Kept in memory, checked and read again later, read later alone; in processes of their own, too.
READ = [{}, {"memory_limit": 0}, {"memory_limit": 0, "check_files": "exists"}]


@pytest.mark.parametrize("options", READ)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_key_wins_over_the_variable(options, workers, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "ROWS_PER_PROCESS", 10)
    table = own_table(tmp_path)

    def pixels(largest):
        given = {"workers": workers, "largest_image": largest, "valid_fraction": 0} | options
        data = build("folder", table, image_size=4, **given)
        return data.train.images(torch.arange(len(data.train)))

    monkeypatch.setenv(IMAGE[0], "0.01")
    assert len(pixels(0.05)) == 31
    monkeypatch.setenv(IMAGE[0], "1")
    with pytest.raises(ValueError, match=r"more than 0\.01; .*data\.largest_image=1, .*IMAGE=1"):
        pixels(0.01)


def test_the_key_reaches_the_processes_that_load_batches(tmp_path, monkeypatch):
    monkeypatch.setenv(IMAGE[0], "0.01")
    options = {"memory_limit": 0, "valid_fraction": 0, "largest_image": 0.05}
    data = build("folder", own_table(tmp_path), image_size=4, **options)
    loader = Loader(data.train, plain(*HALF), InOrder(len(data.train)), 8, workers=1)
    assert sum(len(batch.labels) for batch in loader) == 31


@pytest.mark.parametrize("value", ["0", "-3", "inf", "nan", "much"])
def test_a_key_must_be_a_number_above_0(value, tmp_path):
    table = own_table(tmp_path)
    words = ["train", "--dataset", str(table), "--set", f"data.largest_image={value}"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "data.largest_image" in done.output
    assert not (tmp_path / "run").exists()


def test_a_run_folder_raises_no_limit_for_other_pictures():
    """Only your own configuration does."""
    prepared = Preprocessing(Decoder(8, "crop", 5000.0), (0.5,) * 3, (0.5,) * 3)
    written = prepared.as_dict()
    assert "largest" not in written["decoder"]
    written["decoder"]["largest"] = 5000.0
    assert Preprocessing.from_dict(written).decoder.largest is None
