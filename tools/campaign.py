"""Run the paper's cells at the published protocol in the background.

    git clone . ../code                              a clone of its own, at a fixed commit
    python tools/campaign.py restore --out RUNS      take up the checkpoints in the repository
    python tools/campaign.py start 1 2 --out RUNS --code ../code
    python tools/campaign.py status --out RUNS
    python tools/campaign.py pause --out RUNS        each run saves and stops; `start` continues
    python tools/campaign.py save --out RUNS         checkpoints and records → results/campaign

Each run has the lowest priority, one thread (--threads gives it more) and the compiled kernels.
The numbers of the cells are those of docs/results/campaign.md; 11 is all of the reduced protocol,
two runs at a time (--jobs 1: one), without the cells that the ledger has already.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from fairmargin.reproduce import ledger
from fairmargin.reproduce.cells import cells
from fairmargin.reproduce.command import chosen
from fairmargin.runtime.start import SPINS

ROOT = Path(__file__).resolve().parents[1]
SAVED = ROOT / "results" / "campaign"
LEDGER = ROOT / "docs" / "results" / "ledger.csv"
READINGS = "authors,recommended"


@dataclass(frozen=True)
class Job:
    """What `fairmargin reproduce TABLE --cell CELL --budget BUDGET --jobs JOBS` runs.

    Args:
        settings: what it changes in the cell. Such a run has a folder of its own, and the ledger
            leaves it out.
    """

    table: str
    cell: str
    budget: str = "paper"
    jobs: int = 1
    settings: tuple[str, ...] = ()

    def command(self, out: Path) -> list[str]:
        """Return the words that run it, with runs below OUT."""
        place = out.resolve() / "-".join(self.settings)
        words = [sys.executable, "-m", "fairmargin", "reproduce", self.table, "--cell", self.cell]
        words += ["--budget", self.budget, "--jobs", str(self.jobs), "--seeds", "1"]
        words += ["--reading", READINGS, "--out", str(place)]
        for setting in self.settings:
            words += ["--set", setting]
        return words


# Everything that is run with the reduced protocol, in this order.
REDUCED = (
    # Table 3: every method, cross-entropy and FairKL also at the middle ρ.
    "biased-mnist/*:rho=0.99", "biased-mnist/*:rho=0.99@authors",
    "biased-mnist/[!l]*:rho=0.999", "biased-mnist/*:rho=0.999@authors",
    "biased-mnist/ce:rho=0.99[57]", "biased-mnist/*:rho=0.99[57]@authors",
    "biased-mnist/eps-supinfonce+fairkl:rho=0.99*@recommended",
    # Table 12, and Figures 2 and 5.
    "biased-mnist/*:rho=0.999;lambda=*@authors",
    "biased-mnist/eps-sup*:rho=0.99;eps=*", "biased-mnist/eps-sup*:rho=0.999;eps=*",
    # Table 4.
    "corrupted-cifar10/vanilla:ratio_pct=[05].[05]", "corrupted-cifar10/lff:ratio_pct=[05].[05]",
    "corrupted-cifar10/dfa:ratio_pct=[05].[05]",
    "corrupted-cifar10/eps-supinfonce+fairkl:ratio_pct=[05].[05]@authors",
    # Last, as it costs four times as much as any other.
    "biased-mnist/lnl:rho=0.999",
)  # fmt: skip
# By the numbers of docs/results/campaign.md.
JOBS = {
    1: Job("3", "eps-supinfonce+fairkl:rho=0.99@authors"),
    2: Job("3", "eps-supinfonce+fairkl:rho=0.999@authors"),
    3: Job("3", "eps-supinfonce+fairkl:rho=0.997@authors"),
    4: Job("3", "eps-supinfonce+fairkl:rho=0.995@authors"),
    5: Job("3", "ce:rho=0.99"),
    6: Job("4", "corrupted-cifar10/eps-supinfonce+fairkl:ratio_pct=5.0@authors"),
    7: Job("3", "biascon+ce:rho=0.999", settings=("method.second=weighted",)),
    8: Job("3", "eps-supinfonce:rho=0.99"),
    9: Job("3", "ce:rho=0.997"),
    10: Job("4", "corrupted-cifar10/eps-supinfonce+fairkl:ratio_pct=0.5@authors"),
    11: Job("all", ",".join(REDUCED), "laptop", jobs=2),
    12: Job("3", "eps-supinfonce+fairkl:rho=0.99@authors", settings=("network.norm_parts=4",)),
    13: Job("3", "lnl:rho=0.99", "laptop", settings=("schedule.milestones=[8,16]",)),
}
# What is known of a run; it needs its newest checkpoint besides to go on.
FACTS = ("config.toml", "data.json", "environment.json", "metrics.jsonl")
RESULT = "result.json"
PIDS = "pids.json"


def start(
    numbers: list[int], out: Path, code: Path, threads: int = 1, jobs: int | None = None
) -> None:
    """Start the cells in processes that outlive this one, and note them in OUT/pids.json.

    Args:
        threads: of each run.
        jobs: runs at a time of 11, unless its own number of them.
    """
    out.mkdir(parents=True, exist_ok=True)
    running = _running(out)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "FAIRMARGIN_NATIVE": "1",
        "PYTHONPATH": str(code / "src"),
    }
    if threads > 1:
        # Such a run has the machine to itself: its threads may spin for a moment while they wait.
        environment["GOMP_SPINCOUNT"] = SPINS
    for number in numbers:
        if str(number) in running:
            print(f"cell {number}: runs already, process {running[str(number)]}")
            continue
        job = JOBS[number]
        if job.jobs > 1:
            job = replace(job, cell=",".join(missing(job)), jobs=jobs or job.jobs)
        with (out / f"cell-{number}.log").open("a") as log:
            process = subprocess.Popen(
                job.command(out),
                cwd=code,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_be_nice,
            )
        running[str(number)] = process.pid
        print(f"cell {number}: process {process.pid}, {job.cell}")
    (out / PIDS).write_text(json.dumps(running))


def missing(job: Job, file: Path = LEDGER) -> list[str]:
    """Return the names of a job's cells that the ledger does not have finished, in their order.

    Behind them come those that it has and that Figure 2 shows: it is drawn from records of runs.
    """
    lines = [line for line in ledger.read(file) if line.budget == job.budget and line.whole]
    known = {(line.dataset, line.method, line.setting, line.reading) for line in lines}
    drawn = {cell.folder(Path(), "laptop", 0) for cell in cells("figure2")}
    first: dict[Path, str] = {}
    then: dict[Path, str] = {}
    for cell in chosen(job.table, job.cell, READINGS):
        folder = cell.folder(Path(), "laptop", 0)
        if (cell.dataset, cell.row, cell.setting, cell.reading) in known:
            if folder in drawn:
                then[folder] = cell.name
        elif folder not in then:
            first.setdefault(folder, cell.name)
    return [*first.values(), *then.values()]


def _running(out: Path) -> dict[str, int]:
    """Cells that were started before and still run, with their processes."""
    return {number: pid for number, pid in _started(out).items() if _alive(pid)}


def _started(out: Path) -> dict[str, int]:
    """Cells that were started last, with their processes."""
    file = out / PIDS
    return json.loads(file.read_text()) if file.is_file() else {}


def _be_nice() -> None:
    """Take the lowest priority, on Linux also for the scheduling group of the new session."""
    os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def pause(out: Path, patience: float = 120.0) -> None:
    """Ask the running cells to save and stop, and wait until they have."""
    running = _running(out)
    for pid in running.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while any(_alive(pid) for pid in running.values()) and time.monotonic() < deadline:
        time.sleep(0.5)
    for number, pid in running.items():
        if _alive(pid):
            print(f"cell {number}: process {pid} is still running")
    status(out)


def _alive(pid: int) -> bool:
    """Whether a process of this number is one of ours, and has not ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    # One that has ended and was not yet asked for its exit code has no words.
    return b"fairmargin" in words


def status(out: Path) -> None:
    """Print which cells run, and how far each run is, with its accuracies and speed."""
    for number, pid in _started(out).items():
        state = f"runs, process {pid}" if _alive(pid) else f"has ended, see cell-{number}.log"
        print(f"cell {number}: {state}")
    for folder in _runs(out):
        steps, rate, accuracy = 0, 0.0, []
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            event = json.loads(line)
            steps = event.get("step", steps)
            rate = event.get("images_per_second", rate)
            if event["event"] == "evaluation":
                accuracy.append(f"{100 * event['test']['plain']:.1f}")
        shown = " ".join(accuracy) or "no epoch yet"
        print(
            f"{folder.relative_to(out)}\n  step {steps}, {rate:.0f} images/s; test accuracy {shown}"
        )


def save(out: Path, saved: Path = SAVED) -> None:
    """Copy what each unfinished run needs to go on, and of a finished one its record.

    A record says all that tables and figures show; weights are kept elsewhere. What is saved
    already of other runs stays.
    """
    for folder in _runs(out):
        target = saved / folder.relative_to(out)
        shutil.rmtree(target, ignore_errors=True)
        finished = (folder / RESULT).is_file()
        checkpoints = sorted((folder / "checkpoints").glob("step-*.ckpt"))
        if not finished and not checkpoints:
            continue
        target.mkdir(parents=True)
        for name in FACTS:
            shutil.copy2(folder / name, target / name)
        if finished:
            shutil.copy2(folder / RESULT, target / RESULT)
        else:
            (target / "checkpoints").mkdir()
            shutil.copy2(checkpoints[-1], target / "checkpoints")
        what = "the record" if finished else checkpoints[-1].name
        print(f"saved {what} of {folder.relative_to(out)}")


def restore(out: Path, saved: Path = SAVED) -> None:
    """Copy saved runs into OUT, where it has none of that name."""
    for folder in _runs(saved):
        target = out / folder.relative_to(saved)
        if target.exists():
            print(f"{target} is there already; left as it is")
            continue
        shutil.copytree(folder, target)
        print(f"restored {target}")


def _runs(out: Path) -> list[Path]:
    return sorted(path.parent for path in out.rglob("metrics.jsonl"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("start", "pause", "status", "save", "restore"))
    parser.add_argument("cells", type=int, nargs="*", help="numbers of cells to start")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the runs, outside the work tree"
    )
    parser.add_argument("--code", type=Path, default=ROOT, help="the clone that the runs use")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run")
    parser.add_argument(
        "--jobs", type=int, help="runs of 11 at a time, so that a cell can have the other core"
    )
    options = parser.parse_args()
    if unknown := set(options.cells) - JOBS.keys():
        parser.error(f"there is no cell {min(unknown)}; choose from {', '.join(map(str, JOBS))}")
    if options.what == "start":
        start(options.cells, options.out, options.code.resolve(), options.threads, options.jobs)
    else:
        {"pause": pause, "status": status, "save": save, "restore": restore}[options.what](
            options.out
        )


if __name__ == "__main__":
    main()
