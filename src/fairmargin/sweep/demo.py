"""The demonstration: two methods on digits with a shortcut, and a page about them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fairmargin import config as configuration
from fairmargin.report.page import write_report
from fairmargin.runtime.terminal import Console
from fairmargin.sweep.compare import compare, summaries, table

DATASET = "biased-mnist-mini"
METHODS = ("ce", "fairmargin")
STORY = (
    "In the training images the background colour gives the digit away: 95 of 100 sevens, say, "
    "stand on the same colour. In the test images every colour is equally likely. Both methods see "
    "the same images, the same number of times, with the same network; the second is also told the "
    "colour of each training image, and is made to keep it out of its representation."
)


def show(
    out: Path,
    seed: int,
    *,
    say: Callable[[str], None],
    command: Sequence[str] = ("fairmargin", "demo"),
) -> Path:
    """Train both methods with the dataset's preset, print their table and write the page.

    Args:
        out: the folder of runs and page.
        seed: of data, weights and batches.
        say: gets a line for each run.
        command: recorded in the run folders.

    Returns:
        The path of the page.
    """
    configs = [
        configuration.load(None, dataset=DATASET, method=method, seed=seed) for method in METHODS
    ]
    rho = configs[0].data.options.get("rho", 0.95)
    say(
        f"{DATASET}, ρ = {rho}: the colour gives the digit away in training and says nothing in "
        "the test set. About a minute for each method."
    )
    outcomes = compare(configs, out / "runs", command=command, say=say)
    rows = summaries(outcomes)
    Console().print(table(rows, "accuracy on digits whose colours are shuffled, in percent"))
    page = write_report(
        [outcome.folder for outcome in outcomes],
        out / "report.html",
        title="A model that stays right when the shortcut disappears",
        story=STORY,
    )
    say(f"report: {page}")
    return page
