"""Many runs at a time: the same results as one after another, whatever is killed, fails or is stopped on the way."""

import fcntl
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.loop import Diverged
from fairmargin.methods.base import Unsuited
from fairmargin.runs.folder import Locked, RunFolder
from fairmargin.runtime import threads
from fairmargin.runtime.files import CheckpointError, DamagedCheckpoint
from fairmargin.runtime.signals import Interrupted, stop_requests
from fairmargin.sweep import compare as comparing
from fairmargin.sweep import ray as engines
from fairmargin.sweep import tune as tuning
from fairmargin.sweep.base import check_shared, run_tasks
from fairmargin.sweep.compare import compare, summaries
from fairmargin.sweep.engines import engine
from fairmargin.sweep.local import HERE, Local
from fairmargin.sweep.ray import Ray
from fairmargin.sweep.tune import Trial, tune
from fairmargin.sweep.workers import portable

SMALL = [
    "data.train=80",
    "data.test=32",
    "train.epochs=3",
    "train.batch_size=8",
    "train.log_steps=2",
    "train.device=cpu",
    "evaluate.classifiers=['own']",
    "evaluate.resamples=1",
]
METHODS, SEEDS = ("ce", "supcon"), (0, 1)
PATIENCE = 200  # seconds, for machines that do other things too
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra fairmargin[ray]")
posix = pytest.mark.skipif(os.name != "posix", reason="sends signals")


def configs(*changes, methods=METHODS, seeds=SEEDS):
    make = lambda method, seed: configuration.load(
        dataset="planted", method=method, seed=seed, overrides=[*SMALL, *changes]
    )
    return [make(method, seed) for method in methods for seed in seeds]


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
    """One run after another in this process; with one thread, as many as each of several workers has."""
    out = tmp_path_factory.mktemp("reference")
    with threads.one_thread():
        return Reference(out, compare(configs(), out))


class Signals:
    """For the processes that train ce, once they have saved a few steps: SIGKILL with seed 0, SIGTERM with seed 1."""

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
        assert (
            int((self.out / "ce" / "seed-0" / ".lock").read_text()) != dead
        )  # somebody else finished it


# Tasks that workers import.


def square(number):
    return number * number


def no_threes(number):
    if number == 3:
        raise ValueError("three is not allowed")
    return number


def ill_fated(task):
    """What it is told to do: if "once", only if it has not been done yet."""
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
    """A search for tune() without Optuna; nothing of it is on the disk, so it begins again after a stop."""

    def __init__(self, file, space, first, seed):
        self.first, self.done = first, []

    def next(self):
        return Trial(len(self.done), self.first | {"optimizer.lr": 1e-3 * (1 + len(self.done))})

    def tell(self, trial, value):
        self.done.append(Trial(trial.number, trial.settings, value))

    def finished(self):
        return list(self.done)


@dataclass
class Backwards:
    """Stands for workers: does the last task first, in this process."""

    alone = False
    asked: list = field(default_factory=list)

    def map(self, function, tasks):
        for index, task in reversed(list(enumerate(tasks))):
            self.asked.append(task)
            try:
                yield index, function(task)
            except Exception as error:
                yield index, error


class TestChoice:
    def test_by_name(self):
        assert engine("local") == Local(1)
        assert engine("local", jobs=4) == Local(4)
        assert HERE.alone
        assert not Local(2).alone

    @needs_ray
    def test_ray_by_name(self):
        assert engine("ray", address="a:1", cpus=2, gpus=0.5) == Ray("a:1", 2, 0.5)

    @needs_ray
    def test_an_address_where_nobody_answers_is_said_so(self):
        with pytest.raises(
            ValueError, match=r"no Ray cluster at 127\.0\.0\.1:1 .*refused.*leave --address out"
        ):
            list(Ray("127.0.0.1:1").map(square, [1]))

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (["--engine", "rai"], "did you mean 'ray'"),
            (["--jobs", "0"], "jobs must be at least 1"),
            (["--cpus", "2"], "belong to --engine ray"),
            (["--address", "auto"], "belong to --engine ray"),
            (["--engine", "ray", "--jobs", "2"], "say what a run needs with --cpus and --gpus"),
        ],
    )
    @pytest.mark.parametrize("command", ["compare", "tune"])
    def test_wrong_choices_are_said_before_anything_runs(self, command, given, expected, tmp_path):
        result = CliRunner().invoke(app, [command, "--out", str(tmp_path / "out"), *given])
        assert result.exit_code == 2
        assert expected in result.output
        assert not (tmp_path / "out").exists()

    def test_without_ray_one_sentence_says_what_to_install(self, monkeypatch, tmp_path):
        real = importlib.import_module

        def missing(name, *rest):
            if name == "ray":
                raise ModuleNotFoundError("No module named 'ray'")
            return real(name, *rest)

        monkeypatch.setattr(importlib, "import_module", missing)
        result = CliRunner().invoke(
            app, ["compare", "--engine", "ray", "--out", str(tmp_path / "out")]
        )
        assert result.exit_code == 2
        assert '--engine ray needs an extra package: pip install "fairmargin[ray]"' in result.output

    def test_torchrun_has_processes_of_its_own(self, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        for chosen in (Local(2), Ray()):
            with pytest.raises(ValueError, match="leave one of the two out"):
                list(chosen.map(square, [1]))


class TestAlone:
    def test_tasks_are_taken_one_at_a_time_and_errors_are_yielded(self):
        taken = []

        def tasks():
            for number in (1, 3, 2):
                taken.append(number)
                yield number

        found = HERE.map(no_threes, tasks())
        assert next(found) == (0, 1)
        assert taken == [1]
        index, error = next(found)
        assert (index, str(error)) == (1, "three is not allowed")
        assert list(found) == [(2, 2)]

    def test_an_interruption_is_raised(self):
        def stopped(task):
            raise Interrupted("stopped at step 3", signal.SIGTERM)

        with pytest.raises(Interrupted, match="step 3"):
            list(HERE.map(stopped, [1, 2]))


class TestCarryOut:
    def test_alone_an_error_ends_all(self):
        asked = []
        with pytest.raises(ValueError, match="three"):
            list(
                run_tasks(HERE, lambda number: asked.append(number) or no_threes(number), [1, 3, 2])
            )
        assert asked == [1, 3]

    def test_beside_others_the_rest_finishes_and_then_the_first_is_raised(self):
        said, found = [], []

        def fails(number):
            if number > 2:
                raise ValueError(f"no {number}")
            return number

        with pytest.raises(ValueError, match="no 3"):
            found.extend(run_tasks(Backwards(), fails, [1, 3, 4, 2], say=said.append))
        assert found == [(3, 2), (0, 1)]
        assert said == [
            "task 2 failed, the others go on: no 4",
            "task 1 failed, the others go on: no 3",
        ]

    def test_expected_kinds_are_results(self):
        (_, (index, error), _) = run_tasks(HERE, no_threes, [1, 3, 2], expected=(ValueError,))
        assert index == 1
        assert isinstance(error, ValueError)


class TestComparison:
    """Without training: what compare() makes of answers that come in another order."""

    @pytest.fixture
    def run(self, monkeypatch):
        def run(config, folder, *, command):
            if config.method.name == "simclr":
                raise Unsuited("simclr compares views")
            if (config.method.name, config.seed) == ("supcon", 1):
                raise Diverged("step 3: the loss is nan")
            if config.method.name == "gce":
                raise OSError(f"no room for seed {config.seed}")
            return type("Record", (), {"result": {"seed": config.seed}})

        monkeypatch.setattr(comparing, "run", run)

    def test_outcomes_are_in_the_order_of_the_configurations(self, run, tmp_path):
        said = []
        chosen = configs(methods=("ce", "simclr", "supcon"))
        alone = compare(chosen, tmp_path, go_on=True)
        several = compare(chosen, tmp_path, go_on=True, engine=Backwards(), say=said.append)
        assert [(o.method, o.seed, o.result, o.refused) for o in several] == [
            ("ce", 0, {"seed": 0}, False),
            ("ce", 1, {"seed": 1}, False),
            ("simclr", 0, None, True),  # once, not for each seed
            ("supcon", 0, {"seed": 0}, False),
            ("supcon", 1, None, False),
        ]
        assert several == alone
        assert said[:2] == ["[1/6] supcon, seed 1", "step 3: the loss is nan"]

    def test_who_names_a_method_that_does_not_suit_hears_of_it_at_the_end(self, run, tmp_path):
        backwards = Backwards()
        with pytest.raises(Unsuited):
            compare(configs(methods=("simclr", "ce")), tmp_path, engine=backwards)
        assert len(backwards.asked) == 4

    def test_other_errors_wait_for_the_rest(self, run, tmp_path):
        backwards = Backwards()
        with pytest.raises(OSError, match="no room for seed 0"):
            compare(configs(methods=("gce", "ce")), tmp_path, engine=backwards)
        assert len(backwards.asked) == 4

    def test_workers_get_absolute_folders_and_outcomes_keep_those_that_were_given(
        self, run, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        backwards = Backwards()
        (outcome,) = compare(configs(methods=("ce",), seeds=(0,)), Path("runs"), engine=backwards)
        assert backwards.asked[0].out == tmp_path / "runs"
        assert outcome.folder == Path("runs/ce/seed-0")


def test_a_folder_that_is_not_shared_is_said_so(tmp_path):
    with pytest.raises(ValueError, match="storage that all machines share"):
        check_shared(tmp_path / "elsewhere")


class TestExceptionsTravel:
    def test_interrupted_keeps_its_number(self):
        again = pickle.loads(pickle.dumps(Interrupted("stopped at step 3", 15)))
        assert (str(again), again.number) == ("stopped at step 3", 15)

    def test_what_cannot_be_sent_becomes_its_nearest_kind(self):
        sent = portable(DamagedCheckpoint(Path("a.ckpt"), "it is empty"))
        assert type(sent) is CheckpointError
        assert str(pickle.loads(pickle.dumps(sent))) == "a.ckpt cannot be used: it is empty"

        class Local(ValueError):
            pass

        assert type(portable(Local("here"))) is ValueError

    def test_the_traceback_comes_along(self):
        try:
            no_threes(3)
        except ValueError as error:
            sent = pickle.loads(pickle.dumps(portable(error)))
        assert "in no_threes" in sent.__notes__[0]


def test_a_task_that_cannot_be_sent_is_said_so():
    with pytest.raises(TypeError, match=r"functions and classes of a module.*jobs=1"):
        list(Local(2).map(lambda task: task, [1]))


def test_a_request_to_a_worker_reaches_its_runs_and_the_next_ones():
    with stop_requests() as worker:
        with stop_requests() as run:
            assert run is worker
            signal.raise_signal(signal.SIGTERM)
        with stop_requests() as following:
            assert following
    with stop_requests() as later:
        assert not later


def test_a_request_while_a_run_concludes_lets_it_finish_and_starts_no_other():
    begun, finished = [], []

    def conclude(task):
        begun.append(task)
        signal.raise_signal(signal.SIGINT)  # heard by nobody inside: the last step is over
        return task

    with pytest.raises(Interrupted, match="the same command goes on") as error:
        finished.extend(found for _, found in Local().map(conclude, [1, 2]))
    assert (begun, finished, error.value.number) == ([1], [1], signal.SIGINT)


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
        assert (
            "a worker was ended by SIGKILL (out of memory? Fewer jobs need less); its task begins again"
            in said.err
        )
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
    """Three runs that take far too long, from the command line."""
    changes = [word for change in (*SMALL, "train.epochs=100_000") for word in ("--set", change)]
    words = [
        "compare",
        "--dataset",
        "planted",
        "--methods",
        "ce",
        "--seeds",
        "3",
        "--out",
        str(out),
        *changes,
    ]
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
