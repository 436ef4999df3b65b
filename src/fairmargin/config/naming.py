"""What runs on a dataset are called: folders, tables and trackers show this name."""

from pathlib import Path
from typing import TYPE_CHECKING

from fairmargin.data import OWN
from fairmargin.data.webdataset import is_pattern, plain_name

if TYPE_CHECKING:
    from fairmargin.config.schema import Config

# Folders inside runs/ that belong to commands.
TAKEN = ("scores", "tune")


def dataset_name(config: "Config") -> str:
    """Return the name of a dataset; people's own data are called as their table or folder.

    Args:
        config: of a run.
    """
    name, root = config.data.name, config.data.root
    if name in OWN and root is not None:
        place = Path(root)
        own = place.resolve().name if place.is_dir() or not place.stem else place.stem
        if is_pattern(place):
            own = plain_name(place)
        name = f"{own}-images" if own in TAKEN else own or name
    return name.replace(":", "-")
