"""Random files that hold others: zip, tar, npz, idx, webdataset, safetensors, and pictures."""

import gzip
import io
import json
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from fairmargin.data.archives import extract

Trial = list[str] | Callable[[], None]
NAMES = [
    "a.txt", "b/c.txt", "../out.txt", "/tmp/fuzz-out.txt", "a.txt",
    "b", "b/", "", ".", "..", "é☃.txt",
    "x" * 300, "a\\b.txt", "C:x", "a\x00b",
    "b/../../out.txt", "./a.txt", "con.txt", "a/" * 200 + "x",
    "\udc80",
]  # fmt: skip


def _damaged(content: bytes, draw: random.Random) -> bytes:
    """Change, cut or lengthen some bytes, or leave them."""
    damaged = bytearray(content)
    for _ in range(draw.choice([0, 0, 1, 1, 3, 10])):
        kind = draw.random()
        if not damaged:
            break
        # Headers stand at both ends.
        near = min(len(damaged), 200)
        place = draw.choice(
            [
                draw.randrange(len(damaged)),
                draw.randrange(near),
                len(damaged) - 1 - draw.randrange(near),
            ]
        )
        if kind < 0.6:
            damaged[place] = draw.choice([0, 255, draw.randrange(256), damaged[place] ^ 1])
        elif kind < 0.8:
            del damaged[place : place + draw.choice([1, 4, 1000])]
        else:
            damaged[place:place] = draw.randbytes(draw.choice([1, 4, 100]))
    return bytes(damaged)


def _picture(draw: random.Random, side: int = 8) -> bytes:
    image = Image.frombytes("RGB", (side, side), draw.randbytes(3 * side * side))
    mode = draw.choice(["RGB", "RGB", "L", "P", "RGBA", "1", "I;16", "CMYK", "LA"])
    kind = draw.choice(["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PNG"])
    buffer = io.BytesIO()
    try:
        image.convert("L" if mode == "I;16" else mode).save(buffer, kind)
    except (OSError, ValueError):
        image.save(buffer, "PNG")
    return buffer.getvalue()


def _zip(draw: random.Random) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", draw.choice([0, 8, 12, 14])) as file:
        for _ in range(draw.randrange(4)):
            info = zipfile.ZipInfo(draw.choice(NAMES).encode("utf-8", "replace").decode() or "e")
            info.external_attr = draw.choice([0, 0, 0o120777, 0o100644, 0o040755, 0o060000]) << 16
            file.writestr(info, draw.randbytes(draw.choice([0, 10, 1000])))
    return buffer.getvalue()


def _tar(draw: random.Random, entries: list[tuple[str, bytes]] | None = None) -> bytes:
    buffer = io.BytesIO()
    if entries is None:
        names = [draw.choice(NAMES) for _ in range(draw.randrange(4))]
        entries = [(name, draw.randbytes(draw.choice([0, 10, 700]))) for name in names]
    formats = [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]
    with tarfile.open(fileobj=buffer, mode="w", format=draw.choice(formats)) as file:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if draw.random() < 0.02:
                info.type = draw.choice(
                    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"S", b"x"]
                )
                info.linkname = draw.choice(["../out.txt", "/etc/passwd", "a.txt", ""])
            if draw.random() < 0.05:
                info.pax_headers = {
                    draw.choice(["path", "size", "GNU.sparse.map"]): draw.choice(NAMES)
                }
            try:
                file.addfile(info, io.BytesIO(content))
            except (UnicodeError, ValueError):
                continue
    return buffer.getvalue()


def unpacked(draw: random.Random, folder: Path) -> Trial:
    """A zip or tar file, unpacked."""
    content = _zip(draw) if draw.random() < 0.5 else _tar(draw)
    if draw.random() < 0.3:
        content = gzip.compress(content)
    file = folder / "archive"
    file.write_bytes(_damaged(content, draw))
    target = folder / "unpacked" / "here"
    return lambda: extract(file, target, max_bytes=1 << 20, max_entries=100)


def _array(draw: random.Random, name: str, rows: int) -> np.ndarray:
    if draw.random() < 0.85:
        if name in ("embeddings", "features", "x"):
            return np.random.RandomState(draw.randrange(1000)).randn(rows, 4).astype("f4")
        return np.arange(rows) % 2
    return draw.choice(
        [
            np.zeros((rows, 0)), np.full((rows, 4),
            np.nan), np.full((rows, 4), np.inf), np.zeros(()),
            np.array(["a", "b"] * 6), np.array([b"a"] * 12), np.zeros((rows,
            2, 2)), np.zeros(rows, "c8"),
            np.array([None] * 12, object), np.arange(12) - 5,
            np.zeros(12, bool), np.full(12, 1 << 62),
            np.zeros((rows, 4), "f2"), np.full((12,
            4), 1e300), np.array(["2020-01-01"] * 12, "M8[D]"),
            np.zeros(12, [("a", "i4")]), np.full((12, 4), 3e38, "f4"), np.array(["\x00é"] * 12),
        ]
    )  # fmt: skip


def npz(draw: random.Random, folder: Path) -> Trial:
    """An .npz of embeddings."""
    names = ["embeddings", "labels"]
    if draw.random() < 0.5:
        names.append("bias")
    if draw.random() < 0.5:
        names.append("split")
    if draw.random() < 0.2:
        names = draw.sample([*names, "features", "x", "y", "0", "a/b", "../x", "é"], 3)
    rows = draw.choice([12, 12, 12, 12, 12, 0, 1, 7])
    arrays = {name: _array(draw, name, rows) for name in names}
    if "split" in arrays and draw.random() < 0.8:
        arrays["split"] = np.array(["train", "train", "test"] * 4)
    buffer = io.BytesIO()
    (np.savez if draw.random() < 0.5 else np.savez_compressed)(buffer, **arrays)  # type: ignore[arg-type]
    content = buffer.getvalue()
    (folder / "e.npz").write_bytes(_damaged(content, draw) if draw.random() < 0.25 else content)
    small = ["--set", "network.widths=[4]", "--set", "data.test_fraction=0.5"]
    train = ["train", "--dataset", "e.npz", "--out", "out", "--method", "ce", *small]
    audit = ["audit", "e.npz", "--permutations", "9", "--out", "out"]
    return draw.choice([train, audit, ["data", "show", "e.npz"]])


def idx(draw: random.Random, folder: Path) -> Trial:
    """The four files of MNIST, with few images."""
    place = folder / "data" / "mnist"
    place.mkdir(parents=True)
    for split in ("train", "t10k"):
        number = draw.choice([20, 20, 20, 0, 1])
        images = struct.pack(">4B3i", 0, 0, 8, 3, number, 28, 28) + draw.randbytes(784 * number)
        labels = bytes(k % 10 for k in range(number))
        labels = struct.pack(">4Bi", 0, 0, 8, 1, number) + labels
        for name, content in (("images-idx3", images), ("labels-idx1", labels)):
            if draw.random() < 0.4:
                content = _damaged(content, draw)
            if draw.random() < 0.3:
                content = _damaged(gzip.compress(content), draw)
            (place / f"{split}-{name}-ubyte").write_bytes(content)
    name = draw.choice(["mnist", "biased-mnist", "coloured-mnist"])
    return ["data", draw.choice(["show", "show", "verify"]), name, "--root", "data"]


def webdataset(draw: random.Random, folder: Path) -> Trial:
    """Tars of images with their fields."""
    for number in range(draw.choice([1, 2, 2])):
        entries: list[tuple[str, bytes]] = []
        for k in range(draw.choice([0, 3, 12, 12, 12])):
            key = f"{number}{k:03}"
            if draw.random() < 0.03:
                key = draw.choice(["../x", "", ".", "a b", "é☃", "000", "x" * 300])
            fields: object = {"label": draw.choice(["a", "b"]), "split": ["train", "test"][k % 2]}
            if draw.random() < 0.03:
                fields = draw.choice(
                    [[], None, 1, {"label": None}, {"label": {}}, {"label": [1]}, "x"]
                )
            text = json.dumps(fields)
            if draw.random() < 0.02:
                text = draw.choice(
                    ["[" * 100_000, "{", "NaN", "1" * 5000, "", "\x00", '{"label": 1e999}']
                )
            entries.append(
                (f"{key}.{draw.choice(['png'] * 40 + ['jpg', 'PNG', 'x', ''])}", _picture(draw))
            )
            entries.append((f"{key}.json", text.encode()))
            if draw.random() < 0.1:
                entries.append((f"{key}.cls", draw.choice([b"0", b"x", b"\xff\xfe", b""])))
        content = _tar(draw, entries)
        if draw.random() < 0.2:
            content = _damaged(content, draw)
        (folder / f"s-{number:03}.tar").write_bytes(content)
    name = draw.choice(
        ["s-000.tar", "s-000.tar", "s-{000..001}.tar", "s-{000..009}.tar", "s-*.tar"]
    )
    small = ["--network", "simple-conv-3", "--set", "network.widths=[4]", "--method", "ce"]
    train = ["train", "--dataset", name, "--out", "out", *small]
    return draw.choice([train, ["data", "show", name], ["audit", name, "--permutations", "9"]])


def safetensors(draw: random.Random, folder: Path) -> Trial:
    """Weights to start from, or those of a run."""
    name = draw.choice(["w.safetensors", "w.safetensors", "w.pth", "run/weights.safetensors"])
    if name.startswith("run/"):
        content = (folder / name).read_bytes()
    else:
        shape = draw.choice([[4, 3, 3, 3], [4], [], [0], [1 << 40], [-1], [2, 1 << 62], ["x"]])
        size = draw.choice([432, 16, 0, 1 << 50])
        entry = {
            "dtype": draw.choice(["F32", "BF16", "I64", "X"]),
            "shape": shape,
            "data_offsets": [0, size],
        }
        key = draw.choice(["blocks.0.0.weight", "x", "", "__metadata__"])
        header = json.dumps({key: entry}).encode()
        length = draw.choice([len(header)] * 4 + [1 << 62, 0])
        content = struct.pack("<Q", length) + header + bytes(432)
    (folder / name).write_bytes(_damaged(content, draw))
    if name.startswith("run/"):
        words = draw.choice(
            [["evaluate", "run"], ["verify", "run"], ["predict", "run", "photos/table.csv"]]
        )
        return [*words]
    small = ["--network", "simple-conv-3", "--set", "network.widths=[4]", "--method", "ce"]
    data = ["--dataset", "planted", "--set", "data.train=48", "--set", "data.test=16"]
    return ["train", *data, "--out", "out", *small, "--set", f"network.weights={name}"]


def images(draw: random.Random, folder: Path) -> Trial:
    """A folder of classes with damaged pictures."""
    for split in ("train", "test"):
        for label in ("a", "b"):
            place = folder / "set" / split / label
            place.mkdir(parents=True)
            for k in range(3):
                content = _picture(draw, draw.choice([1, 8, 8, 64]))
                if draw.random() < 0.3:
                    content = _damaged(content, draw)
                (place / f"{k}.{draw.choice(['png', 'jpg', 'png', 'gif', 'tif'])}").write_bytes(
                    content
                )
    small = ["--network", "simple-conv-3", "--set", "network.widths=[4]", "--method", "ce"]
    skip = draw.choice(
        [[], [], ["--set", "data.skip_bad=true"], ["--set", "data.check_files=exists"]]
    )
    train = ["train", "--dataset", "set", "--out", "out", *small, *skip]
    return draw.choice([train, ["data", "show", "set"], ["audit", "set", "--permutations", "9"]])
