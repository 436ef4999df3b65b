"""Forward + backward of our losses against dense autograd and pytorch-metric-learning.

    python -m benchmarks.losses                    the table of docs/performance.md, 10 minutes
    python -m benchmarks.losses --sizes 256 4096   some sizes only
    python -m benchmarks.losses --markdown         the same as Markdown
    python -m benchmarks.losses --device cuda      on a GPU, with compiled forms (CPU: --compiled)
    python -m benchmarks.losses --beside REV       our losses only, against those of another commit

Each (contender, size) runs in a process of its own with the default allocator. Time is the median
of repeated runs, and a GPU is waited for at the end of each; memory is the peak above what was held
before the first run, of the resident set or, on a GPU, of what PyTorch has allocated there. Rounds
of all contenders alternate, so that a busy moment of the machine does not fall on one of them.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.beside import compare
from fairmargin import losses

D, CLASSES, BIASES, TAU, EPSILON = 128, 10, 10, 0.1, 0.25
SIZES = (256, 1024, 4096, 16384, 65536)


def dense_eps_supinfonce(z: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """ε-SupInfoNCE as one would write it: N×N matrices, log-sum-exp, gradient by autograd."""
    z = F.normalize(z, dim=1)
    s = z @ z.T / TAU
    same = y[:, None] == y
    positive = same & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    negatives = s.masked_fill(same, -math.inf).logsumexp(1, keepdim=True)
    each = torch.logaddexp(s - EPSILON, negatives) - s
    return (each.masked_fill(~positive, 0).sum(1) / positive.sum(1)).mean()


def dense_fairkl(z: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """FairKL on the positives as one would write it."""
    z = F.normalize(z, dim=1)
    d = 2 - 2 * z @ z.T
    positive = (y[:, None] == y) & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    moments = []
    for mask in (positive & (b[:, None] == b), positive & (b[:, None] != b)):
        mean = (d * mask).sum() / mask.sum()
        moments += [mean, ((d - mean) ** 2 * mask).sum() / mask.sum() + 0.1]
    ma, va, mc, vc = moments
    return 0.5 * ((va + (ma - mc) ** 2) / vc - (va / vc).log() - 1)


def metric_learning_supcon(z: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """SupCon of pytorch-metric-learning."""
    from pytorch_metric_learning.losses import SupConLoss

    loss: Tensor = SupConLoss(temperature=TAU)(z, y)
    return loss


def three_products(z: Tensor, y: Tensor, b: Tensor) -> Tensor:
    """Nothing but the three N×N×D products of the streamed pass, in chunks of the same size."""
    from fairmargin.losses._streamed import chunk_size

    x = z.detach()
    n = len(x)
    size = chunk_size(x, None)
    buffer, out = x.new_empty(size, n), torch.zeros_like(x)
    for start in range(0, n, size):
        rows = x[start : start + size]
        s = torch.mm(rows, x.T, out=buffer[: len(rows)])
        out[start : start + size] += s @ x
        out.addmm_(s.T, rows)
    return out.sum() * 0 + z.sum() * 0


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

# By name, with the largest size to try.
CONTENDERS: dict[str, tuple[Loss, int]] = {
    "ε-SupInfoNCE": (lambda z, y, b: losses.eps_supinfonce(z, y, epsilon=EPSILON), 65536),
    "ε-SupInfoNCE, dense autograd": (dense_eps_supinfonce, 16384),
    "SupCon": (lambda z, y, b: losses.supcon(z, y), 65536),
    "SupCon, pytorch-metric-learning": (metric_learning_supcon, 16384),
    "three products alone": (three_products, 65536),
    "FairKL": (lambda z, y, b: losses.fairkl(z, y, b), 65536),
    "FairKL, dense autograd": (dense_fairkl, 16384),
}
NOT_COMPILED = ("SupCon, pytorch-metric-learning", "three products alone")
COMPILED = {
    f"{name}, compiled": contender
    for name, contender in CONTENDERS.items()
    if name not in NOT_COMPILED
}
# Ours once more, for --beside: what runs through other code, and the settings whose code differs.
OURS: dict[str, Loss] = {
    "ε-SupInfoNCE": CONTENDERS["ε-SupInfoNCE"][0],
    "SupCon": CONTENDERS["SupCon"][0],
    "BiasCon": lambda z, y, b: losses.biascon(z, y, b),
    "FairKL": CONTENDERS["FairKL"][0],
    "FairKL, both signs": lambda z, y, b: losses.fairkl(z, y, b, negatives=True),
    "FairKL, by anchor": lambda z, y, b: losses.fairkl(z, y, b, scope="anchor"),
    "FairKL, authors": lambda z, y, b: losses.fairkl(z, y, b, variant="authors"),
    "EnD": lambda z, y, b: losses.end(z, y, b),
}


def batch(n: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, labels, and biases that agree with them for nine samples in ten.

    They are the same on every device.
    """
    torch.manual_seed(0)
    z = torch.randn(n, D)
    y = torch.randint(CLASSES, (n,))
    b = torch.where(torch.rand(n) < 0.9, y, torch.randint(BIASES, (n,)))
    return z.to(device).requires_grad_(), y.to(device), b.to(device)


def wait_for(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    if device.startswith("mps"):
        torch.mps.synchronize()


def timed(loss: Loss, z: Tensor, y: Tensor, b: Tensor, device: str) -> float:
    """Return the seconds of one forward and backward pass."""
    z.grad = None
    wait_for(device)
    start = time.perf_counter()
    loss(z, y, b).backward()
    wait_for(device)
    return time.perf_counter() - start


def resident(field: str) -> int:
    """Return VmRSS or VmHWM of this process in bytes (Linux)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def peak_memory(once: Callable[[], float], device: str) -> float:
    """Return the bytes above what is held now, at the peak of one run; NaN if not known."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        once()
        return float(torch.cuda.max_memory_allocated(device) - before)
    if device == "cpu" and os.path.exists("/proc/self/clear_refs"):
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")  # restarts the peak
        before = resident("VmRSS")
        once()
        return float(resident("VmHWM") - before)
    once()
    return math.nan


def measure(name: str, n: int, seconds: float, device: str) -> dict[str, float]:
    """Measure in this process: after a warm-up repeat for about `seconds`.

    There are at least three repetitions unless that takes long.
    """
    loss = (CONTENDERS | COMPILED)[name][0]
    z, y, b = batch(n, device)
    if name in COMPILED:
        loss = torch.compile(loss)
        timed(loss, z, y, b, device)  # compiles
    else:
        small = torch.randn(64, D, device=device, requires_grad=True)
        # Imports and thread pools come first, so that memory is the loss's own.
        loss(small, y[:64] % 4, b[:64] % 4).backward()

    def once() -> float:
        return timed(loss, z, y, b, device)

    memory = peak_memory(once, device)
    times = [once()]
    while (sum(times) < seconds and len(times) < 200) or (len(times) < 3 and sum(times) < 8):
        times.append(once())
    return {"seconds": statistics.median(times), "bytes": memory, "runs": len(times)}


def serve() -> None:
    """Answer tasks from the standard input, a line of JSON each, until it ends.

    These are the processes of --beside.
    """
    batches: dict[tuple[int, str], tuple[Tensor, Tensor, Tensor]] = {}
    for line in sys.stdin:
        task = json.loads(line)
        if not task:
            print(json.dumps({"package": losses.__file__}), flush=True)
            continue
        loss, n, device = OURS[task["name"]], task["n"], task["device"]
        if (n, device) not in batches:
            batches = {(n, device): batch(n, device)}
        z, y, b = batches[n, device]
        times = [timed(loss, z, y, b, device)]
        while sum(times) < task["seconds"]:
            times.append(timed(loss, z, y, b, device))
        assert z.grad is not None
        results = [float(loss(z, y, b).detach()), float(z.grad.norm()), float(z.grad[0, 0])]
        print(json.dumps({"seconds": statistics.median(times), "results": results}), flush=True)


def run(name: str, n: int, seconds: float, device: str) -> dict[str, float] | None:
    """Return what `measure` finds in a new process; None if that fails."""
    command = [sys.executable, "-m", "benchmarks.losses", "--one", name]
    command += ["--sizes", str(n), "--seconds", str(seconds), "--device", device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        messages = done.stderr.strip().splitlines() or ["killed"]
        print(f"  {name} at {n}: {messages[-1][:200]}", file=sys.stderr)
        return None
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(
    results: dict[tuple[str, int], tuple[float, float]],
    names: list[str],
    sizes: list[int],
    markdown: bool,
) -> str:
    """Return a table of (seconds, bytes) by contender and size."""
    lines = []
    header = ["forward + backward", *(f"N={n}" for n in sizes)]
    body = []
    for name in names:
        cells = []
        for n in sizes:
            seconds, extra = results.get((name, n), (math.nan, math.nan))
            memory = "" if math.isnan(extra) else f", {extra / 2**20:.0f} MiB"
            cells.append("–" if math.isnan(seconds) else f"{seconds * 1e3:.4g} ms{memory}")
        body.append([name, *cells])
    if markdown:
        lines += ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in body]
    else:
        widths = [max(len(row[i]) for row in [header, *body]) for i in range(len(header))]
        lines += [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))
            for row in [header, *body]
        ]
    return "\n".join(lines)


def targets(
    results: dict[tuple[str, int], tuple[float, float]],
) -> list[tuple[str, float, str, bool]]:
    """Return (what, measured ratio, target, met) for the sizes that were run."""
    rows: list[tuple[str, float, str, bool]] = []

    def ratio(what: str, above: tuple[str, int], below: tuple[str, int], least: float) -> None:
        if above in results and below in results:
            value = results[above][0] / results[below][0]
            rows.append((what, value, f"≥ {least:g}", value >= least))

    ours, dense = "ε-SupInfoNCE", "ε-SupInfoNCE, dense autograd"
    ratio("N=256: dense / ours", (dense, 256), (ours, 256), 1)
    ratio("N=4096: dense / ours", (dense, 4096), (ours, 4096), 2.5)
    ratio(
        "N=4096: pytorch-metric-learning / our SupCon",
        ("SupCon, pytorch-metric-learning", 4096),
        ("SupCon", 4096),
        3,
    )
    ratio(
        "N=4096: pytorch-metric-learning / ours",
        ("SupCon, pytorch-metric-learning", 4096),
        (ours, 4096),
        3,
    )
    ratio("N=16384: three products / ours", ("three products alone", 16384), (ours, 16384), 0.5)
    ratio("N=256: dense FairKL / ours", ("FairKL, dense autograd", 256), ("FairKL", 256), 1)
    ratio("N=16384: dense FairKL / ours", ("FairKL, dense autograd", 16384), ("FairKL", 16384), 20)
    if (ours, 16384) in results:
        extra = results[(ours, 16384)][1] / 2**20
        rows.append(("N=16384: extra MiB of ours", extra, "< 512", extra < 512))
    if ("FairKL", 4096) in results and ("FairKL", 65536) in results:
        growth = results[("FairKL", 65536)][0] / results[("FairKL", 4096)][0] / 16
        rows.append(("FairKL 4096 → 65536: growth / linear", growth, "≤ 1.3", growth <= 1.3))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument(
        "--rounds",
        type=int,
        default=4,
        help="processes for each contender and size (one where it takes minutes)",
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of repetition in each process")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps, …")
    parser.add_argument(
        "--compiled", action="store_true", help="through torch.compile too; always, on a GPU"
    )
    parser.add_argument(
        "--beside", metavar="REV", help="compare our losses with those of another commit"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        raise SystemExit(
            f"--device {options.device} cannot be used here: {str(error).splitlines()[0]}"
        ) from error
    if options.one:
        print(json.dumps(measure(options.one, options.sizes[0], options.seconds, options.device)))
    elif options.serve:
        serve()
    elif options.beside:
        compare_with(options)
    else:
        compare_contenders(options)


def compare_with(options: Any) -> None:
    """Print the ratios of ours here and at another commit, and their median at each size."""
    print(header(options.device))
    ratios: dict[int, list[float]] = {}
    for found in compare(
        options.beside, list(OURS), options.sizes, options.device, options.rounds, options.seconds
    ):
        print(found)
        ratios.setdefault(found.n, []).append(found.ratio)
    for n, values in ratios.items():
        print(
            f"N={n}: here / {options.beside} {statistics.median(values):.3f}, the worst loss "
            f"{max(values):.3f}"
        )


def compare_contenders(options: Any) -> None:
    """Print the table, and on a CPU the targets."""
    contenders = CONTENDERS
    if options.compiled or options.device != "cpu":
        contenders = CONTENDERS | COMPILED
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for n in options.sizes:
        for r in range(options.rounds):
            for name, (_, largest) in contenders.items():
                slow = n > 16384 or (n > 4096 and largest <= 16384)  # minutes: once is enough
                if n > largest or (slow and r and options.device == "cpu"):
                    continue
                result = run(name, n, options.seconds, options.device)
                if result is not None:
                    found.setdefault((name, n), []).append(result)
        print(f"N={n} measured", file=sys.stderr)
    results = {}
    for key, values in found.items():
        seconds = statistics.median(r["seconds"] for r in values)
        results[key] = (seconds, statistics.median(r["bytes"] for r in values))
    print(header(options.device))
    print(table(results, list(contenders), options.sizes, options.markdown))
    if options.device != "cpu":
        return  # the targets are for a CPU
    bullet = "-" if options.markdown else " "
    for what, value, target, met in targets(results):
        missed = "" if met else ": MISSED"
        print(f"{bullet} {what}: {value:.2f} (target {target}{missed})")


def header(device: str) -> str:
    """Return where and what was measured."""
    where = f"{torch.get_num_threads()} threads"
    if device.startswith("cuda"):
        where = torch.cuda.get_device_name(device)
    elif device != "cpu":
        where = device
    return f"{where}, torch {torch.__version__}, D={D}, {CLASSES} classes and biases, float32"


if __name__ == "__main__":
    main()
