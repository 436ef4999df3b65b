"""The ledger as a page, and as the README's table."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fairmargin.reproduce import orderings
from fairmargin.reproduce.ledger import Line, text
from fairmargin.reproduce.published import as_printed
from fairmargin.runtime.files import write_atomically
from fairmargin.sweep.compare import spread

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
TITLES = {
    "1": "ImageNet-100, the two losses",
    "2": "Generic vision",
    "3": "Biased-MNIST",
    "4": "Corrupted CIFAR-10 and bFFHQ",
    "5": "9-Class ImageNet and ImageNet-A",
    "8": "ε, generic vision",
    "9": "ε, ImageNet-100",
    "10": "Projection head, Corrupted CIFAR-10",
    "11": "FairKL of means and of means and variances",
    "12": "α and λ, Biased-MNIST",
    "text": "bFFHQ without FairKL",
}


def markdown(lines: Sequence[Line]) -> str:
    ran = [line for line in lines if line.budget]
    counts = {kind: sum(line.verdict.startswith(kind) for line in lines) for kind in VERDICTS}
    parts = [
        "# Ledger: the paper's numbers and ours",
        "Written by `fairmargin reproduce ledger`; `ledger.csv` holds the same with commits and commands. Test accuracy in "
        "percent: published mean ± std (Barbano et al., ICLR 2023, or whom they quote), ours of the **last** epoch, mean ± "
        "sample std over seeds. *Best epoch on test* is the convention behind the published numbers; it is shown and never "
        "used. A *laptop* number is of a reduced protocol (column *how*): read its order among the others, not its height. "
        "FairKL is read in ways that are never mixed: *paper* has the printed divergence, *authors* the term of the authors' "
        "code with α as printed, *released* their script to the letter, which has α twice (docs/fidelity.md), and "
        "*recommended* what was best on validation (fairkl.md).",
        f"{len(lines)} lines: "
        + ", ".join(f"{number} {kind}" for kind, number in counts.items())
        + ".",
    ]
    if checked := orderings.markdown(orderings.found(lines)):
        parts += ["## Orderings", _ORDERINGS, checked]
    if any(line.budget == "paper" for line in ran):
        parts += [
            "## Runs at the published protocol",
            _CURVES,
            "![test accuracy by epoch](curves.png)",
        ]
    for table, title in TITLES.items():
        mine = [line for line in ran if line.table == table]
        missing = [line for line in lines if line.table == table and not line.budget]
        parts.append(f"## {'In the text' if table == 'text' else f'Table {table}'}: {title}")
        parts.append(
            f"`fairmargin reproduce {table} --budget paper`, or `laptop`; one cell with `--cell`."
        )
        if mine:
            parts.append("\n".join([*_HEAD, *map(_row, mine)]))
        reasons = dict.fromkeys(line.note for line in missing)
        named = {
            why: ", ".join(_named(line for line in missing if line.note == why)) for why in reasons
        }
        parts += [f"Not run, {why}: {those}." for why, those in named.items()]
    return "\n\n".join(parts) + "\n"


def _named(lines: Iterable[Line]) -> list[str]:
    """Each method once, with the settings that are missing."""
    settings: dict[str, dict[str, None]] = {}
    for line in lines:
        settings.setdefault(line.method, {})[line.setting] = None
    return [f"{method} ({', '.join(of)})" if any(of) else method for method, of in settings.items()]


_ORDERINGS = (
    "What the paper argues for, in finished runs under one budget: FairKL above every method without it (the best of those that "
    "were run stands for all), and ε-SupInfoNCE at least as good as ε-SupCon. Accuracies are left / right of the sign. "
    "With one seed, a point or two is noise."
)
_CURVES = "Test accuracy after each epoch, as far as they have got; `curves.json` has the numbers. Nothing was chosen by them."
VERDICTS = ("reproduced", "trend reproduced", "not reproduced", "not judged", "not run")
_COLUMNS = (
    "data", "method", "FairKL", "setting", "published", "budget", "ours", "best epoch on test", "seeds", "epochs", "gap",
    "verdict", "how", "commit",
)  # fmt: skip
_HEAD = (f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|")


def _row(line: Line) -> str:
    published = as_printed(line.published, line.published_std)
    best = "–" if line.best_on_test is None else f"{line.best_on_test:.1f}"
    values = [
        line.dataset, line.method, line.reading or "–", line.setting or "–", published, line.budget,
        spread(line.ours or 0.0, line.ours_std), best, str(line.seeds), line.epochs, f"{line.gap:+.1f}", line.verdict,
        line.note or "–", f"`{line.commit}`" if line.commit else "–",
    ]  # fmt: skip
    return f"| {' | '.join(values)} |"


def write(folder: Path, lines: Sequence[Line]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "ledger.csv", text(lines).encode())
    write_atomically(folder / "ledger.md", markdown(lines).encode())


# The README's table


def summary(lines: Sequence[Line]) -> str:
    """Table 3 at the laptop budget, for the README: methods × ρ, published beside ours; of finished runs only."""
    mine = [line for line in lines if line.table == "3" and line.budget == "laptop" and line.whole]
    if not mine:
        return "(none so far)"
    columns = sorted({line.setting for line in mine})
    rows = dict.fromkeys((line.method, line.reading) for line in mine)
    shown = ["ρ = " + column.removeprefix("rho=") for column in columns]
    lines_ = [f"| method | {' | '.join(shown)} |", f"|---|{'---|' * len(columns)}"]
    for method, reading in rows:
        of = {
            line.setting: line for line in mine if (line.method, line.reading) == (method, reading)
        }
        values = [
            f"**{spread(of[c].ours or 0.0, of[c].ours_std)}** ({as_printed(of[c].published)})"
            if c in of
            else "–"
            for c in columns
        ]
        lines_.append(f"| {method}{f', {reading}' if reading else ''} | {' | '.join(values)} |")
    return "\n".join(lines_)


def into_readme(readme: str, lines: Sequence[Line]) -> str:
    """The text with the table between its two markers renewed."""
    if BEGIN not in readme or END not in readme:
        raise ValueError(
            f"the README has no {BEGIN} and {END}; put them where the results table belongs"
        )
    before, rest = readme.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{summary(lines)}\n{END}{rest.split(END, 1)[1]}"


__all__ = ["into_readme", "markdown", "summary", "write"]
