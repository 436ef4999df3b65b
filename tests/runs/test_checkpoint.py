import errno
import hashlib
import io
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from fairmargin.runs.checkpoint import load, newest, save
from fairmargin.runtime import whole
from fairmargin.runtime.files import CheckpointError, DamagedCheckpoint


def state(step=1):
    return {
        "step": step,
        "weights": torch.arange(6.0).reshape(2, 3) * step,
        "deep": {"list": [1, (2.5, "x", None)]},
    }


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestRoundTrip:
    def test_everything_a_state_may_hold(self, tmp_path):
        given = {
            "floats": torch.randn(3, 4),
            "half": torch.randn(5).bfloat16(),
            "double": torch.tensor(1 / 3, dtype=torch.float64),
            "integers": torch.tensor([2**62, -1]),
            "flags": torch.tensor([True, False]),
            "empty": torch.empty(0, 3),
            "strided": torch.arange(12).reshape(3, 4).T,
            "nested": {"a": {"b": [1, 2.5, True, None, "ε", b"\x00", (1, [2])]}, 7: "integer key"},
            "ordered": OrderedDict(b=1, a=2),
            "shape": torch.Size([1, 2]),
            "dtype": torch.float16,
            "infinite": float("inf"),
            "large": 2**200,
        }
        assert_same(load(save(tmp_path, 3, given)), given)

    def test_training_continues_bit_by_bit(self, tmp_path):
        def fresh():
            torch.manual_seed(0)
            network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
            return network, torch.optim.Adam(network.parameters(), lr=0.1)

        def steps(network, optimizer, number):
            for _ in range(number):
                optimizer.zero_grad()
                network(x).square().mean().backward()
                optimizer.step()

        x = torch.randn(16, 4)
        network, optimizer = fresh()
        steps(network, optimizer, 3)
        path = save(
            tmp_path, 3, {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        )
        steps(network, optimizer, 3)
        other, other_optimizer = fresh()
        saved = load(path)
        other.load_state_dict(saved["network"])
        other_optimizer.load_state_dict(saved["optimizer"])
        steps(other, other_optimizer, 3)
        assert_same(dict(other.state_dict()), dict(network.state_dict()))

    def test_what_could_not_be_read_again_is_refused_before_it_is_written(self, tmp_path):
        with pytest.raises(TypeError, match=r"state\['random'\]\[1\] is a ndarray"):
            save(tmp_path, 1, {"random": ["MT19937", np.arange(3)]})
        with pytest.raises(TypeError, match="keep tensors, numbers, strings"):
            save(tmp_path, 1, {"network": nn.Linear(1, 1)})
        with pytest.raises(TypeError, match=r"state\['size'\] is a float64"):
            save(tmp_path, 1, {"size": np.float64(1)})
        assert names(tmp_path) == []

    def test_container(self, tmp_path):
        content = save(tmp_path / "new" / "folder", 123, state()).read_bytes()
        header, _, rest = content.partition(b"\n")
        words = header.decode().split()
        assert words[:4] == ["fairmargin", "checkpoint", "1", "sha256"]
        assert int(words[5]) == len(rest)
        assert names(tmp_path / "new" / "folder") == ["step-00000123.ckpt"]

    def test_bad_numbers(self, tmp_path):
        for step, keep in ((-1, 2), (1, 0)):
            with pytest.raises(ValueError, match="at least"):
                save(tmp_path, step, state(), keep=keep)


class TestKeep:
    @pytest.mark.parametrize("keep", [1, 2, 3, 4, 5, 9])
    def test_the_last_ones_stay(self, tmp_path, keep):
        for step in (1, 5, 20, 100, 3000):
            save(tmp_path, step, state(step), keep=keep)
        kept = [1, 5, 20, 100, 3000][-keep:]
        assert names(tmp_path) == [f"step-{step:08d}.ckpt" for step in kept]
        assert newest(tmp_path).step == 3000

    def test_steps_beyond_eight_digits_are_newer(self, tmp_path):
        for step in (99_999_999, 100_000_000, 100_000_001):
            save(tmp_path, step, state(step), keep=2)
        assert names(tmp_path) == ["step-100000000.ckpt", "step-100000001.ckpt"]
        assert newest(tmp_path).state["step"] == 100_000_001

    def test_a_damaged_newer_one_costs_no_whole_one(self, tmp_path):
        for step in (100, 200):
            save(tmp_path, step, state(step))
        (tmp_path / "step-00000200.ckpt").write_bytes(b"broken")
        save(tmp_path, 150, state(150), keep=2)
        assert names(tmp_path) == [f"step-00000{step}.ckpt" for step in (100, 150, 200)]
        found = newest(tmp_path)
        assert (found.step, [path.name for path, _ in found.damaged]) == (
            150,
            ["step-00000200.ckpt"],
        )

    def test_same_step_again_replaces_it(self, tmp_path):
        save(tmp_path, 4, {"a": 1})
        save(tmp_path, 4, {"a": 2})
        assert newest(tmp_path).state == {"a": 2}

    def test_leftovers_of_killed_processes_go_and_other_files_stay(self, tmp_path):
        (tmp_path / ".step-00000001.ckpt.77.part").write_bytes(b"half")
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "step-1.ckpt.bak").write_text("mine")
        save(tmp_path, 2, state())
        assert names(tmp_path) == ["notes.txt", "step-00000002.ckpt", "step-1.ckpt.bak"]


class TestDamage:
    @pytest.fixture
    def content(self, tmp_path):
        return save(tmp_path / "source", 1, state()).read_bytes()

    def refused(self, tmp_path, content):
        path = tmp_path / "step-00000009.ckpt"
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint) as caught:
            load(path)
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, CheckpointError)
        return caught.value.why

    def test_truncated_anywhere(self, tmp_path, content):
        lengths = {0, 1, 10, 21, 22, 30, 60, 100, 101, 110, len(content) - 1, len(content) // 2}
        for length in lengths | set(range(0, len(content), 97)):
            why = self.refused(tmp_path, content[:length])
            assert "truncated" in why or "empty" in why, length

    def test_any_flipped_bit(self, tmp_path, content):
        draw = random.Random(0)
        places = [*range(115), *(draw.randrange(len(content)) for _ in range(200))]
        for place in places:
            changed = bytearray(content)
            changed[place] ^= 1 << draw.randrange(8)
            self.refused(tmp_path, bytes(changed))

    def test_reasons(self, tmp_path, content):
        header, _, rest = content.partition(b"\n")
        assert "2 and this fairmargin reads 1" in self.refused(
            tmp_path, content.replace(b"checkpoint 1", b"checkpoint 2", 1)
        )
        assert "first line" in self.refused(
            tmp_path, content.replace(b"checkpoint 1", b"checkpoint 0", 1)
        )
        upper = (
            header[:32] + header[32:].upper()
        )  # a checksum in other letters is not the one that was written
        assert "first line" in self.refused(tmp_path, upper + b"\n" + rest)
        assert "too long" in self.refused(tmp_path, content + b"x")
        assert "not a checkpoint" in self.refused(tmp_path, rest)
        assert "not a checkpoint" in self.refused(tmp_path, b"\x00" * 5000)
        assert "empty" in self.refused(tmp_path, b"")
        swapped = bytearray(content)
        swapped[-1] ^= 255
        assert "checksum" in self.refused(tmp_path, bytes(swapped))

    def test_missing_file_and_folder_in_its_place(self, tmp_path):
        with pytest.raises(DamagedCheckpoint, match="there is no such file"):
            load(tmp_path / "step-00000001.ckpt")
        (tmp_path / "step-00000002.ckpt").mkdir()
        with pytest.raises(DamagedCheckpoint, match="cannot be read"):
            load(tmp_path / "step-00000002.ckpt")


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (self.target,)


def sealed(payload):
    """A container around any bytes, with the right checksum."""
    digest = hashlib.sha256(payload).hexdigest()
    return f"fairmargin checkpoint 1 sha256 {digest} {len(payload)}\n".encode() + payload


class TestNothingIsExecuted:
    def test_torch_file_with_a_bomb(self, tmp_path):
        buffer = io.BytesIO()
        torch.save({"state": Bomb(str(tmp_path / "exploded"))}, buffer)
        path = tmp_path / "step-00000001.ckpt"
        path.write_bytes(sealed(buffer.getvalue()))
        with pytest.raises(DamagedCheckpoint, match="never executed"):
            load(path)
        with pytest.raises(CheckpointError, match="can be used"):
            newest(tmp_path)
        assert not (tmp_path / "exploded").exists()
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)  # it is one
        assert (tmp_path / "exploded").exists()

    def test_bare_pickle(self, tmp_path):
        path = tmp_path / "a.ckpt"
        path.write_bytes(sealed(pickle.dumps(Bomb(str(tmp_path / "exploded")), protocol=2)))
        with pytest.raises(DamagedCheckpoint, match="never executed"):
            load(path)
        assert not (tmp_path / "exploded").exists()

    def test_other_archives_and_other_values(self, tmp_path):
        path = tmp_path / "a.ckpt"
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("x/data.pkl", b"nonsense")
        path.write_bytes(sealed((tmp_path / "a.zip").read_bytes()))
        with pytest.raises(DamagedCheckpoint, match="other than tensors"):
            load(path)
        buffer = io.BytesIO()
        torch.save([1, 2], buffer)
        path.write_bytes(sealed(buffer.getvalue()))
        with pytest.raises(DamagedCheckpoint, match="a list, not a state"):
            load(path)


class TestNewest:
    def test_none_at_all(self, tmp_path):
        assert newest(tmp_path) is None
        assert newest(tmp_path / "nowhere") is None

    def test_passes_over_damaged_ones_and_says_so(self, tmp_path):
        for step in (1, 2, 3):
            save(tmp_path, step, state(step), keep=3)
        os.truncate(tmp_path / "step-00000003.ckpt", 200)
        (tmp_path / "step-00000002.ckpt").write_bytes(b"")
        found = newest(tmp_path)
        assert (found.step, found.path.name) == (1, "step-00000001.ckpt")
        assert_same(found.state, state(1))
        assert [path.name for path, _ in found.damaged] == [
            "step-00000003.ckpt",
            "step-00000002.ckpt",
        ]
        assert "truncated" in found.damaged[0][1]
        assert "empty" in found.damaged[1][1]

    def test_all_damaged(self, tmp_path):
        for step in (1, 2):
            (tmp_path / f"step-0000000{step}.ckpt").write_bytes(b"x")
        with pytest.raises(CheckpointError) as caught:
            newest(tmp_path)
        message = str(caught.value)
        assert "step-00000001.ckpt: it is not a checkpoint" in message
        assert "step-00000002.ckpt: " in message
        assert "remove these files to train from the beginning" in message


def mounted(folder, options):
    """A small file system of its own at `folder`, or a skip that says why not."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def unmounted():
    folders = []
    yield folders.append
    for folder in folders:
        subprocess.run(["umount", str(folder)], check=False, capture_output=True)


class TestFailures:
    @pytest.mark.parametrize(
        ("function", "number"),
        [
            ("fsync", errno.ENOSPC),
            ("fsync", errno.EIO),
            ("replace", errno.EROFS),
            ("replace", errno.EACCES),
        ],
    )
    def test_older_ones_stay_and_the_message_says_what_to_do(
        self, tmp_path, monkeypatch, function, number
    ):
        save(tmp_path, 7, state(7))

        def fails(*arguments):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, function, fails)
        with pytest.raises(CheckpointError) as caught:
            save(tmp_path, 8, state(8))
        message = str(caught.value)
        assert caught.value.errno == number
        assert os.strerror(number) in message
        assert str(tmp_path / "step-00000008.ckpt") in message
        # How much space there is matters for a full disk alone.
        assert ("it needs" in message) == (number == errno.ENOSPC)
        assert ("are free" in message) == (number == errno.ENOSPC)
        assert "Training can go on" in message
        assert "resumes from step 7" in message
        monkeypatch.undo()
        assert names(tmp_path) == ["step-00000007.ckpt"]
        assert newest(tmp_path).step == 7

    def test_write_fails_halfway(self, tmp_path, monkeypatch):
        real = whole.open_plain

        class Full:
            def __init__(self, file):
                self.file, self.left = file, 100

            def write(self, part):
                if len(part) > self.left:
                    self.file.write(bytes(part)[: self.left])
                    raise OSError(errno.ENOSPC, "No space left on device")
                self.left -= len(part)
                return self.file.write(part)

            def __enter__(self):
                return self

            def __exit__(self, *error):
                self.file.close()

        monkeypatch.setattr(whole, "open_plain", lambda path, mode: Full(real(path, mode)))
        with pytest.raises(CheckpointError, match="resumes from the beginning: there is none yet"):
            save(tmp_path, 1, state())
        monkeypatch.undo()
        assert names(tmp_path) == []

    def test_interrupted_by_the_keyboard(self, tmp_path, monkeypatch):
        def interrupted(*arguments):
            raise KeyboardInterrupt

        save(tmp_path, 1, state())
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2, state())
        assert names(tmp_path) == ["step-00000001.ckpt"]

    def test_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match=r"cannot write .*step-00000001\.ckpt"):
            save(tmp_path / "file" / "checkpoints", 1, state())

    def test_disk_full(self, tmp_path, unmounted):
        folder = tmp_path / "small"
        mounted(folder, "size=300k")
        unmounted(folder)
        save(folder, 1, {"x": torch.zeros(100)})
        before = (folder / "step-00000001.ckpt").read_bytes()
        with pytest.raises(
            CheckpointError,
            match=r"No space left on device \(it needs 0.4 MB, 0.[0-3] MB are free\)",
        ):
            save(folder, 2, {"x": torch.zeros(100_000)})
        assert names(folder) == ["step-00000001.ckpt"]
        assert (folder / "step-00000001.ckpt").read_bytes() == before
        save(folder, 3, {"x": torch.ones(100)})
        assert newest(folder).step == 3

    def test_read_only_file_system(self, tmp_path, unmounted):
        folder = tmp_path / "fixed"
        mounted(folder, "size=300k")
        unmounted(folder)
        save(folder, 1, state(1))
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises(CheckpointError, match="Read-only file system"):
            save(folder, 2, state(2))
        assert newest(folder).step == 1


KILLED = """
import sys, torch
from pathlib import Path
from fairmargin.runs.checkpoint import newest, save
folder = Path(sys.argv[1])
found = newest(folder)
step = found.step if found else 0
while True:
    step += 1
    save(folder, step, {"step": step, "x": torch.full((50_000,), float(step))})
    print(step, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path):
    draw, last = random.Random(0), 0
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert int(process.stdout.readline()) == last + 1
        time.sleep(draw.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = newest(tmp_path)
        assert found.step > last
        assert found.damaged == []
        assert torch.equal(found.state["x"], torch.full((50_000,), float(found.step)))
        last = found.step
    assert len(list(tmp_path.glob("step-*.ckpt"))) <= 3  # killed between the rename and the removal
