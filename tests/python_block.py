"""Python from end to end, as docs/use.md shows it: run by an interpreter that has the wheel alone.

It runs in an empty folder, and prints what `test_packaging` looks at as one line of JSON.
"""

import csv
import json
import pickle
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.base import clone
from torch import nn

import fairmargin as fm

SIDE = 16
QUICK = {
    "data.image_size": SIDE,
    "network.name": "simple-conv-3",
    "network.widths": [4],
    "train.batch_size": 32,
    "train.device": "cpu",
    "evaluate.resamples": 10,
    "evaluate.classifiers": ["own"],
}
random = np.random.default_rng(0)


def draw(label, ground):
    """A bar, upright (0) or lying (1), on dark or light ground."""
    pixels = np.full((SIDE, SIDE, 3), 60 + 90 * ground, np.uint8)
    bar = pixels if label else pixels.transpose(1, 0, 2)
    middle = random.integers(3, SIDE - 3)
    bar[middle - 1 : middle + 1, 2:-2] = (220, 200, 180)
    return pixels


class Bars(torch.utils.data.Dataset):
    """Images, labels and grounds: one bar in `agree` has the ground of the other class."""

    def __init__(self, n, agree):
        self.labels = [i % 2 for i in range(n)]
        self.grounds = [y if i % agree else 1 - y for i, y in enumerate(self.labels)]
        self.images = [draw(y, g) for y, g in zip(self.labels, self.grounds, strict=True)]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]).permute(2, 0, 1), self.labels[i], self.grounds[i]


my_dataset = Bars(160, agree=23)
my_test = Bars(40, agree=3)
my_module = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

rows = [("path", "label", "bias", "split")]
Path("photos").mkdir()
for split, bars in (("train", my_dataset), ("test", my_test)):
    for i, pixels in enumerate(bars.images):
        name = f"photos/{split}-{i}.png"
        Image.fromarray(pixels).save(name)
        kind, ground = ("upright", "lying")[bars.labels[i]], ("dark", "light")[bars.grounds[i]]
        rows.append((name, kind, ground, split))
with open("photos.csv", "w", newline="") as file:
    csv.writer(file).writerows(rows)

image = Image.open("photos/test-1.png")
array = my_test.images[2]

run = fm.train(
    dataset="photos.csv",
    method="eps-supinfonce+fairkl",
    epochs=2,
    settings=QUICK,
    out="runs/photos",
)
photos_table = run.table()
run = fm.train(
    train=my_dataset,
    valid=None,
    test=my_test,
    encoder=my_module,
    method="ce+fairkl",
    out="runs/mine",
    seed=0,
    epochs=2,
    settings={key: QUICK[key] for key in QUICK if key.startswith(("train.", "evaluate."))},
)
worst, page = run.accuracy["worst-group"], run.report("report.html")
model = fm.load("runs/photos")
found = model.predict(["photos/test-0.png", image, array])
features = model.embed([image])
logits = model(torch.from_numpy(array).permute(2, 0, 1)[None])
mine = fm.load(Path("runs/mine"), encoder=my_module)
audited = fm.audit.dataset("photos.csv", settings={"data.image_size": SIDE}, permutations=199)
audit_page = audited.save("audit.html")
of_run = fm.audit.run(Path("runs/mine"))
of_vectors = fm.audit.embeddings(
    {"embeddings": random.normal(size=(60, 4)), "labels": np.arange(60) % 2}
)
y = np.array(my_dataset.labels)
b = np.array(my_dataset.grounds)
X = np.stack([y, b], 1) + random.normal(0, 0.1, (len(y), 2))
clf = fm.FairMarginClassifier(method="ce+fairkl", random_state=0).fit(X, y, bias=b)
again = pickle.loads(pickle.dumps(clf))

answers = {
    "package": fm.__file__,
    "table": photos_table,
    "worst": worst,
    "labels": found.labels,
    "probabilities": found.probabilities.tolist(),
    "features": list(features.shape),
    "logits": logits.softmax(1).tolist(),
    "mine": torch.equal(
        mine.predict([array]).probabilities, run.model.predict([array]).probabilities
    ),
    "verdict": audited.verdict,
    "first": audited.findings[0].verdict,
    "of_run": of_run.verdict,
    "of_vectors": of_vectors.verdict,
    "score": clf.score(X, y),
    "pickled": bool((again.predict(X) == clf.predict(X)).all()),
    "cloned": clone(clf).get_params() == clf.get_params(),
    "files": sorted(str(path) for path in (page, audit_page) if path.is_file()),
}
print(json.dumps(answers))
