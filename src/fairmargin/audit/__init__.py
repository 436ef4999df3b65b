"""What gives the label away: in a dataset before training, in a run or in embeddings after it.

    import fairmargin as fm

    found = fm.audit.dataset("photos.csv")
    found.verdict, found.findings
    found.save("audit.html")                     # and audit.json

    dataset           which simple attributes of the training images tell the label
    run               whom a trained model fails, what its embedding is organised by, and slices
    embeddings        the same for any embeddings and labels

`audit_dataset`, `audit_run`, `audit_embeddings` and `write_audit` are what these are built from:
they take a `Data`, a folder and arrays, and write into a folder.

`audit.check` compares finished runs with limits, for continuous integration. Everything is imported
when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairmargin.audit._dataset import audit_data as audit_dataset
    from fairmargin.audit._embeddings import audit_arrays as audit_embeddings
    from fairmargin.audit._embeddings import audit_run
    from fairmargin.audit.page import write as write_audit
    from fairmargin.audit.public import dataset, embeddings, run
    from fairmargin.audit.section import Found

__all__ = [
    "Found",
    "audit_dataset",
    "audit_embeddings",
    "audit_run",
    "dataset",
    "embeddings",
    "run",
    "write_audit",
]

# Name → (module of this package, name in it).
_PLACES = {
    "Found": ("section", "Found"),
    "audit_dataset": ("_dataset", "audit_data"),
    "audit_embeddings": ("_embeddings", "audit_arrays"),
    "audit_run": ("_embeddings", "audit_run"),
    "dataset": ("public", "dataset"),
    "embeddings": ("public", "embeddings"),
    "run": ("public", "run"),
    "write_audit": ("page", "write"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, inside = _PLACES[name]
    return getattr(import_module(f"fairmargin.audit.{module}"), inside)


def __dir__() -> list[str]:
    return __all__
