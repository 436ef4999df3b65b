"""ImageNet-style folders, `train/<wnid>/*` and `val/<wnid>/*`.

They give all classes, the nine of ReBias, or the hundred of CMC. These images have no bias labels.
The nine-class validation set has texture clusters instead, over which the "unbiased" accuracy
averages (Bahng et al., ICML 2020).

Note: training images are decoded to a square of 256 (shorter side resized, centre cropped) and
cropped at random from that, on the batch; the papers crop from the original file.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.data.bias import count_cells
from fairmargin.data.geometry import Geometry, image_files
from fairmargin.data.sources import MissingData
from fairmargin.data.split import Data, FileSplit
from fairmargin.data.views import IMAGENET, Views, plain, resized_crop_flip

# The subset of ReBias. It is neither the "ImageNet-9" of the backgrounds challenge nor "restricted
# ImageNet".
NINE = {
    "dog": ("n02085620", "n02099601", "n02106550", "n02106662", "n02110958"),
    "cat": ("n02123045", "n02123159", "n02123394", "n02123597", "n02124075"),
    "frog": ("n01641577", "n01644373", "n01644900"),
    "turtle": ("n01664065", "n01665541", "n01667114", "n01667778", "n01669191"),
    "bird": ("n01819313", "n01820546", "n01833805", "n01843383", "n01847000"),
    "monkey": ("n02486410", "n02487347", "n02488291", "n02488702", "n02492035"),
    "fish": ("n02607072", "n02640242", "n02641379", "n02643566", "n02655020"),
    "crab": ("n01978287", "n01978455", "n01980166", "n01981276"),
    "insect": ("n02174001", "n02177972", "n02190166", "n02206856", "n02219486"),
}
HUNDRED = (
    "n01558993", "n01692333", "n01729322", "n01735189", "n01749939", "n01773797",
    "n01820546", "n01855672", "n01978455", "n01980166", "n01983481", "n02009229",
    "n02018207", "n02085620", "n02086240", "n02086910", "n02087046", "n02089867",
    "n02089973", "n02090622", "n02091831", "n02093428", "n02099849", "n02100583",
    "n02104029", "n02105505", "n02106550", "n02107142", "n02108089", "n02109047",
    "n02113799", "n02113978", "n02114855", "n02116738", "n02119022", "n02123045",
    "n02138441", "n02172182", "n02231487", "n02259212", "n02326432", "n02396427",
    "n02483362", "n02488291", "n02701002", "n02788148", "n02804414", "n02859443",
    "n02869837", "n02877765", "n02974003", "n03017168", "n03032252", "n03062245",
    "n03085013", "n03259280", "n03379051", "n03424325", "n03492542", "n03494278",
    "n03530642", "n03584829", "n03594734", "n03637318", "n03642806", "n03764736",
    "n03775546", "n03777754", "n03785016", "n03787032", "n03794056", "n03837869",
    "n03891251", "n03903868", "n03930630", "n03947888", "n04026417", "n04067472",
    "n04099969", "n04111531", "n04127249", "n04136333", "n04229816", "n04238763",
    "n04336792", "n04418357", "n04429376", "n04435653", "n04485082", "n04493381",
    "n04517823", "n04589890", "n04592741", "n07714571", "n07715103", "n07753275",
    "n07831146", "n07836838", "n13037406", "n13040303",
)  # fmt: skip
ViewsName = Literal["crop-flip", "resized-crop-flip", "jitter", "supcon"]
# (smallest share of the image in a random crop, jitter and grey, views of each image)
VIEWS: dict[ViewsName, tuple[float, bool, int]] = {
    "crop-flip": (0.08, False, 1),
    "resized-crop-flip": (0.2, False, 1),
    "jitter": (0.2, True, 1),
    "supcon": (0.2, True, 2),
}
CSV_HEADER = ["path", "category", "cluster1", "cluster2", "cluster3"]
# 42 wnids of 50 validation images.
CSV_ROWS = 2100


def build(
    root: Path,
    *,
    views: ViewsName = "crop-flip",
    size: int = 224,
    stylized: Path | None = None,
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build every class folder of `<root>/train` (or `<root>/imagenet/train`).

    The label is the rank of the folder's name.

    Args:
        views: "crop-flip" (one view, a crop of at least 8 %), "resized-crop-flip" (of at least
            20 %), "jitter" (the same with colour jitter and greyscale) or "supcon" (two of these).
        size: side of the network's input; images are resized to 8/7 of it before the evaluation's
            centre crop.
        stylized: a Stylized-ImageNet tree whose `train/<wnid>` images are added to the training
            set.
        valid_fraction: share of the training images of each class to hold out; `val/` is the test
            set.
        seed: of the validation split.
    """
    folder = _locate(root, "imagenet")
    folders = [entry.name for entry in (folder / "train").iterdir() if entry.is_dir()]
    wnids = sorted(name for name in folders if not name.startswith("."))
    settings = _Settings(views, size, stylized, valid_fraction, seed)
    return _build("imagenet", folder, _ranks(wnids), wnids, settings)


def build_9(
    root: Path,
    *,
    views: ViewsName = "jitter",
    size: int = 224,
    imagenet_a: Path | None = None,
    stylized: Path | None = None,
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build the 42 wnids of ReBias as nine classes. Other arguments as in `build`.

    Wnids that are absent are left out, so that partial copies work.

    Args:
        imagenet_a: a folder of `<wnid>/*.jpg`, which becomes the extra test "imagenet-a".
    """
    labels: dict[str, int] = {}
    for label, wnids in enumerate(NINE.values()):
        labels |= dict.fromkeys(wnids, label)
    folder = _locate(root, "imagenet9", "imagenet")
    settings = _Settings(views, size, stylized, valid_fraction, seed)
    data = _build("imagenet9", folder, labels, tuple(NINE), settings)
    if imagenet_a is None:
        return data
    # 21 of the 42 wnids are in ImageNet-A, none of a crab.
    adversarial, found = _scan(Path(imagenet_a), labels, _evaluation(size))
    info = replace(data.info, notes={**data.info.notes, "imagenet-a": found})
    return replace(data, info=info, extra_tests={"imagenet-a": adversarial})


def build_100(
    root: Path,
    *,
    views: ViewsName = "crop-flip",
    size: int = 224,
    stylized: Path | None = None,
    valid_fraction: float = 0.1,
    seed: int = 0,
) -> Data:
    """Build the hundred wnids of Contrastive Multiview Coding (Tian et al., ECCV 2020).

    Arguments as in `build`.
    """
    folder = _locate(root, "imagenet100", "imagenet")
    settings = _Settings(views, size, stylized, valid_fraction, seed)
    return _build("imagenet100", folder, _ranks(HUNDRED), HUNDRED, settings)


def texture_clusters(
    csv_path: Path, *, allow_partial: bool = False
) -> dict[str, tuple[int, int, int]]:
    """Read ReBias's texture clusters of the nine-class validation set.

    Args:
        csv_path: its `9class_imagenet_val.csv`.
        allow_partial: accept a table that lacks images.

    Returns:
        `<wnid>/<file>` → the image's cluster in each of the three clusterings.
    """
    if not csv_path.is_file():
        raise MissingData(
            f"no texture clusters at {csv_path}; "
            "expected clusters/9class_imagenet_val.csv of clovaai/rebias"
        )
    with csv_path.open(newline="") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    if header != CSV_HEADER:
        raise MissingData(
            f"{csv_path} begins with {','.join(header)!r}; expected {','.join(CSV_HEADER)!r}"
        )
    try:
        clusters = {path: (int(a), int(b), int(c)) for path, _, a, b, c in rows}
    except ValueError as error:
        raise MissingData(
            f"{csv_path} has a row that is not a path, a category and three numbers: {error}"
        ) from error
    if len(clusters) != len(rows) or (len(rows) != CSV_ROWS and not allow_partial):
        raise MissingData(
            f"{csv_path} has {len(rows)} rows of {len(clusters)} images; "
            f"expected {CSV_ROWS}, each once"
        )
    return clusters


def clusters_of(paths: Sequence[Path], clusters: dict[str, tuple[int, int, int]]) -> Tensor:
    """Look up the three cluster numbers [N, 3] of image files.

    Args:
        paths: found by their last two parts, `<wnid>/<file>`.
        clusters: as `texture_clusters` reads them.
    """
    keys = [f"{path.parent.name}/{path.name}" for path in paths]
    unknown = [key for key in keys if key not in clusters]
    if unknown:
        raise ValueError(
            f"{len(unknown)} of {len(keys)} images have no texture cluster, "
            f"the first is {unknown[0]}"
        )
    return torch.tensor([clusters[key] for key in keys])


def unbiased_accuracy(
    correct: Tensor, labels: Tensor, clusters: Tensor, min_cell: int = 10
) -> float:
    """Return the accuracy with equal weight for every (class, texture) cell, mean over clusterings.

    Args:
        correct: 0 or 1, [N].
        labels: [N].
        clusters: [N, J]; the UNB of Bahng et al. has J = 3.
        min_cell: leave out cells with fewer images.
    """
    values = []
    for cluster in clusters.unbind(1):
        cells = labels * (int(cluster.max()) + 1) + cluster
        total = cells.bincount()
        right = cells.bincount(weights=correct.double())
        large = total >= max(min_cell, 1)
        if not large.any():
            raise ValueError(
                f"no (class, texture) cell has {min_cell} images; "
                f"the largest has {int(total.max())}"
            )
        values.append((right[large] / total[large]).mean())
    return float(torch.stack(values).mean())


@dataclass(frozen=True)
class _Settings:
    views: ViewsName
    size: int
    stylized: Path | None
    valid_fraction: float
    seed: int


def _build(
    name: str,
    folder: Path,
    labels: dict[str, int],
    class_names: Sequence[str],
    settings: _Settings,
) -> Data:
    check_choice(settings.views, "views", VIEWS)
    size = settings.size
    evaluation = _evaluation(size)
    whole, found = _scan(folder / "train", labels, evaluation)
    test, found_test = _scan(folder / "val", labels, evaluation)
    train, valid = whole.hold_out(settings.valid_fraction, seed=settings.seed)
    notes = {"source": "ImageNet folders", "train and valid": found, "test": found_test}
    if settings.stylized is not None:
        place = Path(settings.stylized)
        if (place / "train").is_dir():
            place = place / "train"
        extra, notes["stylized"] = _scan(place, labels, evaluation)
        train = _join(train, _without_copies(extra, valid))
    train = train.to_crop_from(Geometry(evaluation.resize))
    counts = count_cells(train.labels, None, len(class_names), 0)
    info = DataInfo(name, tuple(class_names), (), (3, size, size), counts, notes)
    train_views = _train_views(settings.views, size)
    return Data(train, valid, test, info, train_views, plain(*IMAGENET))


def _ranks(wnids: Sequence[str]) -> dict[str, int]:
    return {wnid: label for label, wnid in enumerate(wnids)}


def _evaluation(size: int) -> Geometry:
    return Geometry(round(size * 256 / 224), crop=size)


def _train_views(views: ViewsName, size: int) -> Views:
    smallest, colour, number = VIEWS[views]
    return resized_crop_flip(
        size, (smallest, 1.0), *IMAGENET, jitter=colour, grey=colour, number=number
    )


def _locate(root: Path, *names: str) -> Path:
    places = [root, *(root / name for name in names)]
    for place in places:
        if (place / "train").is_dir() and (place / "val").is_dir():
            return place
    looked = ", ".join(map(str, places))
    raise MissingData(
        f"no ImageNet-style folder in any of {looked}; "
        "expected train/<wnid>/* and val/<wnid>/* inside"
    )


def _scan(
    folder: Path, labels: dict[str, int], decode: Callable[[Path], Tensor]
) -> tuple[FileSplit, str]:
    """Find the images of the wanted wnids, in sorted order, and say what was found."""
    present = [wnid for wnid in sorted(labels) if (folder / wnid).is_dir()]
    by_wnid = {wnid: image_files(folder / wnid) for wnid in present}
    paths = list(chain.from_iterable(by_wnid.values()))
    if not paths:
        hint = ""
        if folder.is_dir() and image_files(folder):
            hint = (
                "; its images are in no class folders: "
                "sort them into wnid folders with the devkit's ground truth"
            )
        raise MissingData(
            f"no images of the {len(labels)} wanted classes under {folder}/<wnid>/ "
            f"(such as n01440764){hint}"
        )
    of_each = torch.tensor([labels[wnid] for wnid in by_wnid])
    repeats = torch.tensor([len(files) for files in by_wnid.values()])
    filled = sum(map(bool, by_wnid.values()))
    found = f"{len(paths)} images of {filled} of {len(labels)} wnids"
    return FileSplit(paths, of_each.repeat_interleave(repeats), decode), found


def _without_copies(stylized: FileSplit, valid: FileSplit) -> FileSplit:
    """Leave out stylized copies of validation images.

    They are named `<wnid>/<stem>` or `<wnid>/<stem>-stylized-<painting>`.
    """
    held_out = {(path.parent.name, path.stem) for path in valid.paths}
    keys = [(path.parent.name, path.stem.split("-stylized-")[0]) for path in stylized.paths]
    kept = [i for i, key in enumerate(keys) if key not in held_out]
    return stylized.subset(torch.tensor(kept, dtype=torch.long))


def _join(first: FileSplit, second: FileSplit) -> FileSplit:
    paths = [*first.paths, *second.paths]
    return FileSplit(paths, torch.cat([first.labels, second.labels]), first.decode)
