"""What an audit of a dataset finds out about an attribute, and the samples it was found out on."""

from dataclasses import dataclass

import numpy as np

from fairmargin.audit.attributes import Attribute
from fairmargin.audit.significance import Answers, Score
from fairmargin.data.split import Split

SHORTCUT, CORRELATE, NOTHING = "shortcut", "correlate", "nothing"


@dataclass(frozen=True)
class Finding:
    """What was found out about one attribute."""

    answers: Answers
    score: Score
    verdict: str
    echo_of: str | None = None  # the name of a stronger shortcut beside which it tells nothing
    follows: float | None = (
        None  # of the samples that contradict the known bias, the share told as the bias says
    )

    @property
    def attribute(self) -> Attribute:
        return self.answers.attribute


@dataclass(frozen=True)
class Scored:
    """The samples attributes were scored on, by class names that are audited."""

    split: Split
    index: np.ndarray  # [n] positions in the split
    labels: np.ndarray  # [n]
    names: tuple[str, ...]
