"""The two orderings that the paper argues for, checked in the ledger.

FairKL     a method with FairKL is above every method without it, on the same data and budget
ε losses   ε-SupInfoNCE is at least as good as ε-SupCon, with FairKL and without
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairmargin.reproduce.ledger import Line
from fairmargin.reproduce.published import as_printed

# The tables that have methods with FairKL and without.
TABLES = ("3", "4")
EPS = ("eps-supinfonce", "eps-supcon")


@dataclass(frozen=True)
class Ordering:
    """The claim that the method of one line is better than that of another.

    Args:
        ties: whether equal accuracies satisfy the claim (≥ instead of >).
    """

    above: Line
    below: Line
    ties: bool = False

    @property
    def in_the_paper(self) -> bool:
        """True if the published numbers satisfy the claim."""
        return self._holds(self.above.published, self.below.published)

    @property
    def here(self) -> bool:
        """True if our numbers satisfy the claim."""
        return self._holds(self.above.ours or 0.0, self.below.ours or 0.0)

    def _holds(self, above: float, below: float) -> bool:
        return above >= below if self.ties else above > below


def found(lines: Sequence[Line]) -> list[Ordering]:
    """Return the orderings that finished runs can check.

    A method with FairKL is compared with the best method without it, which stands for all of them.

    Args:
        lines: of the ledger, under all budgets.
    """
    finished = [line for line in lines if line.budget and line.whole and line.table in TABLES]
    orderings = []
    for line in finished:
        alike = [other for other in finished if _are_alike(line, other)]
        without = [other for other in alike if not _has_fairkl(other)]
        if _has_fairkl(line) and without:
            best = max(without, key=lambda other: other.ours or 0.0)
            orderings.append(Ordering(line, best))
        counterparts = [other for other in alike if _are_eps_losses(line, other)]
        orderings += [Ordering(line, other, ties=True) for other in counterparts]
    return sorted(orderings, key=lambda one: (one.ties, _column(one.above), one.above.method))


def _are_alike(line: Line, other: Line) -> bool:
    same_reading = other.reading in ("", line.reading)
    return _column(other) == _column(line) and same_reading


def _column(line: Line) -> tuple[str, ...]:
    return line.table, line.dataset, line.setting, line.budget


def _has_fairkl(line: Line) -> bool:
    return "fairkl" in line.method


def _are_eps_losses(line: Line, other: Line) -> bool:
    """Whether they are ε-SupInfoNCE and ε-SupCon, with everything else equal."""
    above, below = EPS
    return line.method.startswith(above) and other.method == below + line.method.removeprefix(above)


def markdown(orderings: Iterable[Ordering]) -> str:
    """Return a Markdown table; empty without orderings."""
    rows = [_row(one) for one in orderings]
    if not rows:
        return ""
    head = ["| claim | where | paper | ours | holds |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _row(ordering: Ordering) -> str:
    above, below = ordering.above, ordering.below
    sign = "≥" if ordering.ties else ">"
    claim = f"{_name(above)} {sign} {_name(below)}"
    where = f"{above.dataset}, {above.setting}, {above.budget}"
    paper = f"{as_printed(above.published)} / {as_printed(below.published)}"
    if not ordering.in_the_paper:
        paper += " (no)"
    ours = f"{above.ours or 0.0:.1f} / {below.ours or 0.0:.1f}"
    holds = "yes" if ordering.here else "**no**"
    return f"| {claim} | {where} | {paper} | {ours} | {holds} |"


def _name(line: Line) -> str:
    return f"{line.method} ({line.reading})" if line.reading else line.method
