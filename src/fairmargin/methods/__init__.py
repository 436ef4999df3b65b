"""Methods by name.

method = build_method("eps-supinfonce+fairkl", partial(build_encoder, "simple-conv-7"), data.info, epsilon=0.5)

To add one: a file with a `Method` and a builder `(make_encoder, info, *, options…) -> Method`, and an entry here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.methods.base import MakeEncoder, Method
from fairmargin.methods.blind_eye import BlindEye
from fairmargin.methods.dfa import DFA
from fairmargin.methods.dfr import DFR
from fairmargin.methods.group_dro import GroupDRO
from fairmargin.methods.hex import HEX
from fairmargin.methods.jtt import JTT
from fairmargin.methods.learned_mixin import LearnedMixin
from fairmargin.methods.lff import LfF
from fairmargin.methods.lnl import LNL
from fairmargin.methods.rebias import ReBias
from fairmargin.methods.row_builders import OBJECTIVES
from fairmargin.methods.rubi import RUBi
from fairmargin.methods.sin import SINProxy, build_sin

METHODS: dict[str, Callable[..., Method]] = {
    **OBJECTIVES,  # the rows of objectives.py; those that need no bias also with "+fairkl"
    "lnl": LNL,
    "jtt": JTT,
    "group-dro": GroupDRO,
    "dfr": DFR,
    "blind-eye": BlindEye,
    "dfa": DFA,
    "lff": LfF,
    "sin": build_sin,
    "sin-proxy": SINProxy,
    "rebias": ReBias,
    "hex": HEX,
    "rubi": RUBi,
    "learned-mixin": LearnedMixin,
    "learned-mixin+h": partial(LearnedMixin, entropy_weight=0.36),
}


def build_method(name: str, make_encoder: MakeEncoder, info: DataInfo, **options: Any) -> Method:
    """The method `name` for a dataset with these facts; `options` are the builder's keywords."""
    check_choice(name, "method", METHODS)
    return METHODS[name](make_encoder, info, **options)


__all__ = ["METHODS", "MakeEncoder", "Method", "build_method"]
