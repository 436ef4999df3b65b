"""Remove a shortcut that nobody wrote down. Takes about half a minute on one core, no download.

    python examples/no_bias_labels.py [FOLDER]

A shortcut is easy to learn, so a model that can learn little else finds it. `fairmargin scores`
trains one that sees a single pixel at a time: it learns colors and no shapes. Clusters of its
features then take the place of bias labels. These are the commands you would type:

    fairmargin train  --dataset planted --method ce --bias none
    fairmargin scores --dataset planted
    fairmargin train  --dataset planted --method group-dro --bias clusters

No command sees the true bias labels of the dataset while it trains. They only judge the result:
"conflicting" is the accuracy on test images whose tint points to a wrong class. Runs stay in FOLDER
if you give one. docs/scores.md says when to trust the scores.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = ("--dataset", "planted", "--set", "data.rho=0.9")


def fairmargin(*words: str, folder: Path) -> None:
    """Run a `fairmargin` command in `folder`; stop with its message if it fails."""
    command = [sys.executable, "-m", "fairmargin", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)


def accuracy(run: Path, name: str) -> float:
    """Read a test accuracy of the run's own classifier."""
    result = json.loads((run / "result.json").read_text("utf-8"))
    value: float = result["test"]["own"]["accuracy"][name]["value"]
    return value


def main(folder: Path) -> None:
    """Train without knowledge of the bias, then with clusters in its place."""
    fairmargin("scores", *DATA, folder=folder)
    for method, bias in (("ce", "none"), ("group-dro", "clusters")):
        run = folder / "runs" / method
        command = ("train", *DATA, "--method", method, "--bias", bias, "--out", str(run))
        fairmargin(*command, folder=folder)
        aligned, conflicting = accuracy(run, "aligned"), accuracy(run, "conflicting")
        print(
            f"{method:10} bias: {bias:9} "
            f"accuracy: aligned {aligned:.1%}, conflicting {conflicting:.1%}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
