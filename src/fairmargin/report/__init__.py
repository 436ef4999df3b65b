"""One self-contained HTML page about some runs: tables, charts, images, how to repeat each run.

    from pathlib import Path

    from fairmargin.report import write_report

    write_report([Path("runs/ce/seed-0"), Path("runs/ce/seed-1")], Path("report.html"))

A report reads run folders only, never a model or a dataset.

    page       the page as a whole
    grouping   which runs belong together
    runs       seeds of a method (Group), methods on a dataset (Part)
    words      sentences
    tables     rows of tables and strips of images
    charts     which numbers a chart shows
    figures    how it is drawn; svg, colours and pictures are its parts
    embedding  maps of features
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairmargin.report.page import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":
        from fairmargin.report.page import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
