import json
from pathlib import Path

import pytest

from fairmargin.reproduce.cells import cells
from fairmargin.reproduce.figures import drawing
from tests.reproduce.recorded import run_folder


def test_a_figure_is_drawn_from_finished_runs_made_as_planned(tmp_path: Path) -> None:
    planned, changed, begun = cells("figure2", pattern="eps-supcon:rho=0.99;eps=0*")[:3]
    run_folder(changed, tmp_path, 0, 0.9, extra=["train.epochs=2"])
    run_folder(begun, tmp_path, 0, None, epochs=1)
    said: list[str] = []
    with pytest.raises(ValueError, match="Figure 2 has no finished run to draw"):
        drawing.draw("figure2", tmp_path, "laptop", said.append)
    assert "train.epochs" in said[0]
    run_folder(planned, tmp_path, 0, 0.5, epochs=24)
    drawn = json.loads(drawing.draw("figure2", tmp_path, "laptop").numbers.read_text())
    assert [point["accuracies"] for point in drawn["points"] if point["accuracies"]] == [[50.0]]
    assert "1 seed" in drawn["budget"]
