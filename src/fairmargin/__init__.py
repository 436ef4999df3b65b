"""FairMargin trains models that stay right when the shortcut in the training data disappears."""

from typing import TYPE_CHECKING, Any

from fairmargin.version import __version__

if TYPE_CHECKING:
    from fairmargin.sklearn import FairMarginProjector

__all__ = ["FairMarginProjector", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "FairMarginProjector":  # only when asked for: it imports torch and scikit-learn
        from fairmargin.sklearn import FairMarginProjector

        return FairMarginProjector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
