"""A loss that is too large for one dense block, as one operator of a compiled graph.

`torch.compile` follows a small loss into one graph. A large one is a loop over chunks, which must stay a loop: unrolled
it would hold every chunk, and it would be traced anew for every batch size. So the graph gets a single operator,
`fairmargin::NAME`, that runs the loss as without a compiler and finds the gradient along with the value. There is no
graph break, and one graph serves every batch size. On the devices that like it (limits.py) the chunks inside go through
the compiler on their own.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fairmargin.losses._limits import Limits, limits_of
from fairmargin.losses._pairs import compiled_chunks
from fairmargin.vectors import full_precision

P = ParamSpec("P")
R = TypeVar("R")
Shapes = Callable[..., list[Tensor]]

TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    float: "float",
    int | None: "int?",
    str: "str",
    bool: "bool",
}


def operator_above(
    large: Callable[[int, Limits, dict[str, Any]], bool], further: Shapes | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a loss one operator where a compiler traces it with a batch that is `large`.

    The loss takes the features first and gives a scalar, or a dataclass of tensors that begins with it.

    Args:
        large: of (rows, limits of the device, keyword arguments).
        further: empty tensors like what the dataclass holds after its first field, from the arguments of the loss.
    """

    def decorate(loss: Callable[P, R]) -> Callable[P, R]:
        operator = _Operator(loss, further)

        @wraps(loss)
        def either(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling() and _is_large(
                args[0] if args else kwargs.get("features"), kwargs, large
            ):
                return operator(*args, **kwargs)
            return loss(*args, **kwargs)

        return either

    return decorate


def _is_large(
    features: Any, settings: dict[str, Any], large: Callable[[int, Limits, dict[str, Any]], bool]
) -> bool:
    if not isinstance(features, Tensor) or features.ndim not in (2, 3):
        return False  # the loss says what is wrong
    rows = features.shape[0] * (features.shape[1] if features.ndim == 3 else 1)
    return large(rows, limits_of(features), settings)


class _Operator:
    """`fairmargin::NAME(the loss's arguments, need_gradient) -> (value, …, gradient)`."""

    def __init__(self, loss: Callable[..., Any], further: Shapes | None) -> None:
        signature = inspect.signature(loss)
        self.loss, self.further, self.result = loss, further, signature.return_annotation
        self.names = list(signature.parameters)
        self.defaults = {
            name: parameter.default for name, parameter in signature.parameters.items()
        }
        types = [TYPES[parameter.annotation] for parameter in signature.parameters.values()]
        arguments = [f"{kind} {name}" for kind, name in zip(types, self.names, strict=True)]
        outputs = len(fields(self.result)) if is_dataclass(self.result) else 1
        self.call = torch.library.custom_op(
            f"fairmargin::{loss.__name__}",
            self._run,
            mutates_args=(),
            schema=f"({', '.join(arguments)}, bool need_gradient) -> ({', '.join(['Tensor'] * (outputs + 1))})",
        )
        self.call.register_fake(self._empty)
        self.call.register_autograd(_backward, setup_context=_keep_gradient)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        given = {**self.defaults, **dict(zip(self.names, args, strict=False)), **settings}
        # Half precision is left here, so that gradients pass through it once, and scaled.
        features = full_precision(given.pop(self.names[0]))
        need_gradient = torch.is_grad_enabled() and features.requires_grad
        *outputs, _ = self.call(features, *given.values(), need_gradient)
        return self.result(*outputs) if self.further else outputs[0]

    def _run(self, features: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *values, need_gradient = rest
        settings = dict(zip(self.names[1:], values, strict=True))
        with compiled_chunks(True), _autograd():
            x = features.detach().requires_grad_(need_gradient)
            result = self.loss(x, **settings)
            outputs = (
                [getattr(result, f.name) for f in fields(result)] if self.further else [result]
            )
            gradient = torch.autograd.grad(outputs[0], x)[0] if need_gradient else x.new_empty(0)
        return (*(output.detach() for output in outputs), gradient)

    def _empty(self, features: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        """Tensors of the right shapes, for the compiler."""
        *values, need_gradient = rest
        further = (
            self.further(features, **dict(zip(self.names[1:], values, strict=True)))
            if self.further
            else []
        )
        gradient = torch.empty_like(features) if need_gradient else features.new_empty(0)
        return (features.new_empty(()), *further, gradient)


@contextmanager
def _autograd() -> Iterator[None]:
    """Let autograd record inside an operator, where the dispatcher has left it behind."""
    # The guard that torch.utils.checkpoint uses for a neighbouring key.
    guard = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
    with guard, torch.enable_grad():
        yield


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.arguments = len(inputs)
    ctx.save_for_backward(output[-1])


def _backward(ctx: Any, grad_value: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a large loss inside torch.compile keeps its first derivative only, so it cannot be differentiated twice; "
            "use a smaller batch and chunk=None, or drop create_graph=True"
        )
    (gradient,) = ctx.saved_tensors
    return (grad_value * gradient, *[None] * (ctx.arguments - 1))
