"""Which methods can be trained on vectors: embeddings that another model has made."""

from fairmargin.methods.base import Unsuited
from fairmargin.methods.catalog import card_of

# These look at textures, patches or styles of images.
OF_IMAGES = ("sin", "sin-proxy", "rebias", "hex", "rubi", "learned-mixin", "learned-mixin+h")


def check_takes_vectors(name: str, *, second: bool = False) -> None:
    """Refuse a method that works on images alone, or compares augmented views of them.

    Args:
        name: of the method.
        second: whether it was asked for a second stream of augmented batches.
    """
    if name in OF_IMAGES:
        raise Unsuited(
            f"{name} looks at textures or patches of images and these samples are vectors; "
            "choose another method, such as ce+fairkl or group-dro"
        )
    if second or card_of(name.removesuffix("+fairkl")).needs == "two views":
        asked = " with method.second" if second else ""
        raise Unsuited(
            f"{name}{asked} compares augmented views of an image and vectors have no augmentation; "
            "choose a method that compares labels, such as supcon or eps-supinfonce+fairkl"
        )
