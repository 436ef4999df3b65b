from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin.cli.app import app
from fairmargin.data.views import Flip, ResizedCrop, without_colour
from fairmargin.reproduce import budgets, files, synthetic
from fairmargin.reproduce.cells import EPSILONS, RHOS, cells
from fairmargin.reproduce.command import chosen
from fairmargin.reproduce.published import published, weights
from fairmargin.reproduce.readings import READINGS
from fairmargin.runs import build

TABLES = ("1", "2", "3", "4", "5", "8", "9", "10", "11", "12")


def test_every_published_number_is_there() -> None:
    assert sum(number.std is not None for number in published()) == 180
    assert {number.table for number in published()} == {*TABLES, "text"}
    by_place = {(number.table, number.method, number.setting): number for number in published()}
    best = by_place["3", "eps-supinfonce+fairkl", "rho=0.99"]
    assert (best.mean, best.std, best.origin) == (97.86, 0.02, "paper")


def test_every_published_number_has_a_cell_in_each_reading() -> None:
    for number in published():
        mine = [cell for cell in cells(number.table) if number in cell.published]
        readings = [cell.reading for cell in mine]
        assert len(set(readings)) == len(readings) >= 1
        assert ("" in readings) != ("fairkl" in number.method)


@pytest.mark.parametrize("budget", budgets.BUDGETS)
def test_cells_of_one_folder_have_one_configuration(budget: str) -> None:
    seen: dict[Path, configuration.Config] = {}
    for cell in cells("all"):
        if not budgets.left_out(budget, cell.table, cell.setting):
            config = cell.config(budget, 0)
            assert seen.setdefault(cell.folder(Path("out"), budget, 0), config) == config
    assert len(seen) < len(cells("all"))  # Tables 4, 10 and 11 share some, and 1, 2, 8 and 9


def test_the_paper_s_weights_reach_the_configuration() -> None:
    reached = set()
    for (dataset, method, setting), wanted in weights().items():
        table = {"biased-mnist": "3", "corrupted-cifar10": "4", "bffhq": "4", "imagenet9": "5"}[
            dataset
        ]
        for reading in ("paper", "authors"):
            for cell in cells(table, readings=[reading]):
                if (cell.dataset, cell.row, cell.setting) == (dataset, method, setting):
                    reached.add((dataset, method, setting))
                    options = cell.config("paper", 0).method.options
                    assert {key: options[key] for key in ("alpha", "epsilon")} | {
                        "lambda": options["lambda_"]
                    } == wanted
    assert reached == set(weights())


def test_readings_are_not_mixed() -> None:
    for cell in cells("all", readings=["paper"]):
        if cell.reading:
            assert "weighting" not in cell.config("paper", 0).method.options
            assert cell.config("paper", 0).method.options["variant"] == "paper"
    for cell in cells("all", readings=["authors"]):
        if cell.reading:
            options = cell.config("paper", 0).method.options
            assert options["variant"] == "authors"
            assert "weighting" not in options  # α once, no τ/0.07
    released = [cell for cell in cells("all", readings=["released"]) if cell.reading]
    assert {cell.table for cell in released} == {"3", "4", "10", "11", "12"}
    for cell in released:
        options = cell.config("paper", 0).method.options
        assert (options["variant"], options["weighting"]) == ("authors", "released")
        assert cell.method != "ce+fairkl"  # whose released script has α once


def test_the_released_weighting_is_run_only_when_it_is_named() -> None:
    assert "released" not in {cell.reading for cell in chosen("3", None, None)}
    assert "released" not in {cell.reading for cell in chosen("3", "*rho=0.99*", None)}
    assert {cell.reading for cell in chosen("3", "*supinfonce+fairkl:rho=0.99*", "released")} == {
        "released"
    }
    assert {cell.reading for cell in chosen("3", "*supinfonce+fairkl:rho=0.99@released", None)} == {
        "released"
    }


def test_the_protocol_of_table_3_is_the_published_one() -> None:
    (cell,) = cells("3", pattern="eps-supinfonce+fairkl:rho=0.999@paper")
    config = cell.config("paper", 2)
    assert config.seed == 2
    assert config.data.options == {"rho": 0.999, "valid_fraction": 0.0}
    assert (config.network.name, config.network.options) == ("simple-conv-7", {})
    assert (config.train.epochs, config.train.batch_size, config.schedule.milestones) == (
        80,
        256,
        (26, 53),
    )
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.weight_decay) == (
        "adam",
        1e-3,
        1e-5,
    )


def test_a_laptop_trains_for_as_long_with_every_method() -> None:
    kept = [cell for cell in cells("3") if cell.reading in ("", "authors")]
    assert len(kept) == 4 * 11
    for config in (cell.config("laptop", 0) for cell in kept):
        assert (config.train.epochs, config.train.batch_size) == (24, 128)
        assert config.schedule.milestones == (20, 22)
        assert config.optimizer.lr == 1e-3
        assert config.network.options["stride"] == 2


@pytest.mark.parametrize(
    ("budget", "epochs", "batch_size"), [("paper", 100, 512), ("laptop", 10, 512), ("smoke", 1, 32)]
)
def test_contrastive_cells_of_generic_vision_are_judged_by_linear_evaluation(
    budget: str, epochs: int, batch_size: int
) -> None:
    """As SupContrast's README has it; its script's other defaults are ours."""
    seen: dict[str, set[str]] = {}
    for cell in (*cells("1"), *cells("2"), *cells("8"), *cells("9")):
        chosen = cell.config(budget, 0).evaluate
        if cell.method in ("ce", "max-margin"):
            assert chosen.classifiers == ("own",)
            continue
        seen.setdefault(cell.dataset, set()).add(cell.method)
        assert chosen.classifiers == ("own", "linear")
        assert chosen.linear_lr == (1.0 if cell.method == "simclr" else 5.0)
        assert (chosen.linear_epochs, chosen.linear_batch_size) == (epochs, batch_size)
        assert (chosen.linear_momentum, chosen.linear_weight_decay, chosen.linear_factor) == (
            0.9,
            0.0,
            0.2,
        )
        assert [100 * share for share in chosen.linear_milestones] == [60, 75, 90]
    assert seen.keys() == {"cifar10", "cifar100", "imagenet100"}
    assert {"simclr", "supcon", "eps-supinfonce"} <= seen["cifar100"]


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "imagenet100"])
def test_linear_evaluation_of_a_cell_sees_supcontrast_s_views(dataset: str, tmp_path: Path) -> None:
    synthetic.make(tmp_path, dataset)
    (cell,) = cells("2", pattern=f"{dataset}/supcon")
    data = build.data(cell.config("paper", 0, [f"data.root={tmp_path}"]))
    views = without_colour(data.train_views)
    assert views.steps == (
        ResizedCrop(224 if dataset == "imagenet100" else 32, (0.2, 1.0)),
        Flip(0.5),
    )
    assert views.number == 1


def test_biased_data_are_judged_by_the_classifier_trained_along() -> None:
    for cell in (*cells("3"), *cells("4"), *cells("5")):
        assert cell.config("paper", 0).evaluate.classifiers == ("own",)


def test_the_figures_share_their_runs() -> None:
    sweep, histograms = cells("figure2"), cells("figure5")
    assert len(sweep) == 2 * len(RHOS) * len(EPSILONS)
    folders = {cell.folder(Path("out"), "paper", 0) for cell in sweep}
    assert {cell.folder(Path("out"), "paper", 0) for cell in histograms} < folders


def test_a_pattern_that_matches_nothing_shows_the_names() -> None:
    with pytest.raises(ValueError, match=r"matches nothing of 3.*\n.*biased-mnist/ce:rho=0.999"):
        cells("3", pattern="nothing")
    with pytest.raises(ValueError, match="table or figure"):
        cells("6")
    with pytest.raises(ValueError, match="reading"):
        cells("3", readings=["mine"])


@pytest.mark.parametrize(
    ("what", "runs", "rhos"),
    [("12", 3 * 6, {0.999}), ("figure2", 16, {0.99, 0.999}), ("figure5", 6, {0.999})],
)
def test_of_a_grid_a_laptop_runs_the_hardest(what: str, runs: int, rhos: set[float]) -> None:
    kept = [cell for cell in cells(what) if not budgets.left_out("laptop", what, cell.setting)]
    assert len(kept) == runs
    configs = [cell.config("laptop", 0) for cell in kept]
    assert {config.data.name for config in configs} == {"biased-mnist"}
    assert {config.data.options["rho"] for config in configs} == rhos
    assert {config.evaluate.every for config in configs} == {1}


def test_a_file_is_the_configuration_of_its_cell(tmp_path: Path) -> None:
    written = files.write(cells("all"), tmp_path)
    assert len(set(written)) == len(cells("all"))
    for cell, file in zip(cells("all"), written, strict=True):
        assert configuration.load(file, seed=0) == cell.config("paper", 0)
        assert file.read_text("utf-8").startswith(f"# fairmargin reproduce {cell.table} --cell")


def test_the_command_writes_the_chosen_cells_and_runs_nothing(tmp_path: Path) -> None:
    words = ["reproduce", "3", "--cell", "ce:rho=0.99"]
    words += ["--write-configs", str(tmp_path), "--out", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    (file,) = tmp_path.rglob("*.toml")
    assert f"fairmargin train {file}" in result.output.replace("\n", "")
    assert configuration.load(file, seed=0) == cells("3", pattern="ce:rho=0.99")[0].config(
        "paper", 0
    )
    assert not (tmp_path / "runs").exists()


def test_nothing_to_write_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "figure1", "--write-configs", str(tmp_path)])
    assert result.exit_code == 2
    assert "has no cell to write" in result.output


def test_only_readings_of_fairkl_are_known() -> None:
    assert {cell.reading for cell in cells("all")} == {"", *READINGS}
