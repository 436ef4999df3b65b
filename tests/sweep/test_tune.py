"""The search for settings: what it looks at, how it goes on after a stop, what it leaves."""

import importlib
import json
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.loop import Diverged
from fairmargin.methods import METHODS
from fairmargin.methods.base import Unsuited
from fairmargin.methods.card import Between, OneOf
from fairmargin.methods.catalog import CARDS
from fairmargin.runs.folder import RunRecord
from fairmargin.sweep import tune as tuning
from fairmargin.sweep.search import OptunaSearch, Trial
from fairmargin.sweep.tune import space_of, tune, with_settings

SMALL = [
    "data.train=80",
    "data.test=32",
    "train.epochs=1",
    "evaluate.classifiers=['own']",
    "evaluate.resamples=1",
]
needs_optuna = pytest.mark.skipif(
    find_spec("optuna") is None, reason="needs the extra fairmargin[optuna]"
)


def config(method="ce", *changes):
    return configuration.load(dataset="planted", method=method, overrides=[*SMALL, *changes])


class Ladder:
    """A search without Optuna: learning rates 1e-4, 2e-4, … kept in a JSON file."""

    def __init__(self, file, space, first, seed):
        self.file, self.first = file, first
        self.state = json.loads(file.read_text()) if file.exists() else []

    def next(self):
        for number, (settings, value) in enumerate(self.state):
            if value is None:
                return Trial(number, settings)
        self.state.append([self.first | {"optimizer.lr": 1e-4 * (1 + len(self.state))}, None])
        self.file.write_text(json.dumps(self.state))
        return Trial(len(self.state) - 1, self.state[-1][0])

    def tell(self, trial, value):
        self.state[trial.number][1] = value
        self.file.write_text(json.dumps(self.state))

    def finished(self):
        return [
            Trial(n, settings, value)
            for n, (settings, value) in enumerate(self.state)
            if value is not None
        ]


class Unseen(dict):
    """A result in which the test set cannot be looked at."""

    def _refuse(self, *_):
        raise AssertionError("looked at the test accuracy")

    def __getitem__(self, key):
        return (
            self._refuse()
            if key in ("test", "extra_tests", "best-on-test")
            else super().__getitem__(key)
        )

    get = values = items = pop = _refuse


@dataclass
class Runs:
    """Stands for run(): validation accuracy by learning rate; the test accuracy is the opposite."""

    valid: dict = field(default_factory=lambda: {1e-4: 0.5, 2e-4: 0.9, 3e-4: 0.7, 4e-4: 0.9})
    asked: list = field(default_factory=list)
    stop_at: int | None = None

    def __call__(self, config, folder, *, command):
        if len(self.asked) == self.stop_at:
            raise KeyboardInterrupt
        self.asked.append((config, folder))
        value = self.valid[round(config.optimizer.lr, 6)] + 0.01 * config.seed
        if value < 0:
            raise Diverged("step 3: the loss is nan")
        last = Unseen(
            valid={"plain": 0.1, "cell-mean": value},
            test={"plain": 1 - value, "cell-mean": 1 - value},
        )
        best = Unseen(valid={"cell-mean": 1.0}, test={"cell-mean": 1.0})
        result = Unseen(records=Unseen({"last": last, "best-on-validation": best}), test={})
        return RunRecord(folder, {}, {}, {}, [], result)


def search(monkeypatch, out, runs, *, configs=None, trials=4, seeds=(0,), **named):
    monkeypatch.setattr(tuning, "run", runs)
    return tune(configs or [config()], out, trials=trials, seeds=seeds, search=Ladder, **named)


class TestChoice:
    def test_is_by_the_last_epochs_validation_accuracy_and_never_looks_at_the_test_set(
        self, monkeypatch, tmp_path
    ):
        """Reading a test accuracy of the result fails, and it would choose another trial."""
        (found,) = search(monkeypatch, tmp_path, Runs())
        # 0.9, the earlier of two; by test accuracy it would be trial 0.
        assert found.best.number == 1
        assert found.best.value == 0.9
        assert [trial.value for trial in found.trials] == [0.5, 0.9, 0.7, 0.9]

    def test_the_guard_itself_can_fail(self, monkeypatch, tmp_path):
        cheat = lambda record, name: float(record.result["records"]["last"]["test"][name])
        monkeypatch.setattr(tuning, "validation_accuracy", cheat)
        with pytest.raises(AssertionError, match="looked at the test accuracy"):
            search(monkeypatch, tmp_path, Runs())

    def test_uses_the_accuracy_of_the_configuration(self, monkeypatch, tmp_path):
        (found,) = search(
            monkeypatch, tmp_path, Runs(), configs=[config("ce", "evaluate.select=plain")]
        )
        assert found.accuracy == "plain"
        assert {trial.value for trial in found.trials} == {0.1}

    def test_is_by_the_mean_over_seeds(self, monkeypatch, tmp_path):
        runs = Runs()
        (found,) = search(monkeypatch, tmp_path, runs, trials=2, seeds=(0, 4))
        assert [trial.value for trial in found.trials] == pytest.approx([0.52, 0.92])
        folders = [folder.relative_to(tmp_path).as_posix() for _, folder in runs.asked]
        assert folders == [f"ce/trial-00{t}/seed-{s}" for t in (0, 1) for s in (0, 4)]
        assert [asked.seed for asked, _ in runs.asked] == [0, 4, 0, 4]

    def test_a_trial_that_diverges_is_the_worst_and_stops_nothing(self, monkeypatch, tmp_path):
        said = []
        (found,) = search(
            monkeypatch, tmp_path, Runs(valid={1e-4: -1, 2e-4: 0.4}), trials=2, say=said.append
        )
        assert [trial.value for trial in found.trials] == [0.0, 0.4]
        assert any("the loss is nan" in text for text in said)

    def test_without_validation_samples_there_is_nothing_to_choose_on(self, monkeypatch, tmp_path):
        with pytest.raises(
            ValueError, match=r"no validation samples.*--set data\.valid_fraction=0\.1"
        ):
            search(monkeypatch, tmp_path, Runs(), configs=[config("ce", "data.valid_fraction=0.0")])

    @pytest.mark.skipif("dfr" not in METHODS, reason="is about dfr")
    def test_a_method_that_has_learnt_the_validation_samples_is_not_judged_by_them(
        self, monkeypatch, tmp_path
    ):
        with pytest.raises(
            ValueError, match='dfr with source="valid" learns from the validation samples'
        ):
            search(monkeypatch, tmp_path, Runs(), configs=[config("dfr")])
        search(
            monkeypatch, tmp_path, Runs(), configs=[config("dfr", "method.source=train")], trials=1
        )


class TestBudget:
    def test_is_the_same_for_every_method(self, monkeypatch, tmp_path):
        runs = Runs()
        found = search(
            monkeypatch, tmp_path, runs, configs=[config("ce"), config("supcon")], trials=3
        )
        assert [(one.method, len(one.trials)) for one in found] == [("ce", 3), ("supcon", 3)]
        assert len(runs.asked) == 6

    def test_after_a_stop_finished_trials_are_not_repeated_and_the_begun_one_goes_on(
        self, monkeypatch, tmp_path
    ):
        first, second = Runs(stop_at=2), Runs()
        with pytest.raises(KeyboardInterrupt):
            search(monkeypatch, tmp_path, first)
        (found,) = search(monkeypatch, tmp_path, second)
        assert [folder.parent.name for _, folder in first.asked] == ["trial-000", "trial-001"]
        assert [folder.parent.name for _, folder in second.asked] == ["trial-002", "trial-003"]
        (whole,) = search(monkeypatch, tmp_path / "whole", Runs())
        assert (found.trials, found.best) == (whole.trials, whole.best)

    def test_more_trials_later_go_on_from_there(self, monkeypatch, tmp_path):
        search(monkeypatch, tmp_path, Runs(), trials=2)
        more = Runs()
        (found,) = search(monkeypatch, tmp_path, more, trials=3)
        assert (len(more.asked), len(found.trials)) == (1, 3)

    def test_of_a_longer_search_before_only_the_budget_counts(self, monkeypatch, tmp_path):
        search(monkeypatch, tmp_path, Runs(), trials=4)
        again = Runs()
        (found,) = search(monkeypatch, tmp_path, again, trials=1)
        assert (again.asked, len(found.trials), found.best.number) == ([], 1, 0)

    def test_another_configuration_in_the_same_folder_is_refused(self, monkeypatch, tmp_path):
        search(monkeypatch, tmp_path, Runs(), trials=1)
        with pytest.raises(
            ValueError, match=r"another configuration: train.epochs 1 → 2\. Choose another --out"
        ):
            search(monkeypatch, tmp_path, Runs(), configs=[config("ce", "train.epochs=2")])
        with pytest.raises(ValueError, match="another configuration: seeds 0 → 0, 1"):
            search(monkeypatch, tmp_path, Runs(), seeds=(0, 1))
        # Changes nothing.
        search(monkeypatch, tmp_path, Runs(), configs=[config("ce", "train.log_steps=7")], trials=1)

    def test_no_trials_and_several_processes_are_refused(self, monkeypatch, tmp_path):
        with pytest.raises(ValueError, match="trials must be at least 1"):
            search(monkeypatch, tmp_path, Runs(), trials=0)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ValueError, match="without torchrun"):
            search(monkeypatch, tmp_path, Runs())


class TestResult:
    def test_best_toml_is_the_configuration_of_the_best_trial(self, monkeypatch, tmp_path):
        runs = Runs()
        (found,) = search(monkeypatch, tmp_path, runs)
        assert found.file == tmp_path / "ce" / "best.toml"
        loaded = configuration.load(found.file)
        assert loaded == runs.asked[1][0]
        assert loaded.optimizer.lr == pytest.approx(2e-4)
        assert (
            "# ce: the best of 4 trials, number 1, by validation accuracy (cell-mean): 90.0 %"
            in found.file.read_text()
        )

    def test_settings_of_all_are_a_file_for_compare(self, monkeypatch, tmp_path):
        configs = [config("ce"), config("supcon+fairkl")]
        found = search(monkeypatch, tmp_path / "out", Runs(), configs=configs, trials=2)
        file = tmp_path / "tuned.toml"
        file.write_text(tuning.settings(found), "utf-8")
        for row in found:
            loaded = configuration.load(file, dataset="planted", method=row.method, overrides=SMALL)
            expected = with_settings(config(row.method), row.best.settings)
            assert configuration.difference(loaded, expected) == []
        base = tmp_path / "base.toml"
        base.write_text('[train]\nepochs = 7\n[methods."ce".train]\nbatch_size = 9\n', "utf-8")
        file.write_text(tuning.settings(found, base), "utf-8")
        loaded = configuration.load(file, dataset="planted", method="ce")
        assert (loaded.train.epochs, loaded.train.batch_size) == (7, 9)
        assert loaded.optimizer.lr == found[0].best.settings["optimizer.lr"]
        assert found[1].best.settings.keys() >= {
            "optimizer.lr",
            "method.alpha",
            "method.lambda",
            "method.temperature",
        }

    def test_with_go_on_an_unsuited_method_is_left_out_with_its_reason(self, monkeypatch, tmp_path):
        def runs(config, folder, *, command):
            if config.method.name == "sin":
                raise Unsuited("sin needs stylised images")
            return Runs()(config, folder, command=command)

        said, configs = [], [config("sin"), config("ce")]
        found = search(
            monkeypatch, tmp_path, runs, configs=configs, trials=1, say=said.append, go_on=True
        )
        assert [row.method for row in found] == ["ce"]
        assert "sin is left out: sin needs stylised images" in said
        with pytest.raises(Unsuited):
            search(monkeypatch, tmp_path / "again", runs, configs=configs, trials=1)

    def test_tables(self, monkeypatch, tmp_path):
        found = search(monkeypatch, tmp_path, Runs())
        assert (
            tuning.markdown(found).splitlines()[2]
            == "| ce | 4 | cell-mean | 50.0 | 90.0 | optimizer.lr = 0.0002 |"
        )
        assert tuning.table(found).row_count == 1

    def test_the_first_trial_is_the_configuration_as_it_stands_or_the_nearest_in_the_space(self):
        space = {
            "optimizer.lr": Between(1e-4, 1e-2),
            "method.epsilon": Between(0, 1, log=False),
            "method.form": OneOf(("a", "b")),
        }
        chosen = config("eps-supinfonce", "optimizer.lr=0.5")
        assert tuning._standing(chosen, space) == {
            "optimizer.lr": 1e-2,
            "method.epsilon": 0.25,
            "method.form": "a",
        }
        chosen = config("eps-supinfonce", "method.epsilon=0.75", "method.form=b")
        assert tuning._standing(chosen, space) == {
            "optimizer.lr": 1e-2,
            "method.epsilon": 0.75,
            "method.form": "b",
        }


class TestSpaces:
    @pytest.mark.parametrize("method", sorted(METHODS))
    def test_are_on_the_cards(self, method):
        rate = {"optimizer.lr": Between(1e-4, 1e-2)}
        assert list(space_of(method).items()) == list((rate | CARDS[method].space).items())

    def test_leave_out_a_preparation_that_fills_the_run(self):
        assert space_of("jtt", 4)["method.first_epochs"].values == (1, 2)
        assert space_of("jtt", 1)["method.first_epochs"].values == (1, 2, 4)  # the run is refused
        assert space_of("learned-mixin+h", 4)["method.pretrain_epochs"].values == (3, 1)

    @pytest.mark.parametrize("method", sorted(METHODS))
    def test_every_corner_is_a_configuration_and_every_method_has_the_learning_rate(self, method):
        space = space_of(method)
        assert space["optimizer.lr"] == Between(1e-4, 1e-2)
        base = configuration.load(dataset="planted", method=method)
        standing = tuning._standing(base, space)
        for key, at in space.items():
            for value in (at.low, at.high) if isinstance(at, Between) else at.values:
                loaded = with_settings(base, standing | {key: value})
                assert tuning._values(loaded)[key] == value, key
            if isinstance(at, Between):
                assert at.low < at.high
                assert at.low > 0 or not at.log

    def test_fairkl_adds_its_weights(self):
        assert space_of("eps-supcon+fairkl").keys() == {
            "optimizer.lr", "method.temperature", "method.epsilon", "method.alpha", "method.lambda",
        }  # fmt: skip
        assert space_of("ce").keys() == {"optimizer.lr"}


def test_without_optuna_one_sentence_says_what_to_install(monkeypatch, tmp_path):
    real = importlib.import_module

    def missing(name, *rest):
        if name == "optuna":
            raise ModuleNotFoundError("No module named 'optuna'")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    words = [word for change in SMALL for word in ("--set", change)]
    asked = [
        "tune",
        "--dataset",
        "planted",
        "--methods",
        "ce",
        "--trials",
        "1",
        "--out",
        str(tmp_path),
        *words,
    ]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2
    assert 'tuning needs an extra package: pip install "fairmargin[optuna]"' in result.output


def test_unknown_method_and_wrong_seeds_are_said_before_anything_runs(tmp_path):
    result = CliRunner().invoke(app, ["tune", "--methods", "cee", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "unknown method 'cee'" in result.output
    assert not (tmp_path / "out").exists()


@needs_optuna
class TestOptuna:
    SPACE = {"optimizer.lr": Between(1e-4, 1e-2), "method.form": OneOf(("a", "b", "c"))}  # noqa: RUF012
    FIRST = {"optimizer.lr": 1e-3, "method.form": "c"}  # noqa: RUF012

    def value(self, trial):
        return (
            1
            - abs(trial.settings["optimizer.lr"] - 4e-3)
            - 0.1 * (trial.settings["method.form"] != "b")
        )

    def open(self, file, seed=0):
        return OptunaSearch(file, self.SPACE, self.FIRST, seed)

    def advance(self, search, number):
        for _ in range(number):
            trial = search.next()
            search.tell(trial, self.value(trial))
        return search.finished()

    def test_an_interrupted_search_suggests_what_a_whole_one_does(self, tmp_path):
        whole = self.advance(self.open(tmp_path / "whole"), 9)
        parts = self.open(tmp_path / "parts")
        self.advance(parts, 3)
        begun = parts.next()  # and the process is killed
        again = self.open(tmp_path / "parts")
        assert again.next() == begun
        assert self.advance(again, 6) == whole
        assert [trial.number for trial in whole] == list(range(9))

    def test_starts_from_the_configuration_and_then_explores_the_space(self, tmp_path):
        found = self.advance(self.open(tmp_path / "a"), 8)
        assert found[0].settings == self.FIRST
        rates = [trial.settings["optimizer.lr"] for trial in found]
        assert all(1e-4 <= rate <= 1e-2 for rate in rates)
        assert len(set(rates)) == 8
        assert all(rate == float(f"{rate:.3g}") for rate in rates)
        other = self.advance(self.open(tmp_path / "b", seed=1), 3)
        assert other[1] != found[1]

    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: "no JSON\n" + text,
            lambda text: "[]\n" + text,
            lambda text: "{}\n" + text,
            lambda text: '{"op_code": 99, "worker_id": "a"}\n' + text,
            lambda text: "[" * 100_000 + "\n" + text,
            lambda text: text.replace('"values":[', '"values":["x",'),
            lambda text: text.replace('"values":[', '"values":[NaN,'),
            lambda text: text.replace('"values":[', '"values":[[],'),
        ],
    )
    def test_a_damaged_journal_is_named(self, damage, tmp_path):
        file = tmp_path / "trials.log"
        self.advance(self.open(file), 2)
        changed = damage(file.read_text("utf-8"))
        assert changed != file.read_text("utf-8")
        file.write_text(changed, "utf-8")
        with pytest.raises(ValueError, match=r"trials\.log is damaged .*put a whole copy back"):
            self.open(file).finished()

    @pytest.mark.slow
    def test_the_whole_command(self, tmp_path):
        words = [word for change in SMALL for word in ("--set", change)]
        asked = ["tune", "--dataset", "planted", "--methods", "ce,supcon", "--trials", "2", *words]
        asked += ["--out", str(tmp_path)]
        first = CliRunner().invoke(app, asked)
        assert first.exit_code == 0, first.output
        times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
        assert len(times) == 4
        again = CliRunner().invoke(app, asked)
        assert again.exit_code == 0, again.output
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == times
        assert (tmp_path / "table.md").read_text("utf-8").count("\n") == 4
        trained = CliRunner().invoke(
            app,
            [
                "train",
                str(tmp_path / "ce" / "best.toml"),
                "--seed",
                "7",
                "--out",
                str(tmp_path / "best"),
            ],
        )
        assert trained.exit_code == 0, trained.output
        assert Path(tmp_path / "best" / "result.json").is_file()


@pytest.mark.slow
def test_trials_are_ordinary_runs(tmp_path):
    """With real training and a search that needs no extra package."""
    (found,) = tune([config()], tmp_path, trials=2, seeds=[3], search=Ladder)
    for trial in found.trials:
        record = RunRecord.read(tmp_path / "ce" / f"trial-00{trial.number}" / "seed-3")
        assert record.finished
        assert record.config["optimizer"]["lr"] == trial.settings["optimizer.lr"]
        assert record.config["seed"] == 3
        assert trial.value == record.result["records"]["last"]["valid"]["cell-mean"]
