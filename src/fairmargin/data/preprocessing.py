"""From any picture or vector to the numbers that a network was trained on.

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
class Vector:
    """Takes the place of a decoder where samples are vectors: checks their length.

    Args:
        length: numbers of a vector.
    """

    length: int

    @property
    def shape(self) -> tuple[int]:
        """Shape (D,) of every vector."""
        return (self.length,)

    def fit(self, vector: object) -> Tensor:
        """float32 [D] from a NumPy array, a tensor or a list of numbers."""
        if isinstance(vector, str | Path | Image.Image):
            raise TypeError(
                f"this model takes vectors of {self.length} numbers, not images; got {vector!r}. "
                "Give the embeddings [N, D] of the model that made its training data"
            )
        numbers = vector.detach().cpu().numpy() if isinstance(vector, Tensor) else vector
        x = np.asarray(numbers)
        if x.shape != self.shape or x.dtype.kind not in "fiu":
            raise ValueError(
                f"this model takes vectors of {self.length} numbers, [N, {self.length}] of them; "
                f"one is {x.dtype} {list(x.shape)}"
            )
        return torch.from_numpy(x.astype(np.float32))


@dataclass(frozen=True)
class Preprocessing:
    """How evaluation prepares an image: decode to one size, then normalize. Vectors: standardize.

    Args:
        decoder: brings a picture of any size to uint8 [3, H, W].
        mean: of each channel, for values in [0, 1]; of vectors, of each column.
        std: of each channel or column, likewise.
        as_given: the network was trained on float images that their dataset prepared in ways of its
            own; only such tensors can be taken.
    """

    decoder: Decoder | Geometry | Vector
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
        if isinstance(self.decoder, Vector):
            raise ValueError("vectors have no height and width; see Preprocessing.decoder.length")
        _, height, width = self.decoder.shape
        return height, width

    @property
    def takes_vectors(self) -> bool:
        """Whether samples are vectors, not pictures."""
        return isinstance(self.decoder, Vector)

    def pixels(self, picture: Picture) -> Tensor:
        """uint8 [3, H, W] from a file, a Pillow image, or an array; floats if they are `as_given`.

        Args:
            picture: a path; a Pillow image; a uint8 array [H, W] or [H, W, 3 or 4]; or a uint8
                tensor [3, H, W]. For a network of other channels than colours, or trained on float
                images: a tensor as its dataset gave them. Where the network takes vectors: [D]
                numbers.
        """
        if isinstance(self.decoder, Vector):
            return self.decoder.fit(picture)
        if self.as_given or self.channels not in (1, 3):
            return self._exactly(picture)
        if self.channels == 1:
            return self._grey(picture)
        if isinstance(picture, str | Path):
            return self.decoder(_local(picture))
        return self.decoder.fit(_as_image(picture))

    def normalize(self, pixels: Tensor) -> Tensor:
        """float32 [N, 3, H, W] from uint8 [N, 3, H, W]; [N, D] from vectors [N, D]."""
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
        assert not isinstance(self.decoder, Vector)
        if isinstance(picture, str | Path):
            colours = self.decoder(_local(picture))
        else:
            colours = self.decoder.fit(_as_image(picture))
        weights = torch.tensor([19595, 38470, 7471]).view(3, 1, 1)  # 2¹⁶ together
        grey = (colours.int() * weights).sum(0, keepdim=True) + (1 << 15)
        return (grey >> 16).to(torch.uint8)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same preprocessing back."""
        kinds = {Decoder: "decoder", Geometry: "geometry", Vector: "vector"}
        kind = kinds[type(self.decoder)]
        decoder = asdict(self.decoder)
        # A limit of one run is none for pictures that others give.
        decoder.pop("largest", None)
        values = {"mean": list(self.mean), "std": list(self.std), kind: decoder}
        return {**values, "as_given": True} if self.as_given else values

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Preprocessing":
        """Read what `as_dict` wrote."""
        decoder: Decoder | Geometry | Vector
        if "vector" in values:
            decoder = Vector(**values["vector"])
        elif "geometry" in values:
            decoder = Geometry(**values["geometry"])
        else:
            given = dict(values["decoder"])
            # A run folder raises no limit.
            given.pop("largest", None)
            if isinstance(given["size"], list):
                given["size"] = tuple(given["size"])
            decoder = Decoder(**given)
        as_given = bool(values.get("as_given", False))
        return Preprocessing(decoder, tuple(values["mean"]), tuple(values["std"]), as_given)


def preprocessing_of(data: Data) -> Preprocessing:
    """The preprocessing of a dataset's test images."""
    views = data.eval_views
    if data.info.has_vectors:
        return Preprocessing(Vector(data.info.image_shape[0]), views.mean, views.std)
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
