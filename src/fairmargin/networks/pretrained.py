"""Other people's networks as encoders: `hf:NAME`, `timm:NAME` and `torchvision:NAME`.

An `Origin` holds everything that is needed to build such a network again without its files, so a
run folder with an origin and weights is whole. No code that comes with a model is run.
"""

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairmargin.checks import check_choice
from fairmargin.networks.encoder import Encoder
from fairmargin.networks.weight_files import some
from fairmargin.runtime.whole import digest

Pooling = Literal["auto", "pooler", "cls", "mean"]
# Where the classifiers of torchvision's networks are.
CLASSIFIERS = ("fc", "classifier", "heads", "head")


@dataclass(frozen=True)
class Origin:
    """What a network is, in plain values.

    Args:
        architecture: what its library needs to build it without weights.
        mean: of the channels of the images it was trained on, for values in [0, 1]; None: unknown.
        std: likewise.
        side: of these images in pixels; None: unknown.
        sha256: of the files that its weights come from, by name; empty if they are not local.
    """

    architecture: dict[str, Any]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    side: int | None = None
    sha256: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same origin back."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Origin":
        """Read what `as_dict` wrote."""
        pair = {key: values[key] and tuple(values[key]) for key in ("mean", "std")}
        return Origin(**{**values, **pair})


@dataclass(frozen=True)
class Library:
    """Where networks come from.

    Args:
        describe: gives the origin of a name.
        build: gives the encoder, with the library's weights unless `pretrained` is false. Its
            keywords are the options of the network.
    """

    describe: Callable[[str], Origin]
    build: Callable[..., "Backbone"]


class Backbone(Encoder):
    """A network of another library, with features [N, dim].

    Args:
        model: the network, without classifier.
        what: its name, for messages.
        image_shape: of the images that it will see, [C, H, W].
        side: of the images that it was made for, for messages.
    """

    # Tensors of the source that the network has no use for.
    left_over: tuple[str, ...] = ()

    def __init__(
        self, model: nn.Module, what: str, image_shape: tuple[int, ...], side: int | None
    ) -> None:
        super().__init__(dim=0)
        self.model = model
        self.dim = self._width(what, image_shape, side)

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, dim] of images [N, C, H, W]."""
        return self.features(images)

    def features(self, images: Tensor) -> Tensor:
        """What the model gives for images [N, C, H, W]; subclasses choose among several outputs."""
        return self.model(images)

    def _width(self, what: str, image_shape: tuple[int, ...], side: int | None) -> int:
        """Try the network on two images, and return how many features it gives."""
        shape = "×".join(map(str, image_shape))
        images = torch.linspace(-1, 1, 2 * torch.Size(image_shape).numel())
        images = images.view(2, *image_shape)
        self.eval()
        try:
            with torch.no_grad():
                first, second = self.features(images), self.features(images)
        except (RuntimeError, ValueError, AssertionError) as error:
            wanted = "" if side is None else f"; it was made for {side}×{side} pixels"
            size = side or 224
            raise ValueError(
                f"{what} cannot take images of {shape} ({str(error).splitlines()[0]}){wanted}. "
                "Give it larger images where the dataset can "
                f"(own images: --set data.image_size={size}), or choose another network"
            ) from error
        finally:
            self.train()
        if not isinstance(first, Tensor) or first.ndim != 2 or len(first) != 2:
            found = list(first.shape) if isinstance(first, Tensor) else type(first).__name__
            raise ValueError(f"{what} must give features [N, D]; it gives {found}")
        if not torch.equal(first, second):
            raise ValueError(
                f"{what} gives different features for the same images: it draws random numbers, "
                "as masked autoencoders do. Choose a network without"
            )
        return first.shape[1]


class HubBackbone(Backbone):
    """A vision model of transformers.

    Args:
        pooling: what the features are: "pooler" (`pooler_output`), the first token "cls", the
            "mean" over positions; "auto" as the family's own classifiers do.
    """

    def __init__(
        self,
        model: nn.Module,
        what: str,
        image_shape: tuple[int, ...],
        side: int | None,
        pooling: Pooling = "auto",
    ) -> None:
        self.pooling = pooling
        self.has_class_token = any("cls_token" in name for name, _ in model.named_parameters())
        self.further: dict[str, bool] = {}
        # Vision transformers with a table of positions stretch it to other sizes if asked to.
        stretches = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
        if stretches and side is not None and tuple(image_shape[1:]) != (side, side):
            self.further["interpolate_pos_encoding"] = True
        super().__init__(model, what, image_shape, side)

    def features(self, images: Tensor) -> Tensor:
        """Features [N, dim] of images [N, C, H, W]."""
        found = self.model(pixel_values=images, **self.further)
        pooled = getattr(found, "pooler_output", None)
        if self.pooling in ("auto", "pooler") and pooled is not None:
            return pooled.flatten(1)  # [N, D] from [N, D] or [N, D, 1, 1]
        if self.pooling == "pooler":
            raise ValueError("it has no pooler_output; use network.pooling=cls or mean")
        last = found.last_hidden_state  # [N, tokens, D] or [N, D, H′, W′]
        if last.ndim == 4:
            if self.pooling == "cls":
                raise ValueError("it has no class token; use network.pooling=mean")
            return last.mean((2, 3))
        if self.pooling == "cls" and not self.has_class_token:
            raise ValueError("it has no class token; use network.pooling=mean")
        return last.mean(1) if self.pooling == "mean" or not self.has_class_token else last[:, 0]


def describe_hf(name: str) -> Origin:
    """Return the origin of a model of the Hugging Face Hub, or of a folder in its format."""
    transformers = _needed("transformers", "hf", name)
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ValueError(
            f"hf:{name}: the folder has no config.json; give one that save_pretrained wrote"
        )
    if not folder.is_dir() and (folder.is_absolute() or name.startswith((".", "~"))):
        raise ValueError(f"hf:{name}: there is no folder {folder}")
    place = str(folder) if folder.is_dir() else name
    try:
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(_unreadable(name, error)) from error
    if hasattr(config, "vision_config"):
        raise ValueError(
            f"hf:{name} is a {config.model_type} model, which takes text too; save its vision part "
            "alone (model.vision_model.save_pretrained(FOLDER)) and give that folder"
        )
    architecture = json.loads(config.to_json_string(use_diff=False))
    # A path of this machine, and a precision that training would suffer from.
    architecture.pop("_name_or_path", None)
    architecture["dtype"] = "float32"
    mean, std = _normalization_of(transformers, place)
    side = architecture.get("image_size")
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    return Origin(
        architecture,
        mean,
        std,
        side if isinstance(side, int) else None,
        {file.name: digest(file) for file in files},
    )


def build_hf(
    name: str,
    origin: Origin,
    image_shape: tuple[int, ...],
    *,
    pretrained: bool = True,
    pooling: Pooling = "auto",
) -> Backbone:
    """Build a vision model of transformers.

    Args:
        name: of the model or folder, for its weights.
        origin: of `describe_hf`.
        image_shape: of the images that it will see.
        pretrained: load its weights; false: draw new ones.
        pooling: see `HubBackbone`.
    """
    transformers = _needed("transformers", "hf", name)
    rest = dict(origin.architecture)
    config = transformers.AutoConfig.for_model(rest.pop("model_type"), **rest)
    missing: list[str] = []
    left_over: list[str] = []
    if pretrained:
        folder = Path(name).expanduser()
        try:
            model, found = transformers.AutoModel.from_pretrained(
                str(folder) if folder.is_dir() else name,
                config=config,
                dtype=torch.float32,
                trust_remote_code=False,
                weights_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(_unreadable(name, error)) from error
        missing, left_over = sorted(found["missing_keys"]), sorted(found["unexpected_keys"])
    else:
        model = transformers.AutoModel.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    # A pooler with a dense layer is a leftover of pretraining, which classifiers do not read.
    if pooling != "pooler" and hasattr(getattr(model, "pooler", None), "dense"):
        model.pooler = None
        missing = [key for key in missing if not key.startswith("pooler.")]
    if missing:
        raise ValueError(
            f"hf:{name}: its weights lack {some(missing)}; save it again with save_pretrained"
        )
    backbone = HubBackbone(model, f"hf:{name}", image_shape, origin.side, pooling)
    backbone.left_over = tuple(left_over)
    return backbone


def describe_timm(name: str) -> Origin:
    """Return the origin of a network of timm."""
    timm = _needed("timm", "timm", name)
    model = _made(timm.create_model, f"timm:{name}", name, pretrained=False, num_classes=0)
    facts = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    size = facts.get("input_size")
    mean, std = facts.get("mean"), facts.get("std")
    return Origin(
        {"name": name},
        tuple(mean) if mean else None,
        tuple(std) if std else None,
        size[-1] if size else None,
    )


def build_timm(
    name: str, origin: Origin, image_shape: tuple[int, ...], *, pretrained: bool = True
) -> Backbone:
    """Build a network of timm, without its classifier.

    Args:
        name: as `timm.create_model` takes it.
        origin: of `describe_timm`.
        image_shape: of the images that it will see.
        pretrained: load its weights; false: draw new ones.
    """
    timm = _needed("timm", "timm", name)
    known = origin.architecture["name"]
    model = _made(timm.create_model, f"timm:{name}", known, pretrained=pretrained, num_classes=0)
    return Backbone(model, f"timm:{name}", image_shape, origin.side)


def describe_torchvision(name: str) -> Origin:
    """Return the origin of a classification network of torchvision."""
    models = _needed("torchvision.models", "torchvision", name)
    weights = _made(models.get_model_weights, f"torchvision:{name}", name).DEFAULT
    prepared = weights.transforms()
    size = list(prepared.crop_size)
    return Origin({"name": name}, tuple(prepared.mean), tuple(prepared.std), size[-1])


def build_torchvision(
    name: str, origin: Origin, image_shape: tuple[int, ...], *, pretrained: bool = True
) -> Backbone:
    """Build a classification network of torchvision, without its last linear layer.

    Args:
        name: as `torchvision.models.get_model` takes it.
        origin: of `describe_torchvision`.
        image_shape: of the images that it will see.
        pretrained: load its default weights; false: draw new ones.
    """
    models = _needed("torchvision.models", "torchvision", name)
    weights = "DEFAULT" if pretrained else None
    known = origin.architecture["name"]
    model = _made(models.get_model, f"torchvision:{name}", known, weights=weights)
    _remove_classifier(model, name)
    return Backbone(model, f"torchvision:{name}", image_shape, origin.side)


BACKBONES: dict[str, Library] = {
    "hf": Library(describe_hf, build_hf),
    "timm": Library(describe_timm, build_timm),
    "torchvision": Library(describe_torchvision, build_torchvision),
}


def is_backbone(name: str) -> bool:
    """Return whether a network's name is that of another library: "hf:…", "timm:…"."""
    return ":" in name and name.partition(":")[0] in BACKBONES


def split_name(name: str) -> tuple[str, str]:
    """Return (library, name in it) of "hf:NAME"; an error if either is none.

    Args:
        name: of a network.
    """
    library, _, inner = name.partition(":")
    check_choice(library, "library of networks", BACKBONES)
    if not inner.strip():
        raise ValueError(f'"{name}" needs the name of a network after {library}:')
    return library, inner


def describe(name: str) -> Origin:
    """Return the origin of "hf:NAME", "timm:NAME" or "torchvision:NAME"."""
    library, inner = split_name(name)
    return BACKBONES[library].describe(inner)


def build_backbone(
    name: str,
    *,
    origin: Origin | None = None,
    image_shape: tuple[int, ...] | None = None,
    **options: Any,
) -> Backbone:
    """Return the encoder "hf:NAME", "timm:NAME" or "torchvision:NAME".

    Args:
        name: with its library.
        origin: if it is known; else it is looked up.
        image_shape: of the images that it will see; by default what it was made for.
        options: keywords of the library's builder, such as `pretrained`.
    """
    library, inner = split_name(name)
    if "last_activation" in options:
        raise ValueError(
            f"{name} keeps its own last activation; leave method.last_activation at auto"
        )
    known = origin or BACKBONES[library].describe(inner)
    side = known.side or 224
    return BACKBONES[library].build(inner, known, image_shape or (3, side, side), **options)


def _needed(module: str, library: str, name: str) -> Any:
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        how = '"fairmargin[hf]"' if package == "transformers" else package
        raise ValueError(
            f"{library}:{name} needs {package}, which cannot be imported ({error}): "
            f"pip install {how}"
        ) from error


def _made(make: Callable[..., Any], what: str, *arguments: Any, **options: Any) -> Any:
    """Call a library's function; turn what it raises for a wrong name into one message."""
    try:
        return make(*arguments, **options)
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        raise ValueError(f"{what} cannot be built: {str(error).splitlines()[0]}") from error


def _unreadable(name: str, error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return (
        f"hf:{name} cannot be read: {first} Give a folder that save_pretrained wrote, or a name "
        "of the Hub where it can be reached. Models that bring their own code are not run"
    )


def _normalization_of(
    transformers: Any, place: str
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """(mean, std) of a model's preprocessor_config.json; None where it has none."""
    try:
        facts, _ = transformers.ImageProcessingMixin.get_image_processor_dict(place)
    except (OSError, ValueError):
        return None, None
    if not facts.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    mean, std = facts.get("image_mean"), facts.get("image_std")
    if not isinstance(mean, list) or not isinstance(std, list):
        return None, None
    return tuple(mean), tuple(std)


def _remove_classifier(model: nn.Module, name: str) -> None:
    """Replace the last linear layer of the classifier by nothing."""
    for place in CLASSIFIERS:
        layers = [
            path
            for path, module in model.named_modules()
            if isinstance(module, nn.Linear) and (path == place or path.startswith(f"{place}."))
        ]
        if layers:
            model.set_submodule(layers[-1], nn.Identity())
            return
    raise ValueError(
        f"torchvision:{name} has no linear classifier under {', '.join(CLASSIFIERS)}; "
        "choose a classification network"
    )
