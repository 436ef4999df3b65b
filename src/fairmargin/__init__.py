"""FairMargin trains models that stay right when the shortcut in the training data disappears."""

from fairmargin.version import __version__

__all__ = ["__version__"]
