"""What is shown instead of control characters, by consoles and by standard output."""

import io
import json
import sys

import pytest
from rich.table import Table
from rich.text import Text

from fairmargin.runtime.terminal import Console, Guard, guarded, lines_above, visible

LINK = "\x1b]8;;x:y\x1b\\here"


@pytest.mark.parametrize(
    "text", ["\x1b", "\r", "\b", "\a", "\0", "\x7f", "\x80", "\x9b", "\x9f", "\u202e", "\u2066"]
)
def test_control_characters_are_shown(text):
    assert visible(f"a{text}b") == f"a\\u{ord(text):04x}b"


def test_everything_else_stays():
    text = "a\tb\nε τ é 漢字 עברית العربية 👩‍👩‍👧 \\x1b \u200d"
    assert visible(text) == text


def test_bytes_that_are_no_text_are_shown():
    assert visible("a\udc9b.png") == "a\\udc9b.png"


def test_json_stays_what_it_is():
    content = {"name": "a\x1b[2J\u202e\x9b"}
    assert json.loads(visible(json.dumps(content, ensure_ascii=False))) == content


def console(**options):
    return Console(file=io.StringIO(), force_terminal=True, width=60, **options)


@pytest.mark.parametrize("made", [str, Text])
def test_a_console_escapes_texts_and_keeps_its_colours(made):
    out = console(color_system="standard")
    table = Table()
    table.add_column(made(LINK), no_wrap=True, min_width=40)
    table.add_row(made(LINK))
    out.print(table)
    out.print(LINK, style="red", highlight=False)
    said = out.file.getvalue()
    assert said.count("\\u001b]8;;x:y") == 3
    assert "\x1b]" not in said
    assert "\x1b[31m" in said


def test_a_table_of_escaped_names_is_straight():
    out = console(color_system=None)
    table = Table("name", "n")
    table.add_row(f"a{LINK}", "1")
    table.add_row("b", "2")
    out.print(table)
    lines = out.file.getvalue().splitlines()
    assert len({len(line) for line in lines}) == 1


def test_nothing_is_markup():
    out = console(color_system="standard")
    out.print("[red]a[/red] [link=x:y]b[/link] :smile:", highlight=False)
    assert "[red]a[/red] [link=x:y]b[/link] :smile:" in out.file.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_above_a_live_display_are_escaped(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with guarded(), lines_above(Console()):
        print(f"printed {LINK}\x1b[31m")
        print(f"warned {LINK}", file=sys.stderr)
    said = terminal.getvalue()
    assert said.count("\\u001b]8;;x:y") == 2
    assert "\x1b]" not in said
    assert "\\u001b[31m" in said
    assert sys.stdout is terminal


def test_a_guard_passes_no_bytes_and_closes_nothing():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    guard = Guard(stream)
    assert not hasattr(guard, "buffer")
    assert (guard.encoding, guard.errors, guard.isatty()) == ("ascii", "backslashreplace", False)
    guard.close()
    del guard
    assert not stream.closed


def test_streams_come_back_after_a_handled_error():
    before = sys.stdout, sys.stderr

    @guarded()
    def ends():
        assert isinstance(sys.stdout, Guard)
        raise SystemExit(2)

    with pytest.raises(SystemExit):
        ends()
    assert (sys.stdout, sys.stderr) == before
