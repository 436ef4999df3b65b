"""Many runs at a time give the same results as one after another, whatever is killed or stopped."""

import fcntl
import ipaddress
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fairmargin.runs.folder import Locked, RunFolder
from fairmargin.runtime import threads
from fairmargin.runtime.signals import Interrupted
from fairmargin.sweep import ray as engines
from fairmargin.sweep import tune as tuning
from fairmargin.sweep.compare import compare, summaries
from fairmargin.sweep.local import Local
from fairmargin.sweep.ray import Ray
from fairmargin.sweep.tune import Trial, tune
from tests.sweep.many import METHODS, SEEDS, SMALL, configs, needs_ray, posix, square

# Seconds to wait, long enough for busy machines.
PATIENCE = 200


def without_times(outcomes):
    return [(row.method, row.seeds, row.mean, row.std, row.failures) for row in summaries(outcomes)]


def weights(out):
    files = sorted(out.glob("*/seed-*/weights.safetensors"))
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


@dataclass
class Reference:
    out: Path
    outcomes: list

    def assert_same(self, out, outcomes):
        assert [(o.method, o.seed) for o in outcomes] == [(m, s) for m in METHODS for s in SEEDS]
        assert without_times(outcomes) == without_times(self.outcomes)
        assert weights(out) == weights(self.out)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """One run after another in this process, with one thread, as each of several workers has."""
    out = tmp_path_factory.mktemp("reference")
    with threads.one_thread():
        return Reference(out, compare(configs(), out))


class Signals:
    """Signals for the processes that train ce, once they have saved a few steps.

    Seed 0 gets SIGKILL, seed 1 SIGTERM.
    """

    def __init__(self, out):
        self.out, self.sent = out, {}
        chosen = ((0, signal.SIGKILL), (1, signal.SIGTERM))
        self.threads = [
            threading.Thread(target=self.send, args=each, daemon=True) for each in chosen
        ]
        for thread in self.threads:
            thread.start()

    def send(self, seed, number):
        folder = self.out / "ce" / f"seed-{seed}"
        end = time.monotonic() + PATIENCE
        while not any(int(path.stem[5:]) >= 5 for path in folder.glob("checkpoints/step-*.ckpt")):
            assert time.monotonic() < end
            time.sleep(0.002)
        process = int((folder / ".lock").read_text())
        assert process != os.getpid()
        os.kill(process, number)
        self.sent[seed] = (process, (folder / "result.json").exists())

    def assert_in_the_middle(self):
        for thread in self.threads:
            thread.join()
        assert sorted(self.sent) == [0, 1]
        assert not any(finished for _, finished in self.sent.values())
        dead, _ = self.sent[0]
        # Another process finished it.
        assert int((self.out / "ce" / "seed-0" / ".lock").read_text()) != dead


# Tasks that workers import.


def ill_fated(task):
    """Return, raise, exit or be killed, as the task says: "once" is killed the first time only."""
    folder, what = task
    if what == "fine":
        return Path.cwd(), os.environ.get("FAIRMARGIN_DATA"), torch.get_num_threads()
    if what == "raises":
        raise ValueError("three is not allowed")
    if what == "leaves":
        os._exit(7)
    if what == "killed" or not (folder / "mark").exists():
        (folder / "mark").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "in the end"


class Ladder:
    """A search for tune() without Optuna that keeps nothing on the disk."""

    def __init__(self, file, space, first, seed):
        self.first, self.done = first, []

    def next(self):
        return Trial(len(self.done), self.first | {"optimizer.lr": 1e-3 * (1 + len(self.done))})

    def tell(self, trial, value):
        self.done.append(Trial(trial.number, trial.settings, value))

    def finished(self):
        return list(self.done)


@posix
@pytest.mark.slow
class TestProcesses:
    def test_give_the_same_table_and_weights(self, reference, tmp_path):
        with threads.one_thread():
            outcomes = compare(configs(), tmp_path, engine=Local(2))
        reference.assert_same(tmp_path, outcomes)

    def test_one_that_is_killed_is_replaced_and_its_run_goes_on(self, reference, tmp_path, capfd):
        signals = Signals(tmp_path)
        with threads.one_thread():
            outcomes = compare(configs("train.checkpoint_seconds=0"), tmp_path, engine=Local(2))
        signals.assert_in_the_middle()
        said = capfd.readouterr()
        killed = "a worker was ended by SIGKILL (out of memory? Fewer jobs need less)"
        assert f"{killed}; its task begins again" in said.err
        for seed in (0, 1):
            assert f"ce, seed {seed}: continuing after step" in said.out
        reference.assert_same(tmp_path, outcomes)

    def test_each_has_its_fate_and_the_others_theirs(self, tmp_path, capfd):
        fates = ("fine", "raises", "once", "killed", "leaves", "fine")
        tasks = []
        for number, fate in enumerate(fates):
            (tmp_path / str(number)).mkdir()
            tasks.append((tmp_path / str(number), fate))
        before = torch.get_num_threads()
        torch.set_num_threads(4)
        try:
            found = dict(Local(2, retries=1).map(ill_fated, tasks))
        finally:
            torch.set_num_threads(before)
        assert found.keys() == set(range(6))
        fine = (Path.cwd(), os.environ.get("FAIRMARGIN_DATA"), 2)  # threads for each
        assert [found[0], found[2], found[5]] == [fine, "in the end", fine]
        assert (type(found[1]), str(found[1])) == (ValueError, "three is not allowed")
        assert "SIGKILL" in str(found[3])
        assert "attempt 2" in str(found[3])
        assert "exit code 7" in str(found[4])
        assert all(isinstance(found[number], ChildProcessError) for number in (3, 4))

    def test_search_several_methods_at_a_time(self, tmp_path):
        chosen = configs("train.epochs=1", seeds=(0,))
        options = {"trials": 2, "seeds": [0], "search": Ladder}
        said = []
        with threads.one_thread():
            alone = tune(chosen, tmp_path / "alone", **options)
            several = tune(
                chosen, tmp_path / "several", engine=Local(2), say=said.append, **options
            )
        assert [(t.method, t.trials, t.best) for t in several] == [
            (t.method, t.trials, t.best) for t in alone
        ]
        assert tuning.table(several).row_count == 2
        assert sorted(said) == [
            f"{method}: {tmp_path / 'several' / method / 'best.toml'}" for method in METHODS
        ]


@contextmanager
def started(out, *options):
    """Three very long runs, started from the command line."""
    words = ["compare", "--dataset", "planted", "--methods", "ce", "--seeds", "3"]
    words += ["--out", str(out)]
    for change in (*SMALL, "train.epochs=100_000"):
        words += ["--set", change]
    process = subprocess.Popen(
        [sys.executable, "-m", "fairmargin", *words, *options],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a process group, as a terminal's
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def under_way(out, process, seeds=(0, 1)):
    files = [out / "ce" / f"seed-{seed}" / "metrics.jsonl" for seed in seeds]
    end = time.monotonic() + PATIENCE
    while not all(file.exists() and file.stat().st_size for file in files):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.01)


def saved(out, seed):
    return len(list((out / "ce" / f"seed-{seed}").glob("checkpoints/step-*.ckpt")))


@posix
@pytest.mark.slow
class TestStop:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_every_run_under_way_is_saved(self, tmp_path, number):
        with started(tmp_path, "--jobs", "2") as process:
            under_way(tmp_path, process)
            if number == signal.SIGINT:
                os.killpg(process.pid, number)  # as Ctrl-C does
            else:
                process.send_signal(number)
            said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 128 + number, said
        assert "the same command goes on from there" in said
        assert "Traceback" not in said
        assert [saved(tmp_path, seed) for seed in (0, 1, 2)] == [1, 1, 0]

    def test_workers_whose_parent_is_killed_save_and_end(self, tmp_path):
        with started(tmp_path, "--jobs", "2") as process:
            under_way(tmp_path, process)
            process.kill()
            process.communicate(timeout=PATIENCE)  # until all have closed its output
        for seed in (0, 1):
            with RunFolder(tmp_path / "ce" / f"seed-{seed}").lock():
                pass
        assert [saved(tmp_path, seed) for seed in (0, 1, 2)] == [1, 1, 0]


@needs_ray
@pytest.mark.slow
def test_more_than_this_machine_has_is_refused_and_the_cluster_ended():
    ray = engines.import_ray()
    assert not ray.is_initialized()
    with pytest.raises(ValueError, match="lower --cpus or --gpus"):
        list(Ray(cpus=10_000).map(square, [1]))
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def cluster():
    """One for all tests: it takes longer to start than they do."""
    ray = engines.import_ray()
    ray.init("local", num_cpus=2, include_dashboard=False)
    yield ray
    ray.shutdown()


@needs_ray
@posix
@pytest.mark.slow
class TestRay:
    def test_a_cluster_of_its_own_listens_to_this_machine_alone(self, cluster):
        assert ipaddress.ip_address(cluster.util.get_node_ip_address()).is_loopback
        assert os.environ["RAY_AUTH_MODE"] == "token"

    def test_gives_the_same_table_and_weights_when_a_worker_is_killed(
        self, cluster, reference, tmp_path
    ):
        signals = Signals(tmp_path)
        outcomes = compare(configs("train.checkpoint_seconds=0"), tmp_path, engine=Ray())
        signals.assert_in_the_middle()
        reference.assert_same(tmp_path, outcomes)

    def test_a_stop_saves_what_is_under_way(self, cluster, tmp_path):
        chosen = configs("train.epochs=100_000", methods=("ce",), seeds=(0, 1, 2))

        def stop():
            while not all(
                (tmp_path / "ce" / f"seed-{seed}" / "metrics.jsonl").exists() for seed in (0, 1)
            ):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=stop, daemon=True)
        thread.start()
        with pytest.raises(Interrupted, match="the same command goes on") as stopped:
            compare(chosen, tmp_path, engine=Ray())
        thread.join()
        assert stopped.value.number == signal.SIGINT
        assert [saved(tmp_path, seed) for seed in (0, 1, 2)] == [1, 1, 0]
        assert cluster.is_initialized()  # it was not ours to end

    def test_an_exception_loses_no_other_task_and_workers_know_their_surroundings(
        self, cluster, monkeypatch, tmp_path
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FAIRMARGIN_DATA", "some/data")
        found = dict(Ray(cpus=2).map(ill_fated, [(tmp_path, fate) for fate in ("fine", "raises")]))
        assert found[0] == (tmp_path, str(tmp_path / "some" / "data"), 2)
        assert (type(found[1]), str(found[1])) == (ValueError, "three is not allowed")


@posix
def test_a_worker_of_ray_waits_for_the_lock_of_a_lost_one(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file = (tmp_path / ".lock").open("a+")
    fcntl.flock(file, fcntl.LOCK_EX)
    timer = threading.Timer(0.5, file.close)
    timer.start()
    monkeypatch.setattr(engines.threads, "use", lambda number: None)
    monkeypatch.setattr(engines.progress, "share_the_terminal", lambda: None)

    def writes(folder):
        with RunFolder(folder).lock():
            return "written"

    assert engines._serve(writes, tmp_path, Path.cwd(), 1, 0) == "written"
    file = (tmp_path / ".lock").open("a+")
    fcntl.flock(file, fcntl.LOCK_EX)
    monkeypatch.setattr(engines, "LEASE", 0.0)
    assert isinstance(engines._serve(writes, tmp_path, Path.cwd(), 1, 0), Locked)
    file.close()
