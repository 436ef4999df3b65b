"""What a run needs of memory, estimated before it is taken.

Networks are sketched on PyTorch's meta device, which knows shapes and holds no numbers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairmargin.batch import DataInfo
from fairmargin.config import Config
from fairmargin.config.code import is_code
from fairmargin.loop import Training
from fairmargin.methods import Method, build_method
from fairmargin.networks import ENCODERS, Encoder
from fairmargin.networks.pretrained import is_backbone
from fairmargin.runs.network import Network
from fairmargin.runtime import distributed
from fairmargin.runtime.memory import free_memory, in_gib

# Samples of the sketched batch; batch norms want more than one.
SKETCHED = 2
# Besides what is kept: the largest maps once more as gradients, and as a convolution unrolls them.
WORKSPACES = 3
# Maps that layers without weights may keep for one layer with them.
LAYERS = 3
# Of a number in float32.
BYTES = 4
# Numbers that each optimizer keeps for every weight.
STATES = {"adam": 2, "adamw": 2, "sgd": 1, "lars": 1}


def check_weights_fit(config: Config, info: DataInfo) -> None:
    """Refuse a method whose weights alone are larger than the memory that is free.

    Args:
        config: of the run.
        info: of its data.
    """
    free = free_memory()
    needed = weights_of(config, info)
    if free is None or needed is None or needed <= free:
        return
    raise ValueError(
        f"the weights of {config.method.name} on {config.network.name} need about "
        f"{in_gib(needed)} of memory and {in_gib(free)} are free; {_smaller(config, info, free)}"
    )


def weights_of(config: Config, info: DataInfo) -> int | None:
    """Return the bytes of a method's weights and statistics; None where it cannot be sketched.

    Args:
        config: of the run. Networks from other libraries and of people's own are not sketched.
        info: of its data.
    """
    name = config.network.name
    if is_code(name) or is_backbone(name):
        return None
    sketch = Network(config)

    def make_encoder(**wanted: object) -> Encoder:
        return sketch.encoder(tuple(info.image_shape), **wanted)

    try:
        with torch.device("meta"):
            method = build_method(config.method.name, make_encoder, info, **config.method.options)
    # Whatever is wrong with the configuration is said when the method is built.
    except Exception:
        return None
    return _bytes([*method.parameters(), *method.buffers()])


def _smaller(config: Config, info: DataInfo, free: int) -> str:
    """Return which widths would fit, or that another network might."""
    widths = config.network.options.get("widths")
    while widths and max(widths) > 1:
        widths = tuple(max(1, width // 2) for width in widths)
        options = config.network.options | {"widths": widths}
        network = config.network.model_copy(update={"options": options})
        needed = weights_of(config.model_copy(update={"network": network}), info)
        # Gradients and the optimizer need their share, too.
        if needed is not None and 4 * needed < free:
            listed = ", ".join(map(str, widths))
            return f"these would fit: --set 'network.widths=[{listed}]'"
    return 'choose a smaller network ("fairmargin list networks") or smaller options for it'


@dataclass(frozen=True)
class Footprint:
    """Bytes that training takes besides the weights, which are there already.

    Args:
        fixed: gradients and the optimizers' state.
        sample: activations of one sample.
        samples: of a batch, in this process.
    """

    fixed: int
    sample: int
    samples: int

    @property
    def total(self) -> int:
        """All of it, for one step."""
        return self.fixed + self.sample * self.samples


def footprint(config: Config, training: Training, info: DataInfo) -> Footprint:
    """Estimate what training takes: a lower bound, of what the encoders keep for a step.

    Args:
        config: of the run.
        training: as it is about to begin.
        info: of its data.
    """
    moved = [p for player in training.players.values() for p in player.parameters]
    states = 1 + STATES[config.optimizer.name]
    batch = min(config.train.batch_size, len(training.loader.split))
    views = training.loader.views.number
    return Footprint(
        states * _bytes(moved),
        views * activations(training.method, tuple(info.image_shape)),
        math.ceil(batch / distributed.world_size()),
    )


def at_most(config: Config, training: Training, info: DataInfo) -> int:
    """Return more bytes than training can take, if no map is larger than the images.

    Each layer is taken to unroll its input, and to keep its output, at every pixel.

    Args:
        config: of the run.
        training: as it is about to begin.
        info: of its data.
    """
    numbers = 0
    for module in training.method.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor):
            numbers += len(weight) + weight[0].numel()
    pixels = math.prod(info.image_shape[1:])
    samples = training.loader.views.number * config.train.batch_size
    weights = _bytes(training.method.parameters())
    # Maps behind layers without weights: activations, sums with a shortcut.
    each = BYTES * (WORKSPACES + LAYERS)
    return (1 + max(STATES.values())) * weights + each * numbers * pixels * samples


def check_training_fits(config: Config, training: Training, info: DataInfo) -> None:
    """Refuse training that needs more memory than is free, and say which batch would fit.

    Only on the CPU: a GPU says itself, at once and without harm, that its memory is full.

    Args:
        config: of the run.
        training: as it is about to begin.
        info: of its data.
    """
    free = free_memory()
    if free is None or training.device.type != "cpu":
        return
    # For a sketch PyTorch imports its compiler: a second that a small network need not wait for.
    if config.network.name in ENCODERS and at_most(config, training, info) <= free:
        return
    needed = footprint(config, training, info)
    if needed.total <= free:
        return
    fits = (free - needed.fixed) // max(needed.sample, 1)
    advice = "choose a smaller network (network.name, network.widths) or smaller images"
    if fits >= max(training.method.least_batch, 2):
        fits *= distributed.world_size()
        advice = f"a batch of {fits:,} would fit: --set train.batch_size={fits}"
    raise ValueError(
        f"training needs about {in_gib(needed.total)} of memory and {in_gib(free)} are free: "
        f"gradients and optimizer {in_gib(needed.fixed)}, one batch of {needed.samples:,} samples "
        f"{in_gib(needed.sample * needed.samples)}; {advice}"
    )


def activations(method: Method, image_shape: tuple[int, ...]) -> int:
    """Return the bytes that a method's encoders take for one sample, forward and backward.

    Encoders that cannot be sketched count nothing.

    Args:
        method: as it will be trained; it is left as it is.
        image_shape: of a sample.
    """
    outer = [module for module in method.modules() if isinstance(module, Encoder)]
    inner = {id(part) for module in outer for part in module.modules() if part is not module}
    return sum(_kept(module, image_shape) for module in outer if id(module) not in inner)


def _kept(encoder: Encoder, image_shape: tuple[int, ...]) -> int:
    """Return the bytes that one encoder takes for one sample."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    state = {name: _sketch(tensor) for name, tensor in _tensors(encoder)}
    weights = {tensor.untyped_storage()._cdata for tensor in state.values()}
    images = torch.empty(SKETCHED, *image_shape, device="meta")
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            torch.func.functional_call(encoder, state, (images,))
    # Code of other people may do what the meta device cannot; then there is no estimate.
    except Exception:
        return 0
    sizes = [t.untyped_storage().nbytes() for key, t in kept.items() if key not in weights]
    return (sum(sizes) + WORKSPACES * max(sizes, default=0)) // SKETCHED


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _sketch(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
