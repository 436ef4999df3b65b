"""What an audit of a dataset says about one attribute, and the samples it was measured on."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairmargin.audit.attributes import Attribute
from fairmargin.audit.significance import Answers, Score
from fairmargin.data.split import Split

Verdict = Literal["shortcut", "correlate", "nothing"]
SHORTCUT: Verdict = "shortcut"
CORRELATE: Verdict = "correlate"
NOTHING: Verdict = "nothing"


@dataclass(frozen=True)
class Finding:
    """What was measured of one attribute.

    Args:
        answers: what the attribute says about each scored sample.
        score: how often that is right.
        verdict: what to think of it.
        echo_of: name of a stronger shortcut that tells everything this one does.
        follows: of the samples that contradict the known bias, the share told as the bias says.
        bond: how far the attribute is bound to the object; None if that was not measured.
    """

    answers: Answers
    score: Score
    verdict: Verdict
    echo_of: str | None = None
    follows: float | None = None
    bond: float | None = None

    @property
    def attribute(self) -> Attribute:
        """What was measured."""
        return self.answers.attribute


@dataclass(frozen=True)
class Scored:
    """The samples that attributes were scored on.

    Args:
        split: that the samples come from.
        index: [n] positions in the split.
        labels: [n] positions in `names`.
        names: of the audited classes.
    """

    split: Split
    index: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]
