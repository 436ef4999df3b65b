"""The report in a real Chromium: nothing missing, nothing cut off, nothing loaded, no errors."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairmargin.report.page import write_report
from tests.report.fake_runs import write_awkward_run, write_run, write_unfinished_run
from tests.report.test_page import FIGURES

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="needs Chromium: no chromium, chromium-browser or google-chrome here"
)

WIDE, PHONE, NARROW = 1280, 390, 360
PATIENCE = 60  # seconds for one answer of the browser

CHECK = """(() => {
  const all = (what) => [...document.querySelectorAll(what)];
  const box = (e) => e.getBoundingClientRect();
  const limit = document.documentElement.clientWidth;
  const scrolling = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const scrolls = (e) => e && (scrolling(e) || scrolls(e.parentElement));
  const classes = (e) => [...e.classList].map((c) => "." + c);
  const name = (e) => [e.tagName.toLowerCase(), e.id && "#" + e.id, ...classes(e)].join("");
  const zoom = (matrix) => Math.hypot(matrix.a, matrix.b);
  const letters = (e) => parseFloat(getComputedStyle(e).fontSize) * zoom(e.getScreenCTM());
  const decoded = (e) => e.complete && e.naturalWidth > 0;
  const shown = all("body *").filter((e) => e.checkVisibility() && !e.closest(".sr"));
  const drawn = all("figure[data-figure], figure svg.chart");
  return {
    width: innerWidth,
    scrollWidth: document.documentElement.scrollWidth,
    overflowing: shown.filter((e) => box(e).right > limit + 1 && !scrolls(e)).map(name),
    figures: all("figure[data-figure]").map((e) => e.dataset.figure),
    empty: drawn.filter((e) => !(box(e).width > 60 && box(e).height > 40)).map(name),
    undecoded: [...document.images].filter((e) => !decoded(e)).map((e) => e.alt),
    images: document.images.length,
    smallest: Math.min(...all("svg.chart text").map(letters)),
    headings: all("h1,h2,h3,h4,h5,h6").map((e) => Number(e.tagName[1])),
    unnamed: all("svg:not([aria-hidden])").filter((e) => !e.getAttribute("aria-label")).length,
    background: getComputedStyle(document.body).backgroundColor,
    closed: all("details").filter((e) => !e.lastElementChild.checkVisibility()).length,
    buttons: all(".legend button").length,
  };
})()"""


class Browser:
    """A headless Chromium behind its debugging pipe: JSON messages that end in a zero byte."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        to_read, self.sending = os.pipe()
        self.receiving, to_write = os.pipe()

        def connect() -> None:  # the browser expects the pipe at descriptors 3 and 4
            os.dup2(to_read, 10)
            os.dup2(to_write, 11)
            os.dup2(10, 3)
            os.dup2(11, 4)

        flags = (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-sync", "--disable-background-networking", "--disable-component-update",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={profile}", "about:blank",
        )  # fmt: skip
        self.process = subprocess.Popen(
            [PROGRAM, *flags],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.number, self.unread, self.events = 0, b"", list[dict[str, Any]]()

    def close(self) -> None:
        try:
            self.ask("Browser.close")
        finally:
            os.close(self.sending)
            os.close(self.receiving)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self.sending, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer}"
                return dict(answer["result"])
            self.events.append(answer)

    def wait_for(self, event: str) -> None:
        while not any(one.get("method") == event for one in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.receiving], [], [], PATIENCE)
            assert ready, f"the browser did not answer in {PATIENCE} s"
            read = os.read(self.receiving, 1 << 20)
            assert read, "the browser has gone away"
            self.unread += read
        message, _, self.unread = self.unread.partition(b"\0")
        return dict(json.loads(message))

    def look(
        self,
        page: Path,
        width: int,
        *,
        media: str = "screen",
        scheme: str = "light",
        scripts: bool = True,
        picture: Path | None = None,
    ) -> dict[str, Any]:
        """Open a page at this width; return what CHECK finds, the errors, and what was loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable", session)
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            session,
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.ask(
            "Emulation.setEmulatedMedia",
            session,
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.ask("Emulation.setScriptExecutionDisabled", session, value=not scripts)
        self.ask("Page.navigate", session, url=page.as_uri())
        self.wait_for("Page.loadEventFired")
        time.sleep(0.05)  # errors that follow the load event
        answer = self.ask("Runtime.evaluate", session, expression=CHECK, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        found = dict(answer["result"]["value"])
        if picture is not None:
            drawn = self.ask("Page.captureScreenshot", session, captureBeyondViewport=True)
            picture.write_bytes(base64.b64decode(drawn["data"]))
        found["errors"] = [json.dumps(one["params"]) for one in self.events if _is_error(one)]
        found["loaded"] = [
            one["params"]["request"]["url"]
            for one in self.events
            if one.get("method") == "Network.requestWillBeSent"
        ]
        self.ask("Target.closeTarget", targetId=target)
        return found


def _is_error(event: dict[str, Any]) -> bool:
    method, said = event.get("method"), event.get("params", {})
    return (
        method == "Runtime.exceptionThrown"
        or (method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"))
        or (method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"))
    )


def problems(found: dict[str, Any], expected: set[str]) -> list[str]:
    """Everything that is wrong with a page, in words; none for a good one."""
    said = [f"figure {name} is missing" for name in sorted(expected - set(found["figures"]))]
    said += [
        f"{name} is drawn twice"
        for name in set(found["figures"])
        if found["figures"].count(name) > 1
    ]
    said += [f"{name} has no size" for name in found["empty"]]
    said += [f"image not decoded: {alt}" for alt in found["undecoded"]]
    said += [f"wider than the page: {name}" for name in found["overflowing"][:5]]
    said += [f"console: {text}" for text in found["errors"]]
    said += [
        f"loads {url[:80]}"
        for url in found["loaded"]
        if not url.startswith(("file:", "data:image/png"))
    ]
    if found["scrollWidth"] > found["width"]:
        said.append(f"{found['scrollWidth']} px wide on a screen of {found['width']}")
    if found["unnamed"]:
        said.append(f"{found['unnamed']} pictures without a label")
    steps = [b - a for a, b in zip(found["headings"], found["headings"][1:], strict=False)]
    if found["headings"][0] != 1 or found["headings"].count(1) != 1 or max(steps, default=0) > 1:
        said.append(f"headings are out of order: {found['headings']}")
    return said


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        write_run(folder / "ce", "ce", n=200),
        write_run(folder / "fk", "eps-supinfonce+fairkl", n=200, extra=True),
    ]
    return write_report(runs, folder / "report.html")


@pytest.mark.parametrize("width", [WIDE, PHONE, NARROW])
def test_page_is_whole_at(browser, page, width):
    found = browser.look(page, width)
    assert found["width"] == width  # laid out as asked, not at the browser's own least width
    assert problems(found, FIGURES) == []
    assert found["images"] > 20
    assert found["smallest"] > 7.5  # pixels of the smallest letters in a chart
    assert found["buttons"] > 0  # the script ran


def test_dark_page_is_dark(browser, page):
    light, dark = (browser.look(page, WIDE, scheme=scheme) for scheme in ("light", "dark"))
    assert problems(dark, FIGURES) == []
    assert _brightness(light["background"]) > 240
    assert _brightness(dark["background"]) < 40


def test_printed_page_is_light_and_open(browser, page):
    screen = browser.look(page, 686)  # the width of A4 between its margins
    printed = browser.look(page, 686, media="print", scheme="dark", scripts=False)
    assert screen["closed"] > 0
    assert printed["closed"] == 0
    assert printed["empty"] == []
    assert printed["overflowing"] == []


def test_page_needs_no_script(browser, page):
    found = browser.look(page, PHONE, scripts=False)
    assert problems(found, FIGURES) == []
    assert found["buttons"] == 0


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_awkward_pages_are_whole_too(browser, tmp_path, width):
    runs = [
        write_awkward_run(tmp_path / "awkward"),
        write_run(tmp_path / "a", "ce", n=80),
        write_run(tmp_path / "b", "ce", seed=1, n=80),
        write_unfinished_run(tmp_path / "unfinished"),
    ]
    found = browser.look(write_report(runs, tmp_path / "report.html"), width)
    found["figures"] = sorted(
        set(found["figures"])
    )  # two datasets have some figures of the same name
    assert (
        problems(found, {"headline", "cells-my-own-method", "cells-cross-entropy", "groups"}) == []
    )


def test_missing_figure_is_noticed(browser, page, tmp_path):
    whole = page.read_text(encoding="utf-8")
    start = whole.index('<figure id="d0-cells-cross-entropy"')
    copy = tmp_path / "copy.html"
    copy.write_text(whole[:start] + whole[whole.index("</figure>", start) + 9 :], encoding="utf-8")
    assert problems(browser.look(copy, WIDE), FIGURES) == ["figure cells-cross-entropy is missing"]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("console.error('broken chart')", "broken chart"),
        ("throw new Error('boom')", "boom"),
        ("fetch('https://example.org')", ""),
    ],
)
def test_error_in_the_console_is_noticed(browser, page, tmp_path, script, told):
    copy = tmp_path / "copy.html"
    whole = page.read_text(encoding="utf-8")
    copy.write_text(whole.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    found = problems(browser.look(copy, WIDE), FIGURES)
    assert any(one.startswith("console: ") and told in one for one in found)


def test_overflow_and_broken_image_are_noticed(browser, page, tmp_path):
    copy = tmp_path / "copy.html"
    added = (
        '<p class="too-wide" style="width:900px">wide</p>'
        '<img alt="broken" src="data:image/png;base64,AAAA">'
    )
    copy.write_text(
        page.read_text(encoding="utf-8").replace("<footer>", added + "<footer>"), encoding="utf-8"
    )
    found = problems(browser.look(copy, PHONE), FIGURES)
    assert "wider than the page: p.too-wide" in found
    assert "image not decoded: broken" in found


def _brightness(colour: str) -> float:
    """Mean of the channels of "rgb(r, g, b)"."""
    channels = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(channels) / 3
