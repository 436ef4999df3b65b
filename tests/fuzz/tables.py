"""Random tables of images: odd encodings, NULs, huge fields, wrong columns, paths that leave."""

import random
from pathlib import Path

PATHS = [
    "a.png", "b.png", "0.png", "../outside.png", "/etc/passwd", "", ".", "sub", "no.png",
    "é☃.png", "a\x00.png", "x" * 5000 + ".png", "a.png ", " a.png", "~/a.png", "file://a.png",
    "https://example.org/a.png", "a.png\n", "sub/e.png", "A.PNG",
    "broken.png", "text.png", "con", "*",
    "//a.png", "./././a.png", "sub/../a.png", "link.png", "loop.png", "pipe.png",
]  # fmt: skip
LABELS = [
    "cat", "dog", "0", "1", "", " ", "nan",
    "None", "-1", "1e400", "=1+1", "<b>", "é", "\x00", "\x1b[2J",
    "x" * 200_000, "cat ", "CAT", "9" * 400, "²", "\ud7ff", '"', "a,b", "cat\ndog", "\u202e", "٣",
]  # fmt: skip
SPLITS = ["train", "test", "valid", "train", "train", "", "TEST", "val", "x", "0"]
COLUMNS = [
    "path",
    "label",
    "bias",
    "split",
    "weight",
    "path",
    "",
    " label",
    "Label",
    "image",
    "\ufeffpath",
]
ENCODINGS = [
    "utf-8",
    "utf-8",
    "utf-8",
    "utf-8-sig",
    "utf-16",
    "latin-1",
    "utf-32",
    "cp1252",
    "utf-7",
]
OPTIONS = [
    "data.label_column=label", "data.label_column=no",
    "data.bias_columns=[]", "data.bias_columns=bias",
    "data.bias_columns=[\"bias\", \"bias\"]", "data.split_column=none", "data.test_fraction=0.5",
    "data.valid_fraction=0.5", "data.valid_fraction=1.0", "data.valid_fraction=0.0",
    "data.skip_bad=true", "data.skip_bad=true", "data.check_files=exists", "data.image_size=8",
    "data.image_size=0", "data.image_size=100000", "data.mode=pad", "data.weight_column=weight",
    "data.base=sub", "data.base=..", "data.memory_limit=0",
    "data.memory_limit=-5", "data.mean=[0.0, 0.0, 0.0]",
    "data.std=[0.0, 0.0, 0.0]", "data.std=[1, 1]", "data.augment=supcon", "data.augment=false",
    "data.bias_level=true", "data.test_needed=false",
    "data.test_fraction=0.0", "data.test_fraction=2.0",
    "data.inject=colour:0.9", "data.inject=jpeg:0.5",
    "data.path_column=", "data.split_column=label",
    "data.workers=0", "data.workers=-1", "data.seed=-1",
]  # fmt: skip


def _cell(draw: random.Random, column: str, row: int) -> str:
    name = column.strip().lower().lstrip("\ufeff")
    good = draw.random() < 0.985
    if name in ("path", "image"):
        return f"{row}.png" if good else draw.choice(PATHS)
    if name == "split":
        return SPLITS[row % 3] if good else draw.choice(SPLITS)
    if name == "weight":
        return draw.choice(
            ["1", "2.5", "0"] if good else ["-1", "nan", "inf", "1e999", "x", "1e308"]
        )
    return draw.choice(LABELS[:2]) if good else draw.choice(LABELS)


def _quoted(text: str, draw: random.Random) -> str:
    if draw.random() < 0.001:
        return f'"{text}'
    if any(mark in text for mark in ',"\n\r\t') or draw.random() < 0.05:
        return '"' + text.replace('"', '""') + '"'
    return text


def table(draw: random.Random, delimiter: str) -> bytes:
    """The bytes of a table; most of it is right, so that what is wrong is reached.

    Args:
        draw: the stream of the case.
        delimiter: between fields.
    """
    columns = ["path", "label", "bias", "split"]
    if draw.random() < 0.15:
        columns = [draw.choice(COLUMNS) for _ in range(draw.randrange(7))]
    elif draw.random() < 0.3:
        columns.append("weight")
    draw.shuffle(columns)
    rows = [delimiter.join(columns)] if draw.random() < 0.97 else []
    for row in range(draw.choice([0, 1, 3, 12, 12, 12, 24])):
        cells = [_quoted(_cell(draw, column, row), draw) for column in columns]
        if draw.random() < 0.005:
            cells = cells[:-1] if draw.random() < 0.5 else [*cells, "more"]
        rows.append(delimiter.join(cells))
    text = draw.choice(["\n", "\n", "\r\n", "\r"]).join(rows) + draw.choice(["", "\n", "\n\n"])
    content = text.encode(draw.choice(ENCODINGS), "replace")
    if content and draw.random() < 0.1:
        place = draw.randrange(len(content))
        content = (
            content[:place] + draw.choice([b"\x00", b"\xff", b'"', b""]) + content[place + 1 :]
        )
    return content


def make(draw: random.Random, folder: Path) -> list[str]:
    """Write a table beside the case's images; return a command that reads it.

    Args:
        draw: the stream of the case.
        folder: of the case, prepared by `cases`.
    """
    ending, delimiter = draw.choice([(".csv", ","), (".csv", ","), (".csv", ";"), (".tsv", "\t")])
    file = folder / "photos" / f"{draw.choice(['t', 't', 'ü☃', 'a b'])}{ending}"
    file.write_bytes(table(draw, delimiter))
    name = str(file.relative_to(folder))
    changes = draw.sample(OPTIONS, draw.choice([0, 0, 1, 1, 2, 3]))
    sets = [word for change in changes for word in ("--set", change)]
    command = draw.choice(["train", "train", "audit", "show", "predict", "evaluate"])
    if command == "train":
        small = ["--network", "simple-conv-3", "--set", "network.widths=[4]", "--method", "ce"]
        return ["train", "--dataset", name, "--out", "out", *small, *sets]
    if command == "audit":
        return ["audit", name, "--permutations", "9", "--out", "out", *sets]
    if command == "predict":
        return [
            "predict",
            "run",
            name,
            "--out",
            draw.choice(["p.csv", "p.json", "out/p.csv", "run/p.csv"]),
        ]
    if command == "evaluate":
        return ["evaluate", "run", "--data", name, *sets]
    return ["data", "show", name]
