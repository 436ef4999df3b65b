"""Signatures derived from another function's, so that no list of arguments stands twice."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def arguments_of(model: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the arguments of `model`, for `help`, editors and type checkers.

    Args:
        model: the function whose arguments it takes.
    """

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        result = inspect.signature(function).return_annotation
        signature = inspect.signature(model).replace(return_annotation=result)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Callable[P, R], function)

    return decorate


def keyword_arguments(
    function: Callable[..., Any], without: Sequence[str] = ()
) -> inspect.Signature:
    """Return the keyword-only arguments of a function, `without` some, as a signature.

    Args:
        function: whose arguments are taken.
        without: names of arguments to leave out.
    """
    parameters = inspect.signature(function).parameters.values()
    kept = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in without]
    return inspect.Signature(kept)
