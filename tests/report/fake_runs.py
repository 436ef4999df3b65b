"""Run folders with synthetic numbers: of a method that reads the bias and one that does not."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLOURS = {
    "red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (225, 225, 0),
    "magenta": (225, 0, 225), "cyan": (0, 255, 255), "orange": (255, 128, 0), "pink": (255, 0, 128),
    "violet": (128, 0, 255), "spring green": (50, 255, 128),
}  # fmt: skip
FOLLOWS = {
    "ce": 0.86,
    "eps-supinfonce": 0.62,
    "eps-supinfonce+fairkl": 0.22,
}  # how much a method listens to the bias
NAMES = ("plain", "cell-mean", "aligned", "conflicting", "worst-group", "train-weighted")
SETS = ("positive-aligned", "positive-conflicting", "negative-aligned", "negative-conflicting")
RHO, TRAIN, EPOCHS, STEPS = 0.95, 3600, 24, 15  # steps of an epoch


def write_run(
    folder: Path,
    method: str,
    *,
    seed: int = 0,
    n: int = 1000,
    extra: bool = False,
    settings: str = "",
) -> Path:
    """A finished run on ten coloured digits. `settings` are further lines of its [method] table."""
    folder.mkdir(parents=True)
    random = np.random.default_rng([seed, *method.encode()])
    data = np.random.default_rng(7)  # the test set is the same for every method and seed
    labels, bias = data.integers(0, 10, n), data.integers(0, 10, n)
    follows = FOLLOWS.get(method, 0.5) + 0.02 * random.normal()
    logits, features = _outputs(random, labels, bias, follows)
    predicted = logits.argmax(1)
    counts = np.where(
        np.eye(10, dtype=bool), round(TRAIN * RHO / 10), round(TRAIN * (1 - RHO) / 90)
    )

    judged = {
        name: judge(_noisy(random, logits, noise), labels, bias, counts)
        for name, noise in _CLASSIFIERS.items()
    }
    judged["probe"] |= {"converged": True, "iterations": 143}
    _text_files(folder, method, seed, settings, counts, n)
    _metrics(folder, random, method, judged["own"]["accuracy"])
    final = {name: one["value"] for name, one in judged["own"]["accuracy"].items()}
    record = {"epoch": EPOCHS, "step": EPOCHS * STEPS, "valid": final, "test": final}
    better = {name: min(1.0, value + 0.013) for name, value in final.items()}
    result = {
        "method": method,
        "dataset": "biased-mnist-mini",
        "seed": seed,
        "epochs": EPOCHS,
        "steps": EPOCHS * STEPS,
        "seconds": 61.2,
        "reported": "last",
        "headline": {"classifier": "own", "accuracy": "cell-mean"},
        "records": {
            "last": record,
            "best-on-validation": record | {"epoch": 19, "valid": better},
            "best-on-test": record | {"epoch": 21, "test": better},
        },
        "test": judged,
        "extra_tests": {
            "rotated": {"own": judge(_noisy(random, logits, 2.5), labels, bias, counts)}
        }
        if extra
        else {},
        "similarity": similarity(features, labels, bias),
        "ordering": {
            "links": [
                {"closer": a, "farther": b, "share": share}
                for a, b, share in zip(
                    SETS,
                    SETS[1:],
                    (0.5 + follows / 2, 1 - follows / 2, 0.5 + follows / 2.2),
                    strict=False,
                )
            ],
            "total": follows**4,
        },
        "warnings": [],
    }
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    np.savez(
        folder / "test.npz",
        labels=labels,
        bias=bias,
        predicted=predicted,
        logits=logits,
        features=features,
    )
    _examples(folder, labels, bias, logits)
    return folder


def write_awkward_run(folder: Path, *, n: int = 60) -> Path:
    """Write a run without bias labels, intervals and similarity, on grey images of three classes.

    One class has markup in its name.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(3)
    labels = random.integers(0, 3, n)
    logits = (2 * np.eye(3)[labels] + random.normal(size=(n, 3))).astype(np.float32)
    value = float((logits.argmax(1) == labels).mean())
    (folder / "config.toml").write_text(
        'seed = 4\n[data]\nname = "folder"\n[method]\nname = "my-own <method>"\n'
        "[train]\nepochs = 2\n",
        encoding="utf-8",
    )
    data = {
        "name": "pets & co",
        "class_names": ["cat", "<b>dog</b>", "a bird with a very long name indeed"],
        "bias_names": [],
        "image_shape": [1, 20, 30],
        "counts": [[], [], []],
        "sizes": {"train": 300, "valid": 0, "test": n},
        "notes": {},
    }
    (folder / "data.json").write_text(json.dumps(data), encoding="utf-8")
    environment = {
        "python": "3.11",
        "git": None,
        "command": 'fairmargin train "<script>alert(1)</script>"',
    }
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    accuracy = {"plain": {"value": value, "low": None, "high": None}}
    judged = {
        "n": n,
        "accuracy": accuracy,
        "groups": None,
        "equalised_odds_gap": None,
        "calibration": None,
        "warnings": [],
    }
    result = {
        "method": "my-own <method>",
        "dataset": "folder",
        "seed": 4,
        "epochs": 2,
        "steps": 10,
        "seconds": 1.5,
        "reported": "last",
        "headline": {"classifier": "own", "accuracy": "plain"},
        "records": {"last": {"epoch": 2, "step": 10, "valid": {}, "test": {"plain": value}}},
        "test": {"own": judged},
        "extra_tests": {},
        "similarity": None,
        "ordering": None,
        "warnings": ["7 files were <i>skipped</i>"],
    }
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    np.savez(
        folder / "test.npz",
        labels=labels,
        predicted=logits.argmax(1),
        logits=logits,
        features=random.normal(size=(n, 8)).astype(np.float32),
    )
    wrong = np.flatnonzero(logits.argmax(1) != labels)[:5]
    images = random.integers(0, 255, (len(wrong), 1, 20, 30)).astype(np.uint8)
    np.savez(
        folder / "examples.npz", images=images, index=wrong, kind=np.array(["mistake"] * len(wrong))
    )
    return folder


def write_unfinished_run(folder: Path, *, seed: int = 2) -> Path:
    """Stopped in its eighth epoch of 24, in the middle of a line of its log."""
    write_run(folder, "eps-supinfonce", seed=seed, n=100)
    for name in ("result.json", "test.npz", "examples.npz"):
        (folder / name).unlink()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if json.loads(line)["epoch"] <= 7]
    (folder / "metrics.jsonl").write_text(
        "\n".join(kept) + '\n{"event": "train", "epo', encoding="utf-8"
    )
    return folder


_CLASSIFIERS = {"own": 0.0, "probe": 0.6, "knn": 1.0}


def _outputs(
    random: np.random.Generator, labels: np.ndarray, bias: np.ndarray, follows: float
) -> tuple[np.ndarray, np.ndarray]:
    """(logits [N, 10], features [N, 32]): a blend of what the label and what the bias says."""
    n = len(labels)
    listened = np.clip(random.normal(follows, 0.14, (n, 1)), 0, 1)
    said = (1 - listened) * np.eye(10)[labels] + listened * np.eye(10)[bias]
    logits = 7 * said + random.normal(size=(n, 10))
    directions = np.random.default_rng(1).normal(size=(20, 32))
    features = (1 - listened) * directions[labels] + listened * directions[10 + bias]
    return logits.astype(np.float32), (features + 0.33 * random.normal(size=(n, 32))).astype(
        np.float32
    )


def _noisy(random: np.random.Generator, logits: np.ndarray, noise: float) -> np.ndarray:
    return logits + noise * random.normal(size=logits.shape)


def judge(logits: np.ndarray, labels: np.ndarray, bias: np.ndarray, counts: np.ndarray) -> dict:
    right = logits.argmax(1) == labels
    n, correct = np.zeros((2, 10, 10), int)
    np.add.at(n, (labels, bias), 1)
    np.add.at(correct, (labels[right], bias[right]), 1)
    there = n > 0
    share = correct[there] / n[there]
    values = dict(
        zip(
            NAMES,
            (
                right.mean(),
                share.mean(),
                right[labels == bias].mean(),
                right[labels != bias].mean(),
                share.min(),
                np.average(share, weights=counts[there]),
            ),
            strict=True,
        )
    )
    half = 0.02 + 0.1 / np.sqrt(len(labels) / 100)
    spread = 1.9 * np.sqrt(0.25 / np.maximum(n, 1))
    ends = [np.clip(correct / np.maximum(n, 1) + sign * spread, 0, 1) for sign in (-1, 1)]
    low, high = (
        [
            [v if t else None for v, t in zip(*row, strict=True)]
            for row in zip(end.tolist(), there, strict=True)
        ]
        for end in ends
    )
    return {
        "n": len(labels),
        "accuracy": {
            name: {
                "value": float(v),
                "low": max(0.0, float(v) - half),
                "high": min(1.0, float(v) + half),
            }
            for name, v in values.items()
        },
        "groups": {"n": n.tolist(), "correct": correct.tolist(), "low": low, "high": high},
        "equalised_odds_gap": float(np.ptp(share)),
        "calibration": calibration(logits, right),
        "warnings": [
            "38 of 100 groups have fewer than 10 test samples; "
            "the smallest, (label=0, bias=red), has 4"
        ],
    }


def calibration(logits: np.ndarray, right: np.ndarray) -> dict:
    p = np.exp(logits - logits.max(1, keepdims=True))
    confidence = (p / p.sum(1, keepdims=True)).max(1)
    which = np.ceil(confidence * 15).astype(int)
    bins = [
        {
            "confidence": float(confidence[which == k].mean()),
            "accuracy": float(right[which == k].mean()),
            "n": int((which == k).sum()),
        }
        for k in np.unique(which)
    ]
    ece = sum(b["n"] * abs(b["confidence"] - b["accuracy"]) for b in bins) / len(right)
    return {"ece": ece, "nll": 1.234, "brier": 0.567, "bins": bins}


def similarity(features: np.ndarray, labels: np.ndarray, bias: np.ndarray) -> dict:
    z = features[:300] / np.linalg.norm(features[:300], axis=1, keepdims=True)
    cosine = z @ z.T
    different = 2 * (labels[:300, None] != labels[:300]) + (bias[:300, None] != bias[:300])
    np.fill_diagonal(different, 4)
    edges = np.linspace(-1, 1, 65)
    sets = {}
    for k, name in enumerate(SETS):
        mine = cosine[different == k]
        counted = np.histogram(mine, edges)[0].tolist()
        sets[name] = {
            "pairs": len(mine),
            "mean": float(mine.mean()),
            "std": float(mine.std()),
            "counts": counted,
        }
    return {
        "edges": edges.tolist(),
        "sets": sets,
        "kl": {"positive": 0.4321, "negative": 0.0567},
        "samples": 300,
    }


def _text_files(
    folder: Path, method: str, seed: int, settings: str, counts: np.ndarray, n: int
) -> None:
    (folder / "config.toml").write_text(
        f'seed = {seed}\n\n[data]\nname = "biased-mnist-mini"\nrho = {RHO}\n\n'
        '[network]\nname = "simple-conv-7"\n\n'
        f'[method]\nname = "{method}"\n{settings}\n'
        '[optimizer]\nname = "adam"\nlr = 0.001\n\n'
        f"[train]\nepochs = {EPOCHS}\nbatch_size = 256\n",
        encoding="utf-8",
    )
    environment = {
        "fairmargin": "0.1.0",
        "python": "3.11.2",
        "torch": "2.9.0",
        "numpy": "2.1.0",
        "platform": "Linux x86_64",
        "device": "cpu",
        "threads": 2,
        "world_size": 1,
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": seed > 0},
        "command": f"fairmargin train biased-mnist-mini --method {method} --seed {seed} "
        f"--set data.rho={RHO}",
        "started": "2025-11-15T22:10:00+00:00",
        "data": {split: f"{k}" * 64 for k, split in enumerate(("train", "valid", "test"))},
    }
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    data = {
        "name": "biased-mnist-mini",
        "class_names": list("0123456789"),
        "bias_names": list(COLOURS),
        "image_shape": [3, 28, 28],
        "counts": counts.tolist(),
        "sizes": {"train": int(counts.sum()), "valid": 400, "test": n},
        "notes": {"rho": str(RHO)},
    }
    (folder / "data.json").write_text(json.dumps(data), encoding="utf-8")


def _metrics(folder: Path, random: np.random.Generator, method: str, final: dict) -> None:
    terms = method.split("+") + ([] if method == "ce" else ["probe"])
    events = []
    for step in range(5, EPOCHS * STEPS + 1, 5):
        decay = np.exp(-step / 90) + 0.05 * random.random()
        event = {
            "event": "train",
            "epoch": (step - 1) // STEPS,
            "step": step,
            "lr": {"main": 0.001},
            "terms": {name: float(decay * (0.05 if name == "fairkl" else 2.3)) for name in terms},
            "seconds": step / 6,
            "images_per_second": 1500.0 + step,
        }
        if "fairkl" in terms:
            event["pairs"] = [
                int(v) for v in random.normal((5900, 640, 640, 58000), (200, 60, 60, 900))
            ]
        events.append(event)
        if step % STEPS == 0:
            done = step // STEPS
            reached = {
                name: float(
                    np.clip(one["value"] * (1 - np.exp(-done / 5)) + 0.01 * random.normal(), 0, 1)
                )
                for name, one in final.items()
            }
            valid = {name: min(1.0, value + 0.02) for name, value in reached.items()}
            events.append(
                {
                    "event": "evaluation",
                    "epoch": done,
                    "step": step,
                    "valid": valid,
                    "test": reached,
                    "seconds": 0.4,
                }
            )
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")


def _examples(folder: Path, labels: np.ndarray, bias: np.ndarray, logits: np.ndarray) -> None:
    p = np.exp(logits - logits.max(1, keepdims=True))
    confidence = (p / p.sum(1, keepdims=True)).max(1)
    wrong = np.flatnonzero(logits.argmax(1) != labels)
    chosen = {
        "aligned": np.flatnonzero(labels == bias)[:12],
        "conflicting": np.flatnonzero(labels != bias)[:12],
        "mistake": wrong[np.argsort(-confidence[wrong])][:12],
    }
    index = np.concatenate(list(chosen.values()))
    kind = np.array([name for name, which in chosen.items() for _ in which])
    images = np.stack([digit(int(labels[i]), int(bias[i])) for i in index])
    np.savez(folder / "examples.npz", images=images, index=index, kind=kind)


def digit(label: int, bias: int) -> np.ndarray:
    """uint8 [3, 28, 28]: a white digit on its colour."""
    colours: Sequence[tuple[int, int, int]] = list(COLOURS.values())
    image = Image.new("RGB", (28, 28), colours[bias])
    ImageDraw.Draw(image).text(
        (8, 1), str(label), fill="white", font=ImageFont.load_default(size=22)
    )
    return np.asarray(image).transpose(2, 0, 1)
