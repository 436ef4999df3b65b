"""Images inside a page."""

from base64 import b64encode
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Pixels. Larger images are reduced to this; smaller ones are enlarged by the browser.
THUMBNAIL = 96


def picture(pixels: NDArray[np.uint8]) -> str:
    """Return a PNG data URI of an image [C, H, W]; photographs are reduced, also to 256 colours.

    Args:
        pixels: of any number of channels.
    """
    channels = pixels.shape[0]
    if channels == 3:
        image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    else:
        # A grey image, or a stack of channels that is no picture: show the mean.
        image = Image.fromarray(pixels.mean(axis=0).round().astype(np.uint8))
    if max(image.size) > THUMBNAIL:
        image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
        if channels == 3:
            image = image.quantize(256)
    stream = BytesIO()
    image.save(stream, format="PNG", optimize=True)
    return "data:image/png;base64," + b64encode(stream.getvalue()).decode()
