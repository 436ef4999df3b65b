"""The ledger as a page, and as the README's table."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fairmargin.report.runs import method_name
from fairmargin.reproduce import budgets, orderings
from fairmargin.reproduce.ledger import BEST_IS_WITHIN, Line, text
from fairmargin.reproduce.published import as_printed
from fairmargin.runtime.whole import write_atomically
from fairmargin.sweep.compare import spread

BEGIN = "<!-- results: begin -->"
END = "<!-- results: end -->"
# Behind a number of a reduced protocol.
REDUCED = "ʳ"
# Behind a number that is the published one, and behind a reduced one that comes near it.
SIGNS = {"reproduced": " ✓", "near": " ≈"}
# The reading of FairKL that the README's table means where it names none.
USUAL = "authors"
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
# Verdicts, the best first, as the page counts them.
VERDICTS = {
    "reproduced": "reproduced",
    "near": "within three points in a reduced protocol",
    "order only": "with the published order but another number",
    "not reproduced": "with another number and another order, or nothing to be compared with",
    "not judged": "under way",
    "not run": "not run yet",
}
_INTRODUCTION = (
    "Written by `fairmargin reproduce ledger`; `ledger.csv` holds the same with commits and "
    "commands. Test accuracy in percent. The columns:\n\n"
    "- *reading*: FairKL is read in four ways that are never mixed: *paper* has the printed "
    "divergence, *authors* the term of the authors' code with α as printed, *released* their "
    "script to the letter, which has α twice (docs/fidelity.md), and *recommended* what was best "
    "on validation data (fairkl.md).\n"
    "- *setting*: ρ, the share of each class with its own color; *ratio_pct*, the percentage of "
    "conflicting training images. The method *vanilla* is cross-entropy.\n"
    "- *published*: mean ± std of Barbano et al. (ICLR 2023), or of the work they quote.\n"
    "- *budget*: *paper* is the published protocol, *laptop* a reduced one (column *how*), which "
    "never counts as reproduced.\n"
    "- *ours*: of the **last** epoch, mean ± sample std over seeds.\n"
    "- *best epoch on test*: what the authors' code reports; the paper does not say which epoch it "
    "took. It is shown and never used.\n"
    "- *verdict*: [what is compared](../reproduce.md#what-is-compared) defines them. *7 of 8 "
    "orderings; not against end*: the paper puts eight methods clearly above or below this one; "
    "seven are on the same side here, and EnD is not.\n"
    "- *commit*: of the code; a run that was continued with other code has several."
)
_ORDERINGS = (
    "What the paper argues for, checked in finished runs under one budget: FairKL is above every "
    "method without it (the best of those that were run stands for all), and ε-SupInfoNCE is at "
    "least as good as ε-SupCon. Accuracies are those left / right of the sign. With one seed, a "
    "point or two is noise."
)
_CURVES = (
    "Test accuracy after each epoch, for as many epochs as the runs have done; `curves.json` has "
    "the numbers. Nothing was chosen by them."
)
_NEEDS = "What the others need. The command of each single number is in `ledger.csv`."
_COLUMNS = (
    "data", "method", "reading", "setting", "published", "budget", "ours", "best epoch on test",
    "seeds", "epochs", "gap", "verdict", "how", "commit",
)  # fmt: skip


def markdown(lines: Sequence[Line]) -> str:
    """Return the page: counts of verdicts, orderings, curves, and a section for each table.

    Args:
        lines: of the whole ledger, judged.
    """
    parts = ["# Ledger: the paper's numbers and ours", _INTRODUCTION, counts(lines)]
    needs = _needs(lines)
    if needs:
        parts += [_NEEDS, needs]
    checked = orderings.markdown(orderings.found(lines))
    if checked:
        parts += ["## Orderings", _ORDERINGS, checked]
    if any(line.budget == "paper" for line in lines):
        picture = "![test accuracy by epoch](curves.png)"
        parts += ["## Runs at the published protocol", _CURVES, picture]
    for table in TITLES:
        parts += _section(table, [line for line in lines if line.table == table])
    return "\n\n".join(parts) + "\n"


def counts(lines: Sequence[Line]) -> str:
    """Return how many of the published numbers that can be run came out how.

    A number that was run in several ways counts once, with the best verdict; if any of them is the
    published protocol to its end, with the best of those.

    Args:
        lines: of the whole ledger, judged.
    """
    best: dict[tuple[str, ...], tuple[bool, int]] = {}
    for line in lines:
        if budgets.at_hand(line.dataset):
            rank = next(k for k, one in enumerate(VERDICTS) if line.verdict.startswith(one))
            finished = line.budget == "paper" and line.whole
            found = (not finished, rank)
            best[line.number] = min(found, best.get(line.number, found))
    ranks = [rank for _, rank in best.values()]
    others = {line.number for line in lines if not budgets.at_hand(line.dataset)}
    came_out = [f"{ranks.count(k)} {said}" for k, said in enumerate(VERDICTS.values())]
    said = [
        f"Of the {len(best)} published numbers that need neither a GPU nor data with a licence: "
        f"{', '.join(came_out)}."
    ]
    reproduced = {number for number, (_, rank) in best.items() if rank == 0}
    by_best = {line.number for line in lines if BEST_IS_WITHIN in line.verdict} - reproduced
    if by_best:
        said.append(
            f"{len(by_best)} more would be reproduced by the best epoch on the test set, as the "
            "authors' code counts."
        )
    return " ".join([*said, f"Others: {len(others)}."])


def _needs(lines: Sequence[Line]) -> str:
    """What the numbers that cannot be run here need, and the command for them."""
    numbers: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for line in lines:
        if not budgets.at_hand(line.dataset):
            numbers.setdefault((line.dataset, line.table), set()).add(line.number)
    if not numbers:
        return ""
    rows = ["| data | numbers | what they need | command |", "|---|---|---|---|"]
    for (dataset, table), those in sorted(numbers.items()):
        command = f'`fairmargin reproduce {table} --cell "{dataset}/*" --budget paper`'
        needed = budgets.why_not_run(dataset)
        rows.append(f"| {dataset} | {len(those)} | {needed} | {command} |")
    return "\n".join(rows)


def _section(table: str, lines: Sequence[Line]) -> list[str]:
    """Heading, command, rows of what was run, and reasons for what was not."""
    place = "In the text" if table == "text" else f"Table {table}"
    parts = [
        f"## {place}: {TITLES[table]}",
        f"`fairmargin reproduce {table} --budget paper`, or `laptop`; one cell with `--cell`.",
    ]
    rows = [_row(line) for line in lines if line.budget]
    if rows:
        head = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
        parts.append("\n".join([*head, *rows]))
    missing: dict[str, list[Line]] = {}
    for line in lines:
        if not line.budget:
            missing.setdefault(line.note, []).append(line)
    for why, those in missing.items():
        parts.append(f"Not run{_needing(why)}: {', '.join(_named(those))}.")
    return parts


def _needing(why: str) -> str:
    return " yet" if why == budgets.TIME else f"; needs {why}"


def _named(lines: Iterable[Line]) -> list[str]:
    """Each method and reading once, with the settings that are missing."""
    settings: dict[str, dict[str, None]] = {}
    for line in lines:
        name = f"{line.method}, {line.reading}" if line.reading else line.method
        settings.setdefault(name, {})[line.setting] = None
    named = []
    for name, missing in settings.items():
        named.append(f"{name} ({', '.join(missing)})" if any(missing) else name)
    return named


def _row(line: Line) -> str:
    published = as_printed(line.published, line.published_std)
    ours = spread(line.ours or 0.0, line.ours_std)
    best = "–" if line.best_on_test is None else f"{line.best_on_test:.1f}"
    commit = f"`{line.commit}`" if line.commit else "–"
    values = [
        line.dataset, line.method, line.reading or "–", line.setting or "–", published, line.budget,
        ours, best, str(line.seeds), line.epochs, f"{line.gap:+.1f}", line.verdict,
        line.note or "–", commit,
    ]  # fmt: skip
    return f"| {' | '.join(values)} |"


def write(folder: Path, lines: Sequence[Line]) -> None:
    """Write ledger.csv and ledger.md.

    Args:
        folder: made if it does not exist.
        lines: of the whole ledger, judged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "ledger.csv", text(lines).encode())
    write_atomically(folder / "ledger.md", markdown(lines).encode())


# The README's table


def summary(lines: Sequence[Line]) -> str:
    """Return Table 3: methods × ρ, ours and published, of finished runs, and how they came out.

    A number of the published protocol stands before the one of the reduced protocol, which is
    marked.
    """
    mine = [line for line in lines if line.table == "3" and line.budget and line.whole]
    if not mine:
        return "(none so far)"
    columns = sorted({line.setting for line in mine})
    by_row: dict[tuple[str, str], dict[str, list[Line]]] = {}
    # The published protocol first.
    for line in sorted(mine, key=lambda line: line.budget != "paper"):
        of_row = by_row.setdefault((line.method, line.reading), {})
        of_row.setdefault(line.setting, []).append(line)
    titles = [_rho(column) for column in columns]
    rows = [f"| method | {' | '.join(titles)} |", f"|---|{'---|' * len(columns)}"]
    for row, by_column in _in_order(mine, by_row):
        values = [_ours_and_published(by_column.get(column, [])) for column in columns]
        rows.append(f"| {_row_name(*row)} | {' | '.join(values)} |")
    return "\n".join([*rows, "", _outcome(mine)])


def _in_order(
    lines: Sequence[Line], by_row: Mapping[tuple[str, str], dict[str, list[Line]]]
) -> list[tuple[tuple[str, str], dict[str, list[Line]]]]:
    """The rows in the order of the ledger."""
    order = dict.fromkeys((line.method, line.reading) for line in lines)
    return [(row, by_row[row]) for row in order]


def _row_name(method: str, reading: str) -> str:
    name = method_name(method)
    return name if reading in ("", USUAL) else f"{name}, {reading}"


def _rho(setting: str) -> str:
    """ "rho=0.99" → "ρ = 0.99"."""
    return "ρ = " + setting.removeprefix("rho=")


def _ours_and_published(lines: Sequence[Line]) -> str:
    """What the runs of one number gave, and the number: "**95.86**, 96.9ʳ ≈ (97.86)"."""
    if not lines:
        return "–"
    ours = [_ours(line) + SIGNS.get(line.verdict.split(" ")[0], "") for line in lines]
    return f"{', '.join(ours)} ({lines[0].published:.2f})"


def _ours(line: Line) -> str:
    if line.budget == "paper":
        deviation = "" if line.ours_std is None else f" ± {line.ours_std:.2f}"
        return f"**{line.ours:.2f}{deviation}**"
    return spread(line.ours or 0.0, line.ours_std) + REDUCED


def _outcome(lines: Sequence[Line]) -> str:
    """How finished lines came out, in words: each of the published protocol, and a count."""
    parts = []
    paper = [line for line in lines if line.budget == "paper"]
    if paper:
        yes = [line for line in paper if line.verdict == "reproduced"]
        no = [line for line in paper if line.verdict != "reproduced"]
        parts.append(f"Published protocol: {len(yes)} of {len(paper)} finished numbers reproduced.")
        parts += [f"{_where(line)}: {_distance(line)}." for line in no]
    reduced = [line for line in lines if line.budget != "paper"]
    if reduced:
        near = [line for line in reduced if line.verdict.startswith("near")]
        parts.append(
            f"Reduced protocol: {len(near)} of {len(reduced)} numbers within three points of the "
            "published ones, or two of their standard deviations."
        )
    return " ".join(parts)


def _where(line: Line) -> str:
    return f"{_row_name(line.method, line.reading)} at {_rho(line.setting)}"


def _distance(line: Line) -> str:
    gap = line.gap or 0.0
    said = f"{abs(gap):.2f} points {'above' if gap > 0 else 'below'}"
    if BEST_IS_WITHIN in line.verdict:
        said += f" (its best epoch on the test set has {line.best_on_test:.2f})"
    return said


def into_readme(readme: str, lines: Sequence[Line]) -> str:
    """Return the README's text with the table between its two markers renewed.

    Args:
        readme: its text, with the two markers.
        lines: of the ledger.
    """
    if BEGIN not in readme or END not in readme:
        raise ValueError(
            f"the README has no {BEGIN} and {END}; put them where the results table belongs"
        )
    before, rest = readme.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{summary(lines)}\n{END}{after}"


__all__ = ["counts", "into_readme", "markdown", "summary", "write"]
