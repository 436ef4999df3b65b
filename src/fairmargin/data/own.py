"""People's own datasets in Python: anything with a length, of (image, label[, bias])."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fairmargin.batch import DataInfo
from fairmargin.data.augment import augmented
from fairmargin.data.bias import count_cells, split_off
from fairmargin.data.split import ArraySplit, Data
from fairmargin.data.views import (
    IMAGENET,
    Channels,
    Flip,
    PaddedCrop,
    Randomness,
    Step,
    Views,
)

# Bytes of pixels; smaller datasets are read once and kept in memory.
MEMORY_LIMIT = 512 * 2**20
# Share of every (label, bias) cell that is held out where there is no validation set.
HELD_OUT = 0.1
UNKNOWN = -1


@dataclass(frozen=True)
class FloatViews(Views):
    """Views of float images, which their dataset has prepared: they are not normalized."""

    def __call__(self, images: Tensor, generator: Randomness = None) -> Tensor:
        """Turn float32 [n, C, H, W] into the same, or into [n, number, C, H, W]."""
        if self.number == 1:
            return self._view(images, generator)
        return torch.stack([self._view(images, generator) for _ in range(self.number)], 1)


@dataclass(frozen=True)
class DatasetSplit:
    """Samples of a dataset, read when they are asked for.

    Args:
        dataset: of (image, label[, bias]).
        index: [N] positions in it.
        labels: int64 [N].
        bias: int64 [N], or None.
        name: for messages.
    """

    dataset: Any
    index: Tensor
    labels: Tensor
    bias: Tensor | None = None
    name: str = "the dataset"

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, index: Tensor) -> Tensor:
        """Read these samples, [n, C, H, W]."""
        positions = self.index[index].tolist()
        return torch.stack([self._image(i) for i in positions])

    def _image(self, i: int) -> Tensor:
        return as_tensor(self.dataset[i][0], f"sample {i} of {self.name}")

    def subset(self, index: Tensor) -> "DatasetSplit":
        """Return the samples at these positions, in this order.

        Args:
            index: int64 [n].
        """
        bias = None if self.bias is None else self.bias[index]
        return replace(self, index=self.index[index], labels=self.labels[index], bias=bias)


def from_datasets(
    train: Any,
    valid: Any,
    test: Any,
    *,
    class_names: Sequence[str] | None = None,
    bias_names: Sequence[str] | None = None,
    augment: Sequence[Step] | str | None = None,
    name: str = "own",
    seed: int = 0,
    memory_limit: int = MEMORY_LIMIT,
) -> Data:
    """Make a dataset of three datasets of (image, label) or (image, label, bias).

    An image is a uint8 or float tensor [C, H, W], a uint8 array [H, W] or [H, W, C], or a Pillow
    image; all have one size. uint8 images are normalized, and in training shifted and mirrored, as
    those of a folder are; float images are taken as they are. Labels and bias values are whole
    numbers from 0; a bias of None or −1 is unknown. An item must be the same each time it is read.

    Args:
        train: with `__len__` and `__getitem__`.
        valid: likewise; None holds out a tenth of every (label, bias) cell of `train`.
        test: likewise.
        class_names: one for each label; the numbers by default.
        bias_names: one for each bias value; the numbers by default.
        augment: for training, instead of "crop-flip": a name of `data.augment`, or steps of
            `fairmargin.data.views`.
        name: of the dataset.
        seed: decides which samples are held out.
        memory_limit: bytes; larger datasets are read anew in every epoch.
    """
    first: tuple[list[int], torch.dtype, str] | None = None
    splits: dict[str, ArraySplit | DatasetSplit] = {}
    for where, dataset in (("train", train), ("valid", valid), ("test", test)):
        if dataset is None and where == "valid":
            continue
        splits[where], first = _read(dataset, where, first, memory_limit)
    assert first is not None  # train was read
    notes = {"resize": "crop", "valid": "as given", "test": "as given"}
    if valid is None:
        whole = splits["train"]
        kept, held_out = split_off(whole.labels, whole.bias, HELD_OUT, seed=seed)
        splits["train"], splits["valid"] = whole.subset(kept), whole.subset(held_out)
        notes["valid"] = f"{HELD_OUT:g} of every (label, bias) cell of train, seed {seed}"
    everyone = list(splits.values())
    classes = _names(class_names, [split.labels for split in everyone], "class_names", "label")
    known = [split.bias for split in everyone if split.bias is not None]
    biases: tuple[str, ...] = ()
    if known:
        biases = _names(bias_names, known, "bias_names", "bias")
    elif bias_names is not None:
        raise ValueError(
            "bias_names was given and no sample has a bias; give samples (image, label, bias), "
            "or leave it out"
        )
    shape, dtype, _ = first
    channels, height, width = shape
    info = DataInfo(
        name=name,
        class_names=classes,
        bias_names=biases,
        image_shape=(channels, height, width),
        counts=count_cells(splits["train"].labels, splits["train"].bias, len(classes), len(biases)),
        notes=notes,
    )
    train_views, eval_views = _views(dtype, channels, height, width, augment)
    return Data(splits["train"], splits["valid"], splits["test"], info, train_views, eval_views)


def _views(
    dtype: torch.dtype,
    channels: int,
    height: int,
    width: int,
    augment: Sequence[Step] | str | None,
) -> tuple[Views, Views]:
    """(views for training, views for evaluation)."""
    named = augment if isinstance(augment, str) else None
    given = None if augment is None or isinstance(augment, str) else tuple(augment)
    if named is not None and (dtype != torch.uint8 or height != width):
        raise ValueError(
            f"augment={named!r} is for square uint8 images; give steps of fairmargin.data.views"
        )
    if dtype != torch.uint8:
        as_is: tuple[Channels, Channels] = ((0.0,) * channels, (1.0,) * channels)
        return FloatViews(given or (), *as_is), FloatViews((), *as_is)
    mean, std = IMAGENET
    if channels != 3:
        # Of grey images, and of channels that are no colours: the means over the colours.
        mean, std = ((sum(values) / 3,) * channels for values in IMAGENET)
    if named is not None:
        return augmented(named, height, mean, std), Views((), mean, std)
    steps: tuple[Step, ...] = (Flip(),)
    if height == width:
        steps = (PaddedCrop(height, height // 8), Flip())
    if given is not None:
        steps = given
    return Views(steps, mean, std), Views((), mean, std)


def _read(
    dataset: Any,
    where: str,
    first: tuple[list[int], torch.dtype, str] | None,
    memory_limit: int,
) -> tuple[ArraySplit | DatasetSplit, tuple[list[int], torch.dtype, str]]:
    """Read a dataset once; also return shape, dtype and place of the first sample of all."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ValueError(
            f"{where} is a {type(dataset).__name__}, which has no __len__ and __getitem__; "
            "give a torch Dataset or a sequence of (image, label) or (image, label, bias)"
        )
    total = len(dataset)
    if where == "train" and not total:
        raise ValueError("train has no samples; give some")
    labels, bias = [], []
    pixels: Tensor | None = None
    for i in range(total):
        place = f"sample {i} of {where}"
        image, label, value = _parts(dataset[i], place)
        tensor = as_tensor(image, place)
        labels.append(_whole(label, place, "label", least=0))
        bias.append(UNKNOWN if value is None else _whole(value, place, "bias", least=UNKNOWN))
        first = first or (list(tensor.shape), tensor.dtype, place)
        _check_alike(tensor, place, first)
        if i == 0 and total * math.prod(tensor.shape) * tensor.element_size() <= memory_limit:
            pixels = torch.empty((total, *tensor.shape), dtype=tensor.dtype)
        if pixels is not None:
            pixels[i] = tensor
    assert first is not None
    if total == 0:
        pixels = torch.empty((0, *first[0]), dtype=first[1])
    y = torch.tensor(labels, dtype=torch.long)
    b = torch.tensor(bias, dtype=torch.long)
    known = b if bool((b >= 0).any()) else None
    if pixels is not None:
        return ArraySplit(pixels, y, known), first
    return DatasetSplit(dataset, torch.arange(total), y, known, where), first


def _parts(sample: Any, place: str) -> tuple[Any, Any, Any]:
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample[0], sample[1], None
    if isinstance(sample, tuple | list) and len(sample) == 3:
        return sample[0], sample[1], sample[2]
    length = f" of {len(sample)}" if hasattr(sample, "__len__") else ""
    raise ValueError(
        f"{place} is a {type(sample).__name__}{length}; "
        "each must be (image, label) or (image, label, bias)"
    )


def as_tensor(image: Any, place: str) -> Tensor:
    """Return an image as a tensor [C, H, W], uint8 or float32.

    Args:
        image: a uint8 or float tensor [C, H, W], a uint8 array [H, W] or [H, W, C], or a Pillow
            image.
        place: which sample it is, for messages.
    """
    if isinstance(image, Image.Image):
        image = np.array(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3):
            raise ValueError(
                f"{place}: an array must be uint8 [H, W] or [H, W, C]; got {image.dtype} "
                f"{list(image.shape)}. Give float images as tensors [C, H, W]"
            )
        planes = image[..., None] if image.ndim == 2 else image
        return torch.from_numpy(np.ascontiguousarray(planes.transpose(2, 0, 1)))
    if not isinstance(image, Tensor):
        raise ValueError(
            f"{place}: an image must be a tensor, a NumPy array or a Pillow image; "
            f"got {type(image).__name__}"
        )
    if image.ndim != 3 or not (image.dtype == torch.uint8 or image.is_floating_point()):
        raise ValueError(
            f"{place}: an image tensor must be uint8 or float [C, H, W]; "
            f"got {str(image.dtype).removeprefix('torch.')} {list(image.shape)}"
        )
    image = image.detach().cpu()
    if image.dtype == torch.uint8:
        return image
    if not bool(image.isfinite().all()):
        raise ValueError(f"{place} has values that are not finite; repair or remove it")
    return image.float()


def _check_alike(tensor: Tensor, place: str, first: tuple[list[int], torch.dtype, str]) -> None:
    shape, dtype, at = first
    if list(tensor.shape) != shape:
        raise ValueError(
            f"{place} is {list(tensor.shape)} and {at} is {shape} ([C, H, W]); all images must "
            "have one size: resize them in the dataset"
        )
    if tensor.dtype != dtype:
        kinds = [str(kind).removeprefix("torch.") for kind in (tensor.dtype, dtype)]
        raise ValueError(
            f"{place} is {kinds[0]} and {at} is {kinds[1]}; give all images in one type"
        )


def _whole(value: Any, place: str, what: str, *, least: int) -> int:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, np.ndarray | np.generic) and value.size == 1:
        value = value.item()
    if isinstance(value, bool):
        value = int(value)
    if not isinstance(value, int) or value < least:
        raise ValueError(
            f"{place} has the {what} {value!r}; it must be a whole number from {least} up"
            + (" (−1: unknown)" if least == UNKNOWN else "")
        )
    return value


def _names(
    given: Sequence[str] | None, values: Sequence[Tensor], key: str, what: str
) -> tuple[str, ...]:
    number = 1 + max(int(v.max()) for v in values if len(v))
    if given is None:
        return tuple(str(k) for k in range(number))
    if isinstance(given, str) or len(given) < number:
        raise ValueError(
            f"{key} has {1 if isinstance(given, str) else len(given)} names and there is a {what} "
            f"{number - 1}; give one for each, from 0 up"
        )
    return tuple(str(name) for name in given)


def for_display(images: Tensor) -> Tensor:
    """uint8 [n, C, H, W] for a page: float images are spread over 0 … 255, uint8 ones stay."""
    if images.dtype == torch.uint8 or not len(images):
        return images.byte()
    low, high = images.min(), images.max()
    return ((images - low) / (high - low).clamp_min(1e-12) * 255).round().byte()
