"""Images per second of training, ours against stock PyTorch loops of the same networks and losses.

    python -m benchmarks.training                 SimpleConvNet(7) and ResNet-18, about ten minutes
    python -m benchmarks.training --case resnet18 --rounds 3
    python -m benchmarks.training --beside v1.0 --contenders fairmargin    against another commit
    python -m benchmarks.training --scaling       ours at several batch sizes, threads and processes
    python -m benchmarks.training --sharing       ours beside 0, 1 and 4 busy processes

Contenders, each in a process of its own, a few steps in turn, medians over rounds:
  fairmargin    the engine behind `fairmargin train`: loader, losses, online probe, metrics
  by hand       the same networks, losses and batches in a plain loop: what the engine itself costs
  in memory     a stock loop: nn.Conv2d, dense N×N losses, normalized images waiting in memory
  per image     the same, with images transformed one by one in two worker processes
  --beside REV  another commit's fairmargin, from a git worktree that is removed afterwards
Images are random numbers, which are as fast as digits. Run it on an idle machine.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from benchmarks.beside import ROOT, worktree
from benchmarks.losses import dense_eps_supinfonce, dense_fairkl
from fairmargin import config as configuration
from fairmargin import losses
from fairmargin.batch import DataInfo
from fairmargin.bias.visible import visible_bias
from fairmargin.data import ArraySplit, Data
from fairmargin.data.bias import count_cells
from fairmargin.data.split import Split
from fairmargin.data.views import HALF, plain
from fairmargin.loop import fit
from fairmargin.networks import Encoder, build_encoder
from fairmargin.networks.convolution import Conv2d
from fairmargin.networks.native.library import VARIABLE
from fairmargin.runs import build
from fairmargin.runs.folder import RunFolder
from fairmargin.runs.progress import Display
from fairmargin.runs.recorder import Recorder
from fairmargin.runtime import distributed
from fairmargin.runtime.memory import keep_memory
from fairmargin.runtime.signals import Request
from fairmargin.runtime.start import SPINS, WAITING

SAMPLES, CLASSES, FOREVER = 5120, 10, 1 << 30
ALPHA, WEIGHT, RATE, DECAY = 0.1, 1.0, 1e-3, 1e-4


@dataclass(frozen=True)
class Case:
    """A network to train, on images of `side` × `side` pixels.

    Args:
        steps: in a row, before the next contender's turn.
    """

    network: str
    side: int
    steps: int

    def encoder(self) -> Encoder:
        """Return the network as the method builds it."""
        if "simple" in self.network:
            return build_encoder(self.network, last_activation="tanh")
        return build_encoder(self.network)


CASES = {"simple-conv-7": Case("simple-conv-7", 28, 2), "resnet18": Case("resnet18", 32, 8)}
# Trains so many steps.
Steps = Callable[[int], None]


def random_data(side: int) -> Data:
    """Return random images with labels, and biases that agree with them for nine in ten."""
    numbers = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=numbers)
    bias = torch.where(torch.rand(SAMPLES, generator=numbers) < 0.9, labels, labels.roll(1))
    pixels = torch.randint(256, (SAMPLES, 3, side, side), dtype=torch.uint8, generator=numbers)
    names = tuple(map(str, range(CLASSES)))
    counts = count_cells(labels, bias, CLASSES, CLASSES)
    info = DataInfo("random", names, names, (3, side, side), counts)
    train = ArraySplit(pixels, labels, bias)
    few = train.subset(torch.arange(64))
    return Data(train, few, few, info, plain(*HALF), plain(*HALF))


def fairmargin(case: Case, batch: int) -> Steps:
    """Return the loop of run.py, without evaluation and checkpoints, as the others have none."""
    keep_memory()
    data = random_data(case.side)
    settings = configuration.load(
        dataset="biased-mnist",
        network=case.network,
        method="eps-supinfonce+fairkl",
        overrides=[f"train.batch_size={batch}", "evaluate.every=0", "train.checkpoint_seconds=1e9"],
    )
    training = build.training(settings, build.method(settings, data), data, torch.device("cpu"))
    folder = RunFolder(Path(tempfile.mkdtemp()) / "run")
    folder.create()
    journal = Recorder(folder, settings, data, training, Display(settings, training), Request())
    journal.begin(["benchmarks.training"], visible_bias(settings, data))

    def steps(number: int) -> None:
        fit(training, FOREVER, steps=training.step + number, after_step=journal.after_step)

    return steps


def by_hand(case: Case, batch: int) -> Steps:
    """Return a plain loop over our networks, losses and batches."""
    keep_memory()
    data = random_data(case.side)
    encoder = case.encoder()
    eps = partial(losses.eps_supinfonce, epsilon=0.25)
    batches = shuffled(
        data.train, batch, lambda index: data.train_views(data.train.images(index), None)
    )
    return plain_loop(encoder, eps, partial(losses.fairkl, negatives=True), batches)


def in_memory(case: Case, batch: int) -> Steps:
    """Return a stock loop over normalized images that wait in memory."""
    data = random_data(case.side)
    images = data.train_views(data.train.images(torch.arange(SAMPLES)), None)
    encoder = stock(case)
    batches = shuffled(data.train, batch, lambda index: images[index])
    return plain_loop(encoder, lambda z, y: dense_eps_supinfonce(z, y, y), dense_fairkl, batches)


def per_image(case: Case, batch: int) -> Steps:
    """Return a stock loop over images that worker processes transform one by one."""
    loader = DataLoader(
        OneByOne(random_data(case.side)),
        batch,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
    )

    def batches() -> Iterator[tuple[Tensor, ...]]:
        while True:
            yield from loader

    return plain_loop(
        stock(case), lambda z, y: dense_eps_supinfonce(z, y, y), dense_fairkl, batches()
    )


def stock(case: Case) -> Encoder:
    """Return the network with PyTorch's own convolutions and batch norms."""
    encoder = case.encoder()
    for layer in encoder.modules():
        if isinstance(layer, Conv2d):
            layer.algorithm = "direct"
    return encoder


class OneByOne(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Array to Pillow image to tensor to normalized tensor, as the usual transforms do."""

    def __init__(self, data: Data) -> None:
        self.split = data.train
        self.pixels = data.train.images(torch.arange(SAMPLES)).permute(0, 2, 3, 1).numpy()

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        image = Image.fromarray(self.pixels[i])
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255
        bias = self.split.bias
        assert bias is not None
        return (x - 0.5) / 0.5, self.split.labels[i], bias[i]


def shuffled(
    split: Split, batch: int, images: Callable[[Tensor], Tensor]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (images, labels, bias) of random batches without end.

    Args:
        images: from the positions of some samples to their images.
    """
    assert split.bias is not None
    while True:
        order = torch.randperm(SAMPLES)
        for index in order.split(batch):
            yield images(index), split.labels[index], split.bias[index]


def plain_loop(
    encoder: Encoder,
    eps: Callable[[Tensor, Tensor], Tensor],
    fairkl: Callable[[Tensor, Tensor, Tensor], Tensor],
    batches: Iterator[tuple[Tensor, ...]],
) -> Steps:
    """Return a training loop without an engine: encoder, both losses, and an online probe.

    Args:
        eps: the contrastive loss of features and labels.
        fairkl: the loss of features, labels and biases.
        batches: of images, labels and biases, without end.
    """
    probe = nn.Linear(encoder.dim, CLASSES)
    main = torch.optim.Adam(encoder.parameters(), lr=RATE, weight_decay=DECAY)
    second = torch.optim.Adam(probe.parameters(), lr=RATE)

    def steps(number: int) -> None:
        for _ in range(number):
            x, y, b = next(batches)
            h = encoder(x)
            loss = ALPHA * eps(h, y) + WEIGHT * fairkl(h, y, b)
            main.zero_grad()
            loss.backward()
            main.step()
            probed = F.cross_entropy(probe(F.normalize(h.detach(), dim=1)), y)
            second.zero_grad()
            probed.backward()
            second.step()

    return steps


CONTENDERS: dict[str, Callable[[Case, int], Steps]] = {
    "fairmargin": fairmargin,
    "compiled kernels": fairmargin,
    "by hand": by_hand,
    "in memory": in_memory,
    "per image": per_image,
}


def multiplications(case: Case) -> int:
    """Return the multiplications of one image's forward pass, by direct convolutions."""
    encoder, found = stock(case), 0

    def count(layer: nn.Conv2d, _: tuple[Tensor, ...], y: Tensor) -> None:
        nonlocal found
        found += y.numel() * layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1]

    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(count)  # type: ignore[arg-type]
    with torch.no_grad():
        encoder.eval()(torch.zeros(1, 3, case.side, case.side))
    return found


def peak() -> float:
    """Return the operations per second of the machine's best matrix product."""
    a, times = torch.randn(2048, 2048), []
    for _ in range(8):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return float(2 * 2048**3 / min(times))


def serve(name: str, case: Case, batch: int) -> None:
    """Run the contender's process: a number of steps comes in, seconds and peak memory go out."""
    before = memory()
    steps = CONTENDERS[name](case, batch)
    steps(2)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        steps(int(line))
        print(json.dumps([time.perf_counter() - start, memory() - before]), flush=True)


def memory() -> float:
    """Return the peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Contender:
    """The process of one contender, seen from outside.

    Args:
        tree: folder of the source tree that it runs; this one by default.
        environment: variables that it starts with, besides those of this process.
    """

    def __init__(
        self,
        name: str,
        case: str,
        batch: int,
        *,
        tree: Path = ROOT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "benchmarks.training", "--serve", name]
        command += ["--case", case, "--batch", str(batch)]
        if environment is None:
            ours = ("fairmargin", "compiled kernels", "by hand")
            environment = settings_of(tree) if name in ours else {}
            native = "1" if name == "compiled kernels" else "0"
            environment = {**environment, VARIABLE: native}
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), **environment}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env=environment,
        )
        self.seconds: list[float] = []
        self.memory = 0.0
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{name} did not start")

    def turn(self, steps: int) -> None:
        """Let it train so many steps, and note the seconds of a step."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        seconds, self.memory = json.loads(self.process.stdout.readline())
        self.seconds.append(seconds / steps)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def settings_of(tree: Path) -> dict[str, str]:
    """Return what the `fairmargin` command of a source tree sets before it imports PyTorch.

    It is what it sets on a quiet machine: the benchmark makes the machine's load itself, so that
    does not count. Trees without start.py set nothing.
    """
    package = tree / "src" / "fairmargin"
    if (package / "runtime" / "start.py").exists():
        module = "fairmargin.runtime"
    elif (package / "start.py").exists():  # trees from before the package runtime
        module = "fairmargin"
    else:
        return {}
    script = f"import json, os; from {module} import start; start.load = lambda: 0.0; "
    script += "print(json.dumps(start.settings(os.environ)))"
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def compare(
    name: str, batch: int, rounds: int, contenders: list[str], beside: dict[str, Path]
) -> None:
    """Print a table of the contenders.

    Args:
        name: of the case.
        beside: other source trees whose fairmargin is measured too, {name: folder}.
    """
    case = CASES[name]
    running = {contender: Contender(contender, name, batch) for contender in contenders}
    running |= {
        other: Contender("fairmargin", name, batch, tree=tree) for other, tree in beside.items()
    }
    best = 0.0
    for _ in range(rounds):
        for one in running.values():
            one.turn(case.steps)
        best = max(best, peak())
    step = {contender: statistics.median(one.seconds) for contender, one in running.items()}
    nominal = 2 * 3 * multiplications(case)  # forward, and two products of that size backward
    print(
        f"\n{name}, {case.side}×{case.side}, batch {batch}, {torch.get_num_threads()} threads, "
        f"{rounds} rounds; ",
        end="",
    )
    print(f"best matrix product {best / 1e9:.0f} GFLOP/s\n")
    print(
        "| | images/s | fairmargin is faster by | direct convolutions it stands for, of peak | "
        "peak memory |"
    )
    print("|---|---|---|---|---|")
    for contender, one in running.items():
        one.close()
        rate = batch / step[contender]
        ratio = statistics.median(
            a / b for a, b in zip(one.seconds, running["fairmargin"].seconds, strict=True)
        )
        print(
            f"| {contender} | {rate:.1f} | {ratio:.2f} | {rate * nominal / best:.0%} | "
            f"{one.memory:.0f} MiB |"
        )


def scaling(name: str, batches: list[int], rounds: int) -> None:
    """Print images per second of ours by batch size, for threads and processes."""
    print(f"\n{name}: images/s\n")
    print(f"| threads × processes | {' | '.join(f'batch {batch}' for batch in batches)} |")
    print(f"|---|{'---|' * len(batches)}")
    for threads, processes in ((1, 1), (2, 1), (1, 2)):
        cells = [f"{rate_of(name, batch, threads, processes, rounds):.0f}" for batch in batches]
        print(f"| {threads} × {processes} | {' | '.join(cells)} |", flush=True)


def sharing(name: str, batch: int, rounds: int) -> None:
    """Print images per second beside 0, 1 and 4 busy processes, by threads and by how they wait."""
    common = {key: value for key, value in settings_of(ROOT).items() if key not in WAITING}
    ways: dict[str, dict[str, str]] = {
        "1 thread": {"OMP_NUM_THREADS": "1"},
        "2 threads that sleep": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
        "2 threads that spin for a moment": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": SPINS},
        "2 threads that spin": {"OMP_NUM_THREADS": "2"},
    }
    running = {
        way: Contender("fairmargin", name, batch, environment=common | own)
        for way, own in ways.items()
    }
    rates: dict[str, list[float]] = {contender: [] for contender in running}
    numbers = (0, 1, 4)
    for number in numbers:
        with busy(number):
            for one in running.values():
                one.seconds.clear()
            for _ in range(rounds):
                for one in running.values():
                    one.turn(1)
        for contender, one in running.items():
            rates[contender].append(batch / statistics.median(one.seconds))
    print(f"\n{name}, batch {batch}, {rounds} rounds: images/s beside busy processes\n")
    print(f"| | {' | '.join(map(str, numbers))} |\n|---|{'---|' * len(numbers)}")
    for contender, one in running.items():
        one.close()
        print(f"| {contender} | {' | '.join(f'{rate:.0f}' for rate in rates[contender])} |")


def where_time_goes(name: str, batch: int, shown: int = 12) -> None:
    """Print the operations that take most of a training step, by PyTorch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    steps = fairmargin(CASES[name], batch)
    steps(1)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        steps(2)
    rows = sorted(found.key_averages(), key=lambda row: -row.self_cpu_time_total)
    whole = sum(row.self_cpu_time_total for row in rows)
    print(f"\n{name}, batch {batch}, {torch.get_num_threads()} threads, one step\n")
    print("| operation | share of the time | calls |\n|---|---|---|")
    for row in rows[:shown]:
        print(f"| {row.key} | {row.self_cpu_time_total / whole:.1%} | {row.count // 2} |")
    print(f"| all {len(rows)} | 100 % | {sum(row.count for row in rows) // 2} |")


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Keep so many processes busy inside the `with` block, each on one core."""
    # They end with this process too, however it ends.
    script = (
        "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10**6))"
    )
    others = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def rate_of(name: str, batch: int, threads: int, processes: int, rounds: int) -> float:
    """Return images per second of our loop, in so many threads and processes."""
    launcher: list[str] = []
    if processes > 1:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    command = [sys.executable, "-m", *launcher, "benchmarks.training", "--alone", "--case", name]
    options = ["--batch", str(batch), "--rounds", str(rounds)]
    environment = {**os.environ, **settings_of(ROOT), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, env=environment, check=True
    )
    return float(done.stdout.split()[-1])


def alone(case: Case, batch: int, rounds: int) -> None:
    """Time our loop by itself; under torchrun all processes share the batch."""
    with distributed.processes(torch.device("cpu")):
        steps, seconds = fairmargin(case, batch), []
        steps(1)
        for _ in range(rounds):
            start = time.perf_counter()
            steps(2)
            seconds.append((time.perf_counter() - start) / 2)
        if distributed.is_first():
            print(batch / statistics.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, help="one of them; both by default")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument(
        "--beside", metavar="REV", help="also measure the fairmargin of this commit"
    )
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--sharing", action="store_true", help="beside 0, 1 and 4 busy processes")
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # So that busy processes and worktrees are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    names = [options.case] if options.case else list(CASES)
    if options.serve:
        serve(options.serve, CASES[names[0]], options.batch)
    elif options.alone:
        alone(CASES[names[0]], options.batch, options.rounds)
    elif options.profile:
        where_time_goes(names[0], options.batch)
    elif options.scaling:
        scaling(names[0], [64, 256, 1024], options.rounds)
    elif options.sharing:
        sharing(names[0], options.batch, options.rounds)
    else:
        chosen = ["fairmargin", *(one for one in options.contenders if one != "fairmargin")]
        with ExitStack() as stack:
            beside = {}
            if options.beside:
                tree = stack.enter_context(worktree(options.beside))
                beside[f"fairmargin at {options.beside}"] = tree
            for name in names:
                compare(name, options.batch, options.rounds, chosen, beside)


if __name__ == "__main__":
    main()
