"""Compile the C files of this folder and load them."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from fairmargin.networks.native.codelets import codelets

VARIABLE = "FAIRMARGIN_NATIVE"
FLAGS = (
    "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-shared", "-fPIC",
)  # fmt: skip
FOLDER = Path(__file__).parent
# Numbers of the longest vector: sizes must be multiples of it.
WIDTH = 16


def is_wanted() -> bool:
    """Whether the user asked for the compiled kernels."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


@lru_cache(maxsize=1)
def norms() -> ctypes.CDLL:
    """Return the kernels of norms.c."""
    loaded = _load("norms.c", "")
    loaded.apply.restype = loaded.gradient.restype = None
    return loaded


@lru_cache(maxsize=1)
def products() -> ctypes.CDLL:
    """Return the kernels of products.c."""
    return _load("products.c", "")


@lru_cache(maxsize=16)
def spectra(side: int, length: int, first: int = 0) -> ctypes.CDLL:
    """Return the kernels of spectra.c for one size of maps.

    Args:
        side: height and width of the maps.
        length: of their transforms along each axis.
        first: coordinate of the first row and column, negative for a kernel's.
    """
    loaded = _load("spectra.c", codelets(side, length, first))
    loaded.spectrum.restype = loaded.pixels.restype = None
    return loaded


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """Return the address of a contiguous float32 tensor on the CPU."""
    return ctypes.c_void_p(tensor.data_ptr())


def sizes(*numbers: int) -> list[ctypes.c_long]:
    """Return whole numbers as C takes them."""
    return [ctypes.c_long(number) for number in numbers]


def share(work: Callable[[int, int], int | None], number: int, unit: int = 1) -> None:
    """Call work(begin, end) for parts of 0 … number − 1, on as many threads as PyTorch has.

    Args:
        work: calls a kernel, which returns 1 if it found no memory.
        number: what is shared.
        unit: parts begin at multiples of it.
    """
    threads = torch.get_num_threads()
    part = -(-number // (threads * unit)) * unit
    begins = range(0, number, part)
    ends = [min(begin + part, number) for begin in begins]
    others = []
    if len(begins) > 1:
        pool = _pool(threads, os.getpid())
        others = [
            pool.submit(work, begin, end) for begin, end in zip(begins[1:], ends[1:], strict=True)
        ]
    codes = [work(0, ends[0])] + [other.result() for other in others]
    if any(codes):
        raise MemoryError("a compiled kernel found no memory for its buffers")


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process; one that was forked off has none of its parent's."""
    return ThreadPoolExecutor(threads - 1)


class KernelError(OSError):
    """The kernels were asked for and cannot be compiled or loaded."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{VARIABLE} is set, and {why}; unset it to train without compiled kernels"
        )


def _load(file: str, generated: str) -> ctypes.CDLL:
    compiler = shutil.which("gcc")
    if compiler is None:
        raise KernelError("there is no gcc to compile with")
    with tempfile.TemporaryDirectory(prefix="fairmargin-") as folder:
        (Path(folder) / "codelets.h").write_text(generated)
        result = Path(folder) / "kernels.so"
        paths = [f"-I{folder}", f"-I{FOLDER}", str(FOLDER / file), "-o", str(result)]
        done = subprocess.run(
            [compiler, *FLAGS, *paths], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error:" in line]
            raise KernelError(f"{file} does not compile: {(said or ['no message'])[0]}")
        try:
            return ctypes.CDLL(str(result))
        except OSError as error:  # a folder that nothing may be loaded from, for instance
            raise KernelError(f"what was compiled of {file} cannot be loaded: {error}") from error
