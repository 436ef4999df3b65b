"""Methods by name.

make_encoder = partial(build_encoder, "simple-conv-7")
method = build_method("eps-supinfonce+fairkl", make_encoder, data.info, epsilon=0.5)

To add one, write a file with a `Method`, its card and a builder
`(make_encoder, info, *, options…) -> Method`, and add an entry here and in `catalog.CARDS`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fairmargin.batch import DataInfo
from fairmargin.checks import check_choice
from fairmargin.methods.badd import BAdd
from fairmargin.methods.base import MakeEncoder, Method
from fairmargin.methods.blind_eye import BlindEye
from fairmargin.methods.cnc import CnC
from fairmargin.methods.dfa import DFA
from fairmargin.methods.dfr import DFR
from fairmargin.methods.flac import FLAC
from fairmargin.methods.group_dro import GroupDRO
from fairmargin.methods.held_out import build_afr, build_self
from fairmargin.methods.hex import HEX
from fairmargin.methods.jtt import JTT
from fairmargin.methods.lc import LC
from fairmargin.methods.learned_mixin import LearnedMixin
from fairmargin.methods.lff import LfF
from fairmargin.methods.lnl import LNL
from fairmargin.methods.rebias import ReBias
from fairmargin.methods.recommended import build_fairmargin
from fairmargin.methods.row_builders import OBJECTIVES
from fairmargin.methods.rubi import RUBi
from fairmargin.methods.sin import SINProxy, build_sin
from fairmargin.methods.xrm import XRMTwins

METHODS: dict[str, Callable[..., Method]] = {
    "fairmargin": build_fairmargin,
    **OBJECTIVES,  # the rows of objectives.py; those that need no bias also with "+fairkl"
    "lnl": LNL,
    "jtt": JTT,
    "xrm-twins": XRMTwins,
    "group-dro": GroupDRO,
    "dfr": DFR,
    "class-refit": partial(DFR, balance="class"),
    "afr": build_afr,
    "self": build_self,
    "blind-eye": BlindEye,
    "badd": BAdd,
    "flac": FLAC,
    "dfa": DFA,
    "lff": LfF,
    "cnc": CnC,
    "lc": LC,
    "sin": build_sin,
    "sin-proxy": SINProxy,
    "rebias": ReBias,
    "hex": HEX,
    "rubi": RUBi,
    "learned-mixin": LearnedMixin,
    "learned-mixin+h": partial(LearnedMixin, entropy_weight=0.36),
}


def build_method(name: str, make_encoder: MakeEncoder, info: DataInfo, **options: Any) -> Method:
    """Build the method called `name`.

    Args:
        name: an entry of METHODS, such as "jtt"; `fairmargin list methods` shows all.
        make_encoder: makes a fresh encoder, each time it is called.
        info: the facts about the dataset.
        options: keywords of the method's builder; `fairmargin list methods NAME` explains them.
    """
    check_choice(name, "method", METHODS)
    return METHODS[name](make_encoder, info, **options)


__all__ = ["METHODS", "MakeEncoder", "Method", "build_method"]
