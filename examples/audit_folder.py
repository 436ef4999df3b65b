"""Find the shortcut in a folder of images, then train without it. About half a minute on one core.

    python examples/audit_folder.py [FOLDER]

The script draws 1,200 images of bars: upright or lying, on a green or a brown background. In 95 %
of the training images the background gives the label away; in the test images it says nothing.
A table names each image's label, background and split. The rest are the commands you would type:

    fairmargin audit images.csv
    fairmargin train small.toml --dataset images.csv --method ce
    fairmargin train small.toml --dataset images.csv --method group-balanced
    fairmargin check runs/… --min-worst-group 0.8

Pages, runs and images stay in FOLDER if you give one.
"""

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 24
SETTINGS = f"""
[data]
image_size = {SIDE}
[network]
name = "simple-conv-3"
stride = 2
widths = [8, 16]
[optimizer]
name = "adam"
lr = 0.01
[train]
epochs = 15
batch_size = 64
"""
BACKGROUNDS = {"green": (60, 140, 70), "brown": (140, 105, 60)}
BIAS_OF_LABEL = {"upright": "green", "lying": "brown"}


def draw(label: str, background: str, random: np.random.Generator) -> Image.Image:
    """Draw a grey bar at a random place, with noise, on a background."""
    pixels = np.empty((SIDE, SIDE, 3))
    pixels[:] = BACKGROUNDS[background]
    middle, start = random.integers(5, SIDE - 5), random.integers(1, SIDE // 3)
    bar = pixels if label == "lying" else pixels.transpose(1, 0, 2)
    bar[middle - 1 : middle + 2, start : start + 15] = random.uniform(90, 200)
    noisy = pixels + random.normal(0, 30, pixels.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def make_folder(folder: Path) -> Path:
    """Write 800 training and 400 test images and the table that names them."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(1200):
        split, agreement = ("train", 0.95) if number < 800 else ("test", 0.5)
        label = ("upright", "lying")[number % 2]
        usual = BIAS_OF_LABEL[label]
        unusual = "brown" if usual == "green" else "green"
        background = usual if random.random() < agreement else unusual
        draw(label, background, random).save(folder / f"{number:04}.png")
        rows.append((f"{number:04}.png", label, background, split))
    table = folder / "images.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "bias", "split"), *rows])
    return table


def fairmargin(*words: str | Path, folder: Path) -> int:
    """Run a `fairmargin` command in `folder` and return its exit code."""
    command = [sys.executable, "-m", "fairmargin", *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise SystemExit(done.stderr)
    return done.returncode


def main(folder: Path) -> None:
    """Audit, train with and without knowledge of the background, and check both runs."""
    table = make_folder(folder)
    (folder / "small.toml").write_text(SETTINGS, "utf-8")
    size = f"data.image_size={SIDE}"
    fairmargin("audit", table, "--set", size, "--out", "audit", folder=folder)
    attributes = json.loads((folder / "audit" / "audit.json").read_text("utf-8"))["attributes"]
    print("audit, strongest attribute:", attributes[0]["name"], "->", attributes[0]["verdict"])
    for method in ("ce", "group-balanced"):
        run = folder / "runs" / method
        command = ("train", "small.toml", "--dataset", table, "--method", method, "--out", run)
        fairmargin(*command, folder=folder)
        code = fairmargin("check", run, "--min-worst-group", "0.8", folder=folder)
        result = json.loads((run / "result.json").read_text("utf-8"))
        worst = result["test"]["own"]["accuracy"]["worst-group"]["value"]
        verdict = "passes" if code == 0 else "fails"
        print(f"{method:15} worst-group accuracy: {worst:.1%}, {verdict} the check for 80 %")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
