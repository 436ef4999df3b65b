"""Compile the C files of this folder and load them."""

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from ctypes import c_int, c_long, c_void_p
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
# Returns 1 if it found no memory for its buffers, else 0 or nothing.
Kernel = Callable[..., int | None]


class KernelError(OSError):
    """The kernels were asked for and cannot be compiled or loaded."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{VARIABLE} is set, and {why}; unset it to train without kernels")
        self.why = why

    def __reduce__(self) -> tuple[type["KernelError"], tuple[str]]:
        # The way to another process: by default the sentence would be put around itself.
        return KernelError, (self.why,)


def is_wanted() -> bool:
    """Whether the user asked for the compiled kernels."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def can_compile() -> bool:
    """Whether this machine probably can compile the kernels, which are for x86 and GCC."""
    return platform.machine() in ("x86_64", "AMD64") and shutil.which("gcc") is not None


def serves(*tensors: Tensor) -> bool:
    """Return whether the kernels were asked for, and these are float32 on the CPU, uncompiled."""
    if not is_wanted() or torch.compiler.is_compiling():
        return False
    return all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


@lru_cache(maxsize=1)
def norms() -> dict[str, Kernel]:
    """Return the kernels of norms.c by name."""
    maps, part = [c_void_p, *[c_long] * 3], [c_long] * 2
    gradient = [c_void_p, c_long, c_void_p, *maps, *part, c_void_p, c_void_p]
    loaded = _load("norms.c")
    return {
        "statistics": _kernel(loaded.statistics, [*maps, *part, *[c_void_p] * 2], c_int),
        "apply": _kernel(loaded.apply, [*maps, *part, *[c_void_p] * 2, c_int, c_void_p]),
        "gradient_sums": _kernel(
            loaded.gradient_sums, [*gradient, c_void_p, c_int, *[c_void_p] * 2], c_int
        ),
        "gradient": _kernel(loaded.gradient, [*gradient, *[c_void_p] * 3, c_int, c_void_p]),
    }


@lru_cache(maxsize=1)
def multiply() -> Kernel:
    """Return the kernel of products.c."""
    matrix = [c_void_p, c_void_p, c_int]
    words = [*[c_long] * 4, *matrix, *matrix, c_void_p, c_void_p]
    return _kernel(_load("products.c").multiply, words, c_int)


@lru_cache(maxsize=64)
def spectra(side: int, length: int, first: int = 0) -> tuple[Kernel, Kernel]:
    """Return the kernels "spectrum" and "pixels" of spectra.c for one size of maps.

    Args:
        side: height and width of the maps.
        length: of their transforms along each axis.
        first: coordinate of the first row and column, negative for a convolution's kernel.
    """
    loaded = _load("spectra.c", codelets(side, length, first))
    words = [*[c_void_p] * 3, *[c_long] * 3]
    return _kernel(loaded.spectrum, words), _kernel(loaded.pixels, words)


def pointer(tensor: Tensor) -> int:
    """Return the address of a contiguous float32 tensor on the CPU; refuse any other."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(
            f"kernels take contiguous float32 on the CPU; got {tensor.dtype} on {tensor.device}, "
            f"strides {tensor.stride()}"
        )
    return tensor.data_ptr()


def share(work: Callable[[int, int], int | None], number: int, unit: int = 1) -> None:
    """Call work(begin, end) for parts of 0 … number − 1, on as many threads as PyTorch has.

    Args:
        work: calls a kernel.
        number: what is shared.
        unit: parts begin at multiples of it.
    """
    if not number:
        return
    threads = torch.get_num_threads()
    part = -(-number // (threads * unit)) * unit
    others: list[Future[int | None]] = []
    try:
        for begin in range(part, number, part):
            end = min(begin + part, number)
            others.append(_pool(threads, os.getpid()).submit(work, begin, end))
        codes = [work(0, min(part, number)), *(other.result() for other in others)]
    finally:
        # Whatever happens here, nothing may be freed that another thread still uses.
        wait(others)
    if any(codes):
        raise MemoryError("a compiled kernel found no memory for its buffers")


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process; one that was forked off has none of its parent's."""
    return ThreadPoolExecutor(threads - 1)


def _kernel(
    function: "ctypes._NamedFuncPointer", words: Sequence[type], result: type | None = None
) -> Kernel:
    """Declare what a function takes and returns."""
    function.argtypes = words
    function.restype = result
    return function


def _load(file: str, generated: str = "") -> ctypes.CDLL:
    compiler = shutil.which("gcc")
    if compiler is None:
        raise KernelError("there is no gcc to compile with")
    with tempfile.TemporaryDirectory(prefix="fairmargin-") as folder:
        (Path(folder) / "codelets.h").write_text(generated)
        result = Path(folder) / "kernels.so"
        paths = [f"-I{folder}", f"-I{FOLDER}", str(FOLDER / file), "-o", str(result)]
        done = subprocess.run(
            [compiler, *FLAGS, *paths],
            capture_output=True,
            text=True,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error:" in line.lower()]
            raise KernelError(f"{file} does not compile: {(said or ['no message'])[0]}")
        try:
            return ctypes.CDLL(str(result))
        except OSError as error:  # a folder that nothing may be loaded from, for instance
            raise KernelError(f"what was compiled of {file} cannot be loaded: {error}") from error
