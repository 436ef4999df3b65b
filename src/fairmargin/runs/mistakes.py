"""One picture of a run's worst mistakes, for the tools of `train.trackers`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fairmargin.batch import DataInfo
from fairmargin.data import Data
from fairmargin.data.own import for_display
from fairmargin.evaluate import Outputs

# Pictures beside each other.
COLUMNS = 4
# Side of a picture, space around it, and height of a line of text, in pixels.
SIDE = 128
GAP = 8
LINE = 14
# Letters that fit under a picture.
LETTERS = 20
PAPER, INK = (255, 255, 255), (20, 20, 20)


@dataclass(frozen=True)
class Picture:
    """A picture for a tracker.

    Args:
        pixels: uint8 [height, width, 3].
        caption: what it shows; empty for nothing.
    """

    pixels: NDArray[np.uint8]
    caption: str = ""


def worst_mistakes(outputs: Outputs, data: Data, most: int) -> Picture | None:
    """Return a grid of wrong test images, the surest first; None if there are none to show.

    Under each image stand its class, the answer with its probability, and its bias.

    Args:
        outputs: what the method says about the test set.
        data: the dataset.
        most: how many images at most.
    """
    if len(data.info.image_shape) != 3 or most < 1:
        return None
    confidence, predicted = outputs.logits.float().softmax(1).max(1)
    wrong = (predicted != outputs.labels).nonzero()[:, 0]
    if not len(wrong):
        return None
    surest = confidence[wrong].argsort(descending=True, stable=True)
    shown = wrong[surest][:most]
    captions = [_caption(outputs, data.info, int(i), float(confidence[i])) for i in shown]
    tiles = [_tile(one) for one in for_display(data.test.images(shown)).numpy()]
    numbered = [f"{k}. {', '.join(lines)}" for k, lines in enumerate(captions, 1)]
    lead = f"{len(shown)} of {len(wrong)} wrong of {len(outputs.labels)} test images"
    return Picture(_grid(tiles, captions), "; ".join([lead, *numbered]))


def _caption(outputs: Outputs, info: DataInfo, at: int, confidence: float) -> list[str]:
    """Return the lines under an image: its class, the answer, its bias if that is known."""
    answer = int(outputs.logits[at].argmax())
    lines = [
        f"is {info.class_names[int(outputs.labels[at])]}",
        f"{confidence:.0%} sure: {info.class_names[answer]}",
    ]
    if outputs.bias is not None and info.bias_names and int(outputs.bias[at]) >= 0:
        lines.append(f"bias {info.bias_names[int(outputs.bias[at])]}")
    return lines


def _tile(image: NDArray[Any]) -> Image.Image:
    """Return an image [C, H, W] in RGB, as large as fits into a square; small pixels stay sharp."""
    channels = image[:3] if len(image) >= 3 else image[:1].repeat(3, axis=0)
    picture = Image.fromarray(np.ascontiguousarray(channels.transpose(1, 2, 0)))
    scale = SIDE / max(picture.size)
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    way = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC
    return picture.resize(size, way)


def _grid(tiles: Sequence[Image.Image], captions: Sequence[Sequence[str]]) -> NDArray[np.uint8]:
    """Return tiles in rows, with their captions drawn below them."""
    lines = max(len(caption) for caption in captions)
    wide, high = SIDE + 2 * GAP, SIDE + 2 * GAP + lines * LINE
    columns = min(COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    page = Image.new("RGB", (columns * wide, rows * high), PAPER)
    draw = ImageDraw.Draw(page)
    font = _font()
    for k, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        left, top = k % columns * wide + GAP, k // columns * high + GAP
        page.paste(tile, (left, top + SIDE - tile.height))
        for number, text in enumerate(caption):
            place = (left, top + SIDE + 2 + number * LINE)
            draw.text(place, _short(text), fill=INK, font=font)
    return np.array(page)


def _font() -> ImageFont.FreeTypeFont:
    # Here, because only a run that ends needs it. Its font has more letters than Pillow's own.
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(file), 11)


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
