"""People's own encoders: any module from images [N, C, H, W] to features [N, D]."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairmargin.networks.encoder import Encoder


class OwnEncoder(Encoder):
    """A module of the user's as an encoder.

    Args:
        module: from images [N, C, H, W] to features [N, dim].
        dim: number of features.
    """

    def __init__(self, module: nn.Module, dim: int) -> None:
        super().__init__(dim)
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, dim] of images [N, C, H, W]."""
        features: Tensor = self.module(images)
        return features


class OwnEncoders:
    """Makes the encoders of a run from a module, or from what makes one; methods call it.

    An object is copied and stays as it was. The first encoder has its weights; a method that builds
    several gets further ones with new weights.

    Args:
        source: a module, or a class or function that returns one.
        image_shape: channels, height, width of the images.
        name: for messages.
        options: keywords for the class or function.
    """

    def __init__(
        self,
        source: nn.Module | Callable[..., nn.Module],
        image_shape: tuple[int, ...],
        *,
        name: str,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.source = source
        self.image_shape = image_shape
        self.name = name
        self.options = dict(options or {})
        self.made = 0
        if isinstance(source, nn.Module):
            if self.options:
                raise ValueError(
                    f"{name} is a module that is built already, so network.{min(self.options)} "
                    "has no effect; give its class"
                )
        elif not callable(source):
            raise ValueError(
                f"{name} is a {type(source).__name__}; an encoder is a torch.nn.Module, or a class "
                "or function that returns one"
            )
        else:
            check_keywords(source, name, "network", self.options)

    @property
    def has_last_activation(self) -> bool:
        """Whether the last activation can be chosen; if not, features stay as they are."""
        if isinstance(self.source, nn.Module):
            return False
        return "last_activation" in inspect.signature(self.source).parameters

    def __call__(self, **wanted: Any) -> Encoder:
        """Return a new encoder.

        Args:
            wanted: `last_activation`, where a method asks for it.
        """
        if wanted and not self.has_last_activation:
            raise ValueError(
                f"{self.name} has no keyword {min(wanted)}, so a method cannot choose it; "
                f'set method.{min(wanted)}="auto", which leaves its features as they are, '
                "or give a class that has it"
            )
        module = self._new(wanted)
        self.made += 1
        dim = features_of(module, self.image_shape, self.name)
        if isinstance(module, Encoder) and module.dim == dim:
            return module
        return OwnEncoder(module, dim)

    def _new(self, wanted: Mapping[str, Any]) -> nn.Module:
        if isinstance(self.source, nn.Module):
            module = copy.deepcopy(self.source)
            return self._reset(module) if self.made else module
        module = self.source(**{**self.options, **wanted})
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"{self.name} returned a {type(module).__name__}; it must return a torch.nn.Module"
            )
        return module

    def _reset(self, module: nn.Module) -> nn.Module:
        """Draw new weights by `reset_parameters` of every part that has parameters."""
        for name, part in module.named_modules():
            if not any(True for _ in part.parameters(recurse=False)):
                continue
            reset = getattr(part, "reset_parameters", None)
            if not callable(reset):
                where = f"its {name}, a {type(part).__name__}," if name else "it"
                raise ValueError(
                    f"this method builds several encoders, and {self.name} cannot be started anew: "
                    f"{where} has parameters and no reset_parameters; give its class, or a "
                    "function that returns a new one (encoder=lambda: Backbone(…))"
                )
            reset()
        return module


def features_of(module: nn.Module, image_shape: tuple[int, ...], name: str) -> int:
    """Return the number of features D that a module gives, by one pass in evaluation mode.

    Args:
        module: the encoder; it is left as it was.
        image_shape: channels, height, width.
        name: for messages.
    """
    shape = [2, *image_shape]
    modes = {part: part.training for part in module.modules()}
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    module.eval()
    try:
        with torch.no_grad():
            features = module(torch.zeros(shape, device=device))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise ValueError(
            f"{name} cannot take images {shape} ([N, C, H, W]): {type(error).__name__}: {reason}"
        ) from error
    finally:
        for part, mode in modes.items():
            part.training = mode
    if not isinstance(features, Tensor):
        raise ValueError(
            f"{name} must return one tensor of features [N, D]; "
            f"it returned a {type(features).__name__}"
        )
    if features.ndim != 2 or len(features) != 2 or not features.is_floating_point():
        given = f"{features.dtype} {list(features.shape)}".removeprefix("torch.")
        hint = "; end it with .flatten(1) or a mean over positions" if features.ndim > 2 else ""
        raise ValueError(
            f"{name} must turn images {shape} into floats [2, D], one row for each image; "
            f"it gave {given}{hint}"
        )
    return features.shape[1]


def check_keywords(
    builder: Callable[..., Any], name: str, section: str, options: Mapping[str, Any]
) -> None:
    """Raise a ValueError that names the key if a builder does not have one of these keywords.

    Args:
        builder: a class or function.
        name: of it, for the message.
        section: of the configuration that the options come from.
        options: that it is to be called with.
    """
    try:
        parameters = inspect.signature(builder).parameters.values()
    except ValueError:
        # A builtin without a signature says itself what is wrong.
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL
    known = [p.name for p in parameters if p.kind not in positional]
    for option in options:
        if option not in known:
            listed = ", ".join(known) or "none"
            raise ValueError(
                f"{section}.{option}: {name} has no keyword {option}; its keywords: {listed}"
            )
    empty = inspect.Parameter.empty
    variable = inspect.Parameter.VAR_POSITIONAL
    for p in parameters:
        needed = p.default is empty and p.kind is not variable
        if needed and p.name not in options:
            raise ValueError(
                f"{name} needs {p.name}; set {section}.{p.name}, or give a function that fills it "
                "in"
            )
