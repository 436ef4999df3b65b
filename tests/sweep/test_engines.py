"""Which engine runs tasks, and what becomes of errors."""

import importlib
import os
import signal
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fairmargin.cli.app import app
from fairmargin.runtime.limits import IMAGE
from fairmargin.runtime.signals import Interrupted
from fairmargin.sweep.base import check_shared, run_tasks
from fairmargin.sweep.engines import engine
from fairmargin.sweep.local import HERE, Local
from fairmargin.sweep.ray import (
    OLDEST,
    SEVERAL_MACHINES,
    Ray,
    _check_loopback,
    _variables,
    import_ray,
)
from tests.sweep.many import Backwards, needs_ray, no_threes, square


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
    def test_an_address_where_nothing_answers_is_an_error(self):
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
    def test_wrong_choices_are_errors_before_anything_runs(
        self, command, given, expected, tmp_path
    ):
        result = CliRunner().invoke(app, [command, "--out", str(tmp_path / "out"), *given])
        assert result.exit_code == 2
        assert expected in result.output
        assert not (tmp_path / "out").exists()

    def test_without_ray_the_message_says_what_to_install(self, monkeypatch, tmp_path):
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

    @pytest.mark.parametrize("version", ["2.40.0", "2.58.1", "1.13.0"])
    def test_a_ray_that_lets_everybody_in_is_refused(self, version, monkeypatch):
        real = importlib.import_module

        def old(name, *rest):
            return SimpleNamespace(__version__=version) if name == "ray" else real(name, *rest)

        monkeypatch.setattr(importlib, "import_module", old)
        with pytest.raises(ValueError, match=r"ask for no token; .*needs 2\.59 or newer"):
            engine("ray")

    def test_the_floor_of_ray_is_that_of_the_extra(self):
        project = Path(__file__).parents[2] / "pyproject.toml"
        extras = tomllib.loads(project.read_text("utf-8"))["project"]["optional-dependencies"]
        assert extras["ray"] == [f"ray>={OLDEST[0]}.{OLDEST[1]}"]

    @pytest.mark.parametrize("address", [None, "head:6379"])
    def test_only_a_cluster_of_its_own_is_told_to_stay_on_this_machine(self, address, monkeypatch):
        for name in (SEVERAL_MACHINES, "RAY_AUTH_MODE", "RAY_ADDRESS", "RAY_COLOR_PREFIX"):
            # Set first, so that what the import sets is taken back.
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        new = SimpleNamespace(__version__="2.60.0")
        monkeypatch.setattr(importlib, "import_module", lambda name: new)
        import_ray(address)
        expected = ("0", "token") if address is None else (None, None)
        assert (os.environ.get(SEVERAL_MACHINES), os.environ.get("RAY_AUTH_MODE")) == expected

    @pytest.mark.parametrize("host", ["192.0.2.2", "10.0.0.1", "::"])
    def test_a_cluster_that_others_can_reach_is_refused(self, host):
        _check_loopback("127.0.0.1")
        _check_loopback("::1")
        with pytest.raises(ValueError, match="where other machines can reach it"):
            _check_loopback(host)

    def test_limits_reach_other_machines(self, monkeypatch):
        monkeypatch.setenv(IMAGE[0], "200")
        assert _variables()[IMAGE[0]] == "200"

    def test_torchrun_is_refused(self, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        for chosen in (Local(2), Ray()):
            with pytest.raises(ValueError, match="leave one of the two out"):
                list(chosen.map(square, [1]))


class TestOneAfterAnother:
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


class TestRunTasks:
    def test_one_after_another_an_error_ends_all(self):
        asked = []

        def noted(number):
            asked.append(number)
            return no_threes(number)

        with pytest.raises(ValueError, match="three"):
            list(run_tasks(HERE, noted, [1, 3, 2]))
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


def test_a_folder_that_is_not_shared_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="storage that all machines share"):
        check_shared(tmp_path / "elsewhere")
