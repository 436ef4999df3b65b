"""Choose between the entries of a suite by validation samples. No test sample is looked at.

    fairmargin suite --seeds 11,12,13 --out RUNS --methods …
    python -m benchmarks.suite_choice RUNS

Every task has a small unbiased validation set, which no method with bias labels in training, and
none without any, has seen. Each finished run is measured on it, painted with five other drawings
of the bias: mean accuracy in percent of the (class, bias) groups. The table has the mean over seeds
for each task, the mean over tasks, the mean rank, and how far an entry is behind the best of a task
at the most.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch

import fairmargin as fm
from fairmargin import config as configuration
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import InOrder
from fairmargin.runs import build
from fairmargin.suite.ranking import ranks
from fairmargin.suite.tasks import TASKS

# What was measured before, below the folder of the suite.
CACHE = "choice.json"
# Seeds of the bias in the validation sets that runs are measured on.
PAINTINGS = range(1000, 1005)


def measure(run: Path) -> float:
    """Return the mean accuracy of the groups of unbiased validation sets, in percent.

    Args:
        run: folder of a finished run.
    """
    config = configuration.load_resolved(run / "config.toml")
    method = fm.load(run).method.eval()
    right, groups = [], []
    for seed in PAINTINGS:
        changes = ["data.regime=validation", "data.bias=labels", f"data.seed={seed}"]
        data = build.data(configuration.override(config, changes))
        split = data.valid
        order = InOrder(len(split))
        loader = Loader(split, data.eval_views, order, 500, device=torch.device("cpu"))
        with torch.inference_mode():
            said = torch.cat([method.predict(batch.images).argmax(1) for batch in loader])
        right.append((said == split.labels).double())
        groups.append(torch.stack([split.labels, split.bias], 1))
    _, group = torch.cat(groups).unique(dim=0, return_inverse=True)
    accuracies = [torch.cat(right)[group == g].mean() for g in group.unique()]
    return 100 * float(torch.stack(accuracies).mean())


def measured(out: Path) -> dict[str, float]:
    """Return the accuracy of every finished run of a suite, by its folder below OUT.

    Args:
        out: folder of the suite; what is measured is kept there.
    """
    cache = out / CACHE
    found: dict[str, float] = json.loads(cache.read_text()) if cache.is_file() else {}
    for result in sorted(out.glob("runs/*/*/*/seed-*/result.json")):
        name = result.parent.relative_to(out).as_posix()
        if name not in found:
            found[name] = measure(result.parent)
            cache.write_text(json.dumps(found, indent=1))
    return found


def main() -> None:
    """Print a table for each regime, the best mean first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of a suite")
    out = parser.parse_args().out
    # regime → entry → task → accuracies of the seeds
    tables: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(dict)
    for name, accuracy in measured(out).items():
        _, regime, task, entry, _ = name.split("/")
        tasks = tables[regime].setdefault(entry, defaultdict(list))
        tasks[task].append(accuracy)
    for regime, entries in tables.items():
        show(regime, entries)


def show(regime: str, entries: dict[str, dict[str, list[float]]]) -> None:
    """Print one table; entries without a result on some task have no rank.

    Args:
        regime: what the entries may know of the bias.
        entries: accuracies by entry and task.
    """
    seen = {task for tasks in entries.values() for task in tasks}
    names = [task for task in TASKS if task in seen]
    whole = {entry: tasks for entry, tasks in entries.items() if len(tasks) == len(names)}
    means = {entry: [fmean(tasks[name]) for name in names] for entry, tasks in whole.items()}
    by_task = [ranks([row[k] for row in means.values()]) for k in range(len(names))]
    bests = [max(row[k] for row in means.values()) for k in range(len(names))]
    print(f"\n{regime}\n\n| entry | {' | '.join(names)} | mean | mean rank | behind | seeds |")
    print("|---" * (len(names) + 5) + "|")
    order = sorted(means, key=lambda entry: -fmean(means[entry]))
    places = list(means)
    for entry in order:
        row = means[entry]
        rank = fmean(one[places.index(entry)] for one in by_task)
        behind = max(best - value for best, value in zip(bests, row, strict=True))
        cells = " | ".join(f"{value:.1f}" for value in row)
        seeds = min(len(values) for values in whole[entry].values())
        end = f"{fmean(row):.2f} | {rank:.1f} | {behind:.1f} | {seeds}"
        print(f"| {entry} | {cells} | {end} |")
    for entry in entries.keys() - whole.keys():
        print(f"| {entry}: no result on {', '.join(sorted(seen - entries[entry].keys()))} |")


if __name__ == "__main__":
    main()
