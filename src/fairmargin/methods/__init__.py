"""Methods by name.

method = build_method("eps-supinfonce+fairkl", partial(build_encoder, "simple-conv-7"), data.info, epsilon=0.5)

To add one: a file with a `Method` and a builder `(make_encoder, info, *, options…) -> Method`, and an entry here.
"""

from collections.abc import Callable
from typing import Any

from fairmargin.batch import DataInfo
from fairmargin.losses.inputs import check_choice
from fairmargin.methods.base import MakeEncoder, Method
from fairmargin.methods.objective import OBJECTIVES

METHODS: dict[str, Callable[..., Method]] = {
    **OBJECTIVES,  # the rows of objective.py, each also with "+fairkl"
}


def build_method(name: str, make_encoder: MakeEncoder, info: DataInfo, **options: Any) -> Method:
    """The method `name` for a dataset with these facts; `options` are the builder's keywords."""
    check_choice(name, "method", METHODS)
    return METHODS[name](make_encoder, info, **options)


__all__ = ["METHODS", "MakeEncoder", "Method", "build_method"]
