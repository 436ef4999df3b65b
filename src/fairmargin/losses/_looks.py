"""When a loss looks at the values it is given: on the CPU at every call, elsewhere on request."""

from types import TracebackType

import torch
from torch import Tensor

from fairmargin.losses._limits import limits_of

# True: everywhere; False: nowhere; None: where a look is free.
_setting: bool | None = None


class check:
    """Switch the checks of values on or off, from here on or for a `with` block.

    Every loss checks shapes and types. On the CPU it also checks values: it refuses NaN and
    infinities, labels out of range and rows of zeros among the bias features, and it warns of a
    batch in which no anchor has a positive. On an accelerator each of these checks makes Python
    wait for the device, so by default there are none; a NaN then shows in the loss. Nothing is
    checked while `torch.compile` traces.

    Args:
        on: True checks on every device, False on none, None where it is free (the default).

    Example:
        >>> losses.check(True)              # on every device, from here on
        >>> with losses.check(True):        # or for some calls, such as the first step of a run
        ...     loss = losses.eps_supinfonce(z, y)
    """

    def __init__(self, on: bool | None = True) -> None:
        global _setting
        if on is not None and not isinstance(on, bool):
            raise TypeError(f"check takes True, False, or None for the default; got {on!r}")
        self.before = _setting
        _setting = on

    def __enter__(self) -> "check":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _setting
        _setting = self.before


def checked(x: Tensor) -> bool:
    """Return whether the values of `x` are to be checked."""
    if torch.compiler.is_compiling():
        return False
    return limits_of(x).host if _setting is None else _setting
