"""From any picture to the pixels and numbers that a network was trained on.

A run writes its preprocessing into its folder, so that evaluation, prediction and export prepare
images in the same way, without the dataset.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fairmargin.data.decode import Decoder, Mode
from fairmargin.data.geometry import Geometry
from fairmargin.data.own import FloatViews, as_tensor
from fairmargin.data.split import Data, FileSplit, as_evaluated
from fairmargin.data.views import Channels, plain

Picture = str | Path | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class Preprocessing:
    """How evaluation prepares an image: decode to one size, then normalize.

    Args:
        decoder: brings a picture of any size to uint8 [3, H, W].
        mean: of each channel, for values in [0, 1].
        std: of each channel, likewise.
        as_given: the network was trained on float images that their dataset prepared in ways of its
            own; only such tensors can be taken.
    """

    decoder: Decoder | Geometry
    mean: Channels
    std: Channels
    as_given: bool = False

    @property
    def channels(self) -> int:
        """Number of channels of what the network sees."""
        return len(self.mean)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of what the network sees."""
        _, height, width = self.decoder.shape
        return height, width

    def pixels(self, picture: Picture) -> Tensor:
        """uint8 [3, H, W] from a file, a Pillow image, or an array; floats if they are `as_given`.

        Args:
            picture: a path; a Pillow image; a uint8 array [H, W] or [H, W, 3 or 4]; or a uint8
                tensor [3, H, W]. For a network of other channels than colours, or trained on float
                images: a tensor as its dataset gave them.
        """
        if self.as_given or self.channels not in (1, 3):
            return self._exactly(picture)
        if self.channels == 1:
            return self._grey(picture)
        if isinstance(picture, str | Path):
            return self.decoder(_local(picture))
        return self.decoder.fit(_as_image(picture))

    def normalize(self, pixels: Tensor) -> Tensor:
        """float32 [N, 3, H, W] from uint8 [N, 3, H, W]."""
        if self.as_given:
            raise TypeError(
                "this model was trained on float images that its dataset prepared; give floats, "
                "prepared in the same way"
            )
        return plain(self.mean, self.std)(pixels)

    def _exactly(self, picture: Picture) -> Tensor:
        """A tensor as the dataset gave them, of the network's own size."""
        dtype = "float" if self.as_given else "uint8"
        shape = [self.channels, *self.size]
        wanted = f"this model takes {dtype} tensors {shape}, as its dataset gave them"
        if not isinstance(picture, Tensor):
            raise TypeError(f"{wanted}; got {type(picture).__name__}")
        image = as_tensor(picture, "this image")
        if list(image.shape) != shape or (image.dtype == torch.uint8) == self.as_given:
            given = str(image.dtype).removeprefix("torch.")
            raise ValueError(f"{wanted}; got {given} {list(image.shape)}")
        return image

    def _grey(self, picture: Picture) -> Tensor:
        """uint8 [1, H, W]; colours become grey as Pillow makes them."""
        if isinstance(picture, Tensor) and picture.ndim == 3 and len(picture) == 1:
            picture = picture.expand(3, -1, -1)
        if isinstance(picture, str | Path):
            colours = self.decoder(_local(picture))
        else:
            colours = self.decoder.fit(_as_image(picture))
        weights = torch.tensor([19595, 38470, 7471]).view(3, 1, 1)  # 2¹⁶ together
        grey = (colours.int() * weights).sum(0, keepdim=True) + (1 << 15)
        return (grey >> 16).to(torch.uint8)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same preprocessing back."""
        kind = "decoder" if isinstance(self.decoder, Decoder) else "geometry"
        values = {"mean": list(self.mean), "std": list(self.std), kind: asdict(self.decoder)}
        return {**values, "as_given": True} if self.as_given else values

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Preprocessing":
        """Read what `as_dict` wrote."""
        decoder: Decoder | Geometry
        if "geometry" in values:
            decoder = Geometry(**values["geometry"])
        else:
            given = dict(values["decoder"])
            if isinstance(given["size"], list):
                given["size"] = tuple(given["size"])
            decoder = Decoder(**given)
        as_given = bool(values.get("as_given", False))
        return Preprocessing(decoder, tuple(values["mean"]), tuple(values["std"]), as_given)


def preprocessing_of(data: Data) -> Preprocessing:
    """The preprocessing of a dataset's test images."""
    views = data.eval_views
    split = as_evaluated(data.test)
    if isinstance(split, FileSplit) and isinstance(split.decode, Decoder | Geometry):
        return Preprocessing(split.decode, views.mean, views.std)
    # Images in memory have their size already; other pictures are fitted as the dataset's were.
    _, height, width = data.info.image_shape
    mode: Mode = "crop"
    for known in get_args(Mode):
        if data.info.notes.get("resize") == known:
            mode = known
    as_given = isinstance(views, FloatViews)
    return Preprocessing(Decoder((height, width), mode), views.mean, views.std, as_given)


def _local(path: str | Path) -> Path:
    if isinstance(path, str) and "://" in path:
        raise ValueError(f"{path} is a URL and images are read from files; download it first")
    return Path(path)


def _as_image(picture: Image.Image | np.ndarray | Tensor) -> Image.Image:
    if isinstance(picture, Image.Image):
        return picture
    if isinstance(picture, Tensor):
        if picture.ndim != 3 or picture.shape[0] != 3 or picture.dtype != torch.uint8:
            raise ValueError(
                "an image tensor must be uint8 [3, H, W]; "
                f"got {picture.dtype} {list(picture.shape)}"
            )
        return Image.fromarray(picture.permute(1, 2, 0).cpu().numpy())
    if not isinstance(picture, np.ndarray):
        raise TypeError(
            "an image must be a path, a Pillow image, a NumPy array or a tensor; "
            f"got {type(picture).__name__}"
        )
    channels = picture.shape[2] if picture.ndim == 3 else 1
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3) or channels not in (1, 3, 4):
        raise ValueError(
            "an image array must be uint8 [H, W] or [H, W, 3 or 4]; "
            f"got {picture.dtype} {list(picture.shape)}"
        )
    return Image.fromarray(picture.squeeze(2) if channels == 1 and picture.ndim == 3 else picture)
