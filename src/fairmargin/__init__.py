"""FairMargin trains models that stay right when the shortcut in the training data disappears.

    import fairmargin as fm

    loss = fm.losses.eps_supinfonce(z, y, epsilon=0.25) + fm.losses.fairkl(z, y, b)

Everything below is imported when it is first used, so `import fairmargin` takes no time.

    fm.losses       the ε-margin losses, FairKL, and the losses of other methods
    fm.methods      training methods by name
    fm.data         datasets by name, splits, samplers, views
    fm.networks     encoders by name
    fm.evaluate     probes, and accuracies by group
    fm.audit        what gives the label away in a dataset, a run or embeddings
    fm.report       one page about many runs
    fm.train        train a method on a dataset, as `fairmargin train` does
    fm.load         a trained model from its run folder: predict, embed, logits
    fm.Config       the settings of a run
    fm.FairMarginClassifier   any method as a scikit-learn classifier, on vectors or images
    fm.FairMarginProjector    removes a known bias from embeddings (scikit-learn)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairmargin.version import __version__

if TYPE_CHECKING:
    from fairmargin import audit, data, evaluate, losses, methods, networks, report
    from fairmargin.api import train
    from fairmargin.config import Config
    from fairmargin.export.model import load
    from fairmargin.sklearn import FairMarginClassifier, FairMarginProjector

__all__ = [
    "Config",
    "FairMarginClassifier",
    "FairMarginProjector",
    "__version__",
    "audit",
    "data",
    "evaluate",
    "load",
    "losses",
    "methods",
    "networks",
    "report",
    "train",
]

_PACKAGES = ("audit", "data", "evaluate", "losses", "methods", "networks", "report")
_MEMBERS = {
    "Config": "fairmargin.config",
    "FairMarginClassifier": "fairmargin.sklearn",
    "FairMarginProjector": "fairmargin.sklearn",
    "load": "fairmargin.export.model",
    "train": "fairmargin.api",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"fairmargin.{name}")
    if name in _MEMBERS:
        return getattr(import_module(_MEMBERS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
