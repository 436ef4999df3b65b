"""No control character from a table or a run folder reaches the terminal, whatever the command."""

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import fairmargin
from fairmargin.cli.app import app
from fairmargin.runtime.terminal import CONTROL

# Clear the screen, hide text, set the clipboard, draw a link, go back, go up by one line (C1), turn
# the text around: none of these is written by our own displays.
HOSTILE = (
    "\x1b[2J\x1b[8m\x1b]52;c;aGk=\x07\x1b]8;;x:y\x1b\\\r\x08\x9b1A\u202egnp\u2066\x7f[link=x:y]"
)
# What Rich's displays write: colours, the cursor hidden and shown, lines up and erased, and a
# return to the start of a line, which ours has after a backslash.
OURS = re.compile(r"\x1b\[(?!8m)[\d;]*m|\x1b\[\?25[lh]|\x1b\[1A|\x1b\[2K|(?<!\\)\r")
SMALL = [
    "data.image_size=8",
    "network.name=simple-conv-3",
    "network.widths=[4, 8]",
    "train.epochs=1",
    "train.batch_size=8",
    "train.device=cpu",
    "evaluate.resamples=20",
    'evaluate.classifiers=["own"]',
]
CHANGES = [word for change in SMALL for word in ("--set", change)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table of pictures, whose every name is hostile, and a run on it."""
    folder = tmp_path_factory.mktemp("hostile")
    random = np.random.default_rng(0)
    rows = []
    for k in range(96):
        label, light = k % 2, (k // 2) % 2
        name = f"{k}{HOSTILE}.png"
        pixels = random.integers(0, 80, (8, 8, 3)) + 60 * label + 100 * light
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
        split = ("train", "train", "valid", "test")[k // 24]
        rows.append([name, f"{['cat', 'dog'][label]}{HOSTILE}", f"b{light}{HOSTILE}", split])
    header = ["path", "label", f"light{HOSTILE}", "split"]
    table = folder / "my.csv"
    write_table(table, [header, *rows])
    write_table(folder / "bad.csv", [header, *rows, [f"gone{HOSTILE}.png", *rows[0][1:]]])
    (folder / f"broken{HOSTILE}.png").write_bytes(b"no picture")
    done = invoke("train", *trained(folder), "--method", "ce", "--out", folder / "run")
    assert done.exit_code == 0, done.output
    assert_clean(done)
    shutil.copytree(folder / "run", folder / "edited")
    edit(folder / "edited" / "result.json", hostile_result)
    return folder


def write_table(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def trained(folder, table="my.csv"):
    return ["--dataset", folder / table, *bias_columns(), *CHANGES]


def bias_columns():
    return ("--set", f"data.bias_columns={json.dumps([f'light{HOSTILE}'])}")


def edit(file, change):
    content = json.loads(file.read_text("utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def hostile_result(result):
    """What somebody else may write into a result."""
    result["warnings"] = [f"careful {HOSTILE}"]
    result["method"] = f"ce {HOSTILE}"
    result["dataset"] = f"mine {HOSTILE}"
    result.pop("sha256", None)


def invoke(*words, env=None):
    # Lines are not cut, so that every name is there in full.
    environment = {"COLUMNS": "400", "FORCE_COLOR": None, "NO_COLOR": None} | (env or {})
    return CliRunner().invoke(app, list(map(str, words)), env=environment)


def assert_clean(done, *, terminal=False):
    for text in (done.stdout, done.stderr):
        left = OURS.sub("", text) if terminal else text
        found = CONTROL.search(left)
        assert found is None, ascii(left[max(0, found.start() - 200) : found.end() + 80])


def commands(folder):
    """Every command that shows something of a table or a run, with its words."""
    run, edited = folder / "run", folder / "edited"
    columns = bias_columns()
    one_column = ("--bias-columns", f"light{HOSTILE}")
    size = ("--set", "data.image_size=8")
    quick = ("--permutations", "199", *size, "--out", folder / "audit")
    limits = ("--min-accuracy", "plain=1.0", "--min-worst-group", "1.0")
    return {
        "train again": ("train", *trained(folder), "--method", "ce", "--out", run),
        "train on a bad table": ("train", *trained(folder, "bad.csv"), "--out", folder / "none"),
        "train, no such column": ("train", "--dataset", folder / "my.csv", "--set", "data.x=1"),
        "data show": ("data", "show", folder / "my.csv", *one_column, "--out", folder / "show.png"),
        "data show, bad": ("data", "show", folder / "bad.csv"),
        "audit a table": ("audit", folder / "my.csv", *columns, *quick),
        "audit a run": ("audit", run, "--out", folder / "audit"),
        "audit runs": ("audit", folder, "--out", folder / "audits"),
        "report": ("report", run, edited, "--out", folder / "report.html"),
        "check": ("check", run, edited, *limits),
        "check, no such accuracy": ("check", run, "--min-accuracy", f"{HOSTILE}=1"),
        "verify": ("verify", run, edited),
        "evaluate": ("evaluate", run),
        "evaluate edited": ("evaluate", edited),
        "evaluate other data": ("evaluate", run, "--data", folder / "my.csv", *columns),
        "evaluate bad data": ("evaluate", run, "--data", folder / "bad.csv", *columns),
        "predict": ("predict", run, folder),
        "predict nothing": ("predict", run, folder / f"gone{HOSTILE}.png"),
        "card": ("card", run),
        "card of edited": ("card", edited),
        "export": ("export", edited, "--format", f"x{HOSTILE}"),
        "a folder that is none": ("report", folder / f"no{HOSTILE}"),
        "compare": (
            *("compare", *trained(folder), "--methods", "ce", "--seeds", "1"),
            *("--out", folder / "many"),
        ),
        "tune": ("tune", "--dataset", folder / "bad.csv", "--out", folder / "tuned"),
        "scores": ("scores", "--dataset", folder / "bad.csv", "--out", folder / "scores"),
        "reproduce": ("reproduce", f"table{HOSTILE}"),
        "list": ("list", f"methods{HOSTILE}"),
        "data get": ("data", "get", f"mnist{HOSTILE}"),
        "no such command": (f"go{HOSTILE}",),
        "no such option": ("train", f"--go{HOSTILE}"),
        "no number": ("train", "--seed", f"1{HOSTILE}"),
    }


NAMES = list(commands(Path()))


@pytest.mark.parametrize("name", NAMES)
def test_no_command_sends_a_control_character(name, folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = invoke(*commands(folder)[name])
    assert not done.exception or isinstance(done.exception, SystemExit), done.exception
    assert done.output
    assert_clean(done)


@pytest.mark.parametrize("name", ["audit a table", "evaluate other data", "predict", "train"])
def test_a_terminal_gets_our_own_sequences_alone(name, folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    train = ("train", *trained(folder), "--method", "ce", "--out", tmp_path / "run")
    words = train if name == "train" else commands(folder)[name]
    done = invoke(*words, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert "\x1b[" in done.stdout + done.stderr
    assert_clean(done, terminal=True)


def test_files_keep_the_true_names(folder, tmp_path):
    assert invoke("predict", folder / "run", folder, "--out", tmp_path / "out.csv").exit_code == 1
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {Path(row["path"]).name for row in rows} >= {f"0{HOSTILE}.png", f"95{HOSTILE}.png"}
    assert {row["class"] for row in rows} <= {f"cat{HOSTILE}", f"dog{HOSTILE}"}
    data = json.loads((folder / "run" / "data.json").read_text("utf-8"))
    assert data["class_names"] == [f"cat{HOSTILE}", f"dog{HOSTILE}"]


def test_a_traceback_has_none(monkeypatch):
    """The error that nobody expects is printed after the command has ended."""

    def broken(*given, **options):
        raise RuntimeError(f"at {HOSTILE}")

    monkeypatch.setattr("fairmargin.runs.record.find_runs", broken)
    streams = sys.stdout, sys.stderr, sys.excepthook
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "argv", ["fairmargin", "verify", "run"])
    try:
        with pytest.raises(RuntimeError) as raised:
            app()
        sys.excepthook(raised.type, raised.value, raised.tb)
        said = sys.stderr.stream.getvalue()
    finally:
        sys.stdout, sys.stderr, sys.excepthook = streams
    assert "RuntimeError" in said
    assert "\\u001b[2J" in said
    assert CONTROL.search(said) is None


def test_every_console_is_ours():
    """Rich's own would send what it is given."""
    package = Path(fairmargin.__file__).parent
    for file in package.rglob("*.py"):
        if file.name == "terminal.py":
            continue
        text = file.read_text("utf-8")
        own = re.search(r"^ *from fairmargin\.runtime\.terminal import .*\bConsole\b", text, re.M)
        made = re.findall(r"(?<![\w.])Console\((?!quiet=True)", text)
        assert own or not made, file
        displays = re.search(r"(?<![\w.])(Live|Progress|track|Status)\(", text)
        assert not displays or "redirect_stdout=False" in text, file


@pytest.mark.parametrize("words", [("data", "list"), ("audit",)])
def test_our_own_colours_are_no_markup(words, folder):
    """A console that reads no markup would print it."""
    if words == ("audit",):
        words = commands(folder)["audit a table"]
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    assert "[/" not in done.stdout


def test_a_table_has_whole_escapes_and_straight_columns(folder):
    done = invoke(*commands(folder)["evaluate other data"])
    lines = [line for line in done.stdout.splitlines() if re.match(" (class|cat|dog|─)", line)]
    assert len([line for line in lines if "[link=x:y]" in line]) == 3
