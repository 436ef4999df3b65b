"""The tasks of `fairmargin suite`: small datasets with a known shortcut, made without a download.

One file for each kind of shortcut; `compose` has what they share: how a pool of samples is divided,
how strongly the bias is tied to the class, and who may see which bias labels.
"""

from collections.abc import Callable

from fairmargin.data.datasets.suite import (
    absent,
    backgrounds,
    brightness,
    colors,
    continuous,
    control,
    corners,
    corruptions,
    embeddings,
    held_out,
    several,
)
from fairmargin.data.split import Data

# By the name of the dataset. Those in HELD_OUT read files of the data root.
SUITE: dict[str, Callable[..., Data]] = {
    "suite-colors": colors.build,
    "suite-corners": corners.build,
    "suite-brightness": brightness.build,
    "suite-corruptions": corruptions.build,
    "suite-backgrounds": backgrounds.build,
    "suite-several": several.build,
    "suite-continuous": continuous.build,
    "suite-absent": absent.build,
    "suite-control": control.build,
    "suite-embeddings": embeddings.build,
}
HELD_OUT: dict[str, Callable[..., Data]] = {
    "suite-vehicles": held_out.build_vehicles,
    "suite-clothes": held_out.build_clothes,
}

__all__ = ["HELD_OUT", "SUITE"]
