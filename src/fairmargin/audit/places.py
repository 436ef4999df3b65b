"""Where `fairmargin audit` writes if it is not told: audit/NAME in the working folder."""

import os
from pathlib import Path

from fairmargin.data.webdataset import is_pattern, plain_name

FOLDER = Path("audit")


def folder_of_path(path: Path) -> Path:
    """Return where an audit of a run, a table or a folder of images goes.

    Its name is the whole path in one word, so that runs of one name keep their pages apart. A path
    inside the working folder starts there.

    Args:
        path: of what is audited.
    """
    path, here = Path(os.path.abspath(path)), Path.cwd()
    if is_pattern(path):
        path = path.with_name(plain_name(path))
    elif path.is_file():
        path = path.with_suffix("")
    inside = path.relative_to(here if path.is_relative_to(here) else path.anchor)
    return FOLDER / ("-".join(inside.parts) or path.name)


def folder_of_dataset(name: str, root: Path | None, inject: str | None = None) -> Path:
    """Return where an audit of a dataset goes.

    Args:
        name: of the dataset.
        root: the table or folder of people's own images; None for a built-in dataset.
        inject: shortcut that is planted, such as "colour:0.95".
    """
    folder = FOLDER / name.replace(":", "-") if root is None else folder_of_path(root)
    return folder.with_name(f"{folder.name}-{inject.replace(':', '-')}") if inject else folder
