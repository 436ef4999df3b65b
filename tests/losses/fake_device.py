"""Run every loss on a device that has no memory.

`python -m tests.losses.fake_device` prints what went wrong, as JSON.

PyTorch's fake tensors know shapes, types and devices, and no values: whatever looks at a value
raises, as does a copy from the host. Where PyTorch is built for CUDA the device is a fake "cuda".
Elsewhere its CUDA tensors cannot be differentiated, not even fake ones, so a device of our own
takes the row of "cuda" in the table of limits. To register it changes the process for good: that is
why this is a script.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import torch
from torch._subclasses import FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

import fairmargin
from fairmargin.losses import _limits
from tests.losses.every import CASES, batch

COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class NoCopies(TorchDispatchMode):
    """Raises on a copy between devices, which waits for both."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in COPIES:
            devices = {x.device.type for x in (*args, result) if isinstance(x, torch.Tensor)}
            if len(devices) > 1:
                raise RuntimeError(f"a copy between {' and '.join(sorted(devices))}")
        return result


def device():
    """The name of a device that is not the CPU and can be faked, with the limits of CUDA."""
    if torch.backends.cuda.is_built():
        return "cuda"
    module = backend_registration._DummyBackendModule()
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    backend_registration._setup_privateuseone_for_python_backend("nothing", backend_module=module)
    _limits.LIMITS["nothing"] = _limits.LIMITS["cuda"]
    return "nothing"


def attempt(loss, x):
    """None, or what was raised and where, forward or backward."""
    package = str(Path(fairmargin.__file__).parent)
    try:
        with NoCopies():
            value = loss(x)
            (gradient,) = torch.autograd.grad(value, x.z)
    except Exception as error:
        lines = [
            f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(package)
        ]
        where = f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else "backward"
        return f"{type(error).__name__} in {where}: {str(error)[:200]}"
    if not (
        value.device == gradient.device == x.z.device
        and value.shape == ()
        and gradient.shape == x.z.shape
    ):
        return f"value on {value.device}, gradient {list(gradient.shape)} on {gradient.device}"
    return None


def main(sizes):
    fake = device()
    found = {}
    with FakeTensorMode():
        for n in sizes:
            for name, loss in CASES.items():
                # The modules only call the functions: once is enough.
                if name[0].isupper() and n != sizes[0]:
                    continue
                found[f"{name}, {n} rows"] = attempt(loss, batch(n, fake))
    print(json.dumps(found), flush=True)
    # Autograd's thread for the device of our own cannot be joined at the interpreter's end.
    os._exit(0)


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1:]])
