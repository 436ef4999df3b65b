"""A loss that is too large for one dense block, as one operator of a compiled graph.

`torch.compile` follows a small loss into one graph. A large one is a loop over chunks, which must
stay a loop: unrolled it would hold every chunk, and it would be traced anew for every batch size.
So the graph gets a single operator, `fairmargin::NAME`, that runs the loss as without a compiler
and finds the gradient along with the value. There is no graph break, and one graph serves every
batch size. On the devices where that pays (_limits.py) the chunks inside go through the compiler on
their own.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar, get_origin

import torch
from torch import Tensor

from fairmargin.losses._limits import Limits, limits_of
from fairmargin.losses._streamed import compiled_chunks
from fairmargin.vectors import full_precision

P = ParamSpec("P")
R = TypeVar("R")
# (rows, limits of the device, keyword arguments) → whether the batch is large.
IsLarge = Callable[[int, Limits, dict[str, Any]], bool]
# Arguments of the loss → empty tensors like what its dataclass holds after the first field.
Shapes = Callable[..., list[Tensor]]

# Types of arguments in the schema of an operator.
SCHEMA_TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    float: "float",
    int | None: "int?",
    bool: "bool",
}


def operator_above(
    large: IsLarge, further: Shapes | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a loss one operator where a compiler traces it with a batch that is `large`.

    The loss takes the features first and returns a scalar, or a dataclass of tensors whose first
    field is the scalar.

    Args:
        large: function of (rows, limits of the device, keyword arguments).
        further: function of the loss's arguments that returns empty tensors like what the dataclass
            holds after its first field; None for a loss that returns a scalar.
    """

    def decorate(loss: Callable[P, R]) -> Callable[P, R]:
        operator = _Operator(loss, further)

        @wraps(loss)
        def either(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                features = args[0] if args else kwargs.get("features")
                if _is_large(features, kwargs, large):
                    return operator(*args, **kwargs)
            return loss(*args, **kwargs)

        return either

    return decorate


def _is_large(features: Any, settings: dict[str, Any], large: IsLarge) -> bool:
    if not isinstance(features, Tensor) or features.ndim not in (2, 3):
        return False  # the loss says what is wrong
    rows = features.shape[0] * (features.shape[1] if features.ndim == 3 else 1)
    return large(rows, limits_of(features), settings)


class _Operator:
    """`fairmargin::NAME(the loss's arguments, need_gradient) -> (value, …, gradient)`."""

    def __init__(self, loss: Callable[..., Any], further: Shapes | None) -> None:
        signature = inspect.signature(loss)
        parameters = signature.parameters.values()
        self.loss = loss
        self.further = further
        self.result = signature.return_annotation
        self.names = [parameter.name for parameter in parameters]
        self.defaults = {parameter.name: parameter.default for parameter in parameters}
        arguments = [f"{_schema_type(p.annotation)} {p.name}" for p in parameters]
        outputs = len(fields(self.result)) if is_dataclass(self.result) else 1
        results = ", ".join(["Tensor"] * (outputs + 1))
        self.call = torch.library.custom_op(
            f"fairmargin::{loss.__name__}",
            self._run,
            mutates_args=(),
            schema=f"({', '.join(arguments)}, bool need_gradient) -> ({results})",
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
            outputs = [result]
            if self.further:
                outputs = [getattr(result, f.name) for f in fields(result)]
            gradient = torch.autograd.grad(outputs[0], x)[0] if need_gradient else x.new_empty(0)
        return (*(output.detach() for output in outputs), gradient)

    def _empty(self, features: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        """Tensors of the right shapes, for the compiler."""
        *values, need_gradient = rest
        further: list[Tensor] = []
        if self.further:
            further = self.further(features, **dict(zip(self.names[1:], values, strict=True)))
        gradient = torch.empty_like(features) if need_gradient else features.new_empty(0)
        return (features.new_empty(()), *further, gradient)


def _schema_type(annotation: Any) -> str:
    """The type of an argument in a schema; a choice of words is a string."""
    return "str" if get_origin(annotation) is Literal else SCHEMA_TYPES[annotation]


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
            "a large loss inside torch.compile keeps its first derivative only, so it cannot be "
            "differentiated twice; "
            "use a smaller batch and chunk=None, or drop create_graph=True"
        )
    (gradient,) = ctx.saved_tensors
    return (grad_value * gradient, *[None] * (ctx.arguments - 1))
