"""From a configuration to the things it names: folder, device, data, method, and everything that trains it."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fairmargin import data as datasets
from fairmargin import distributed, optimise
from fairmargin.config import Config, difference, load_resolved
from fairmargin.data import ArraySplit, Data, FileSplit, Split
from fairmargin.data.loader import Loader
from fairmargin.data.options import keywords
from fairmargin.data.samplers import (
    BiasAware,
    ClassBalanced,
    GroupBalanced,
    InOrder,
    Sampler,
    Shuffled,
    Weighted,
    bias_weights,
)
from fairmargin.data.views import Views
from fairmargin.methods import Method, build_method
from fairmargin.networks import build_encoder
from fairmargin.record import CONFIG, RunFolder, is_run
from fairmargin.train import Training


def device(name: str) -> torch.device:
    """The one named, or for "auto" the best there is; each process of a machine takes the GPU of its local rank."""
    if name == "auto":
        kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
        name = next(kind for kind, there in kinds.items() if there)
    try:
        chosen = torch.device(name)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"train.device={name} cannot be used here: {str(error).splitlines()[0]}") from error
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else chosen


OTHER = 1 << 32  # beyond every seed of a run: the second stream has numbers of its own
HARMLESS = (  # a run may be continued with other values of these
    "data.root",
    "train.device",
    "train.workers",
    "train.checkpoint_seconds",
    "train.keep",
    "train.log_steps",
    "train.tensorboard",
)


@contextmanager
def folder(config: Config, path: Path) -> Iterator[RunFolder]:
    """The run folder, kept from other processes; refused if it holds a run with another configuration."""
    opened = RunFolder(path)
    if distributed.rank() != 0:
        yield opened
        return
    opened.create()
    with opened.lock():
        if is_run(path):
            changes = difference(load_resolved(path / CONFIG), config)
            if changes := [change for change in changes if not change.startswith(HARMLESS)]:
                raise ValueError(
                    f"{path} holds a run with another configuration: {', '.join(changes)}. "
                    "Choose another folder with --out, or remove that one"
                )
        yield opened


def data(config: Config) -> Data:
    """The dataset, coloured or split with the run's seed unless the configuration gives another."""
    chosen, options = config.data, dict(config.data.options)
    if "seed" in keywords(datasets.DATASETS[chosen.name]):
        options.setdefault("seed", config.seed)
    built = datasets.build(chosen.name, chosen.root, **options)
    missing = [
        built.info.class_names[y] for y in range(built.info.num_classes) if not bool((built.train.labels == y).any())
    ]
    if missing:
        raise ValueError(
            f"{chosen.name} has no training sample of class {', '.join(missing)}; a model cannot learn it: "
            "remove the class, add samples, or move some of its samples from test to train"
        )
    return built


def method(config: Config, data: Data) -> Method:
    """With weights that depend on the seed alone."""
    info = replace(data.info, train_size=len(data.train))
    if config.data.bias == "none":
        info = replace(info, bias_names=(), counts=info.counts[:, :0])
    options = {"in_features": torch.Size(info.image_shape).numel()} if config.network.name == "mlp" else {}
    make_encoder = partial(build_encoder, config.network.name, **options | config.network.options)
    torch.manual_seed(config.seed)
    return build_method(config.method.name, make_encoder, info, **config.method.options)


def training(config: Config, method: Method, data: Data, device: torch.device) -> Training:
    settings = config.train
    if settings.batch_size < method.least_batch:
        raise ValueError(
            f"{config.method.name} compares samples with each other and train.batch_size={settings.batch_size} leaves "
            f"nothing to compare; give it at least {method.least_batch}, and better some hundreds"
        )
    splits = {"train": data.train, "valid": data.valid}
    if config.data.bias == "none":
        splits = {name: _without_bias(split) for name, split in splits.items()}

    def loader_of(views: Views, sampler: str, batch_size: int, drop_last: bool, seed: int) -> Loader:
        return Loader(
            splits["train"],
            views,
            SAMPLERS[sampler](splits["train"], seed),
            batch_size,
            device=device,
            seed=seed,
            workers=settings.workers,
            drop_last=drop_last,
            rank=distributed.rank(),
            world_size=distributed.world_size(),
        )

    def sweep(name: str) -> Loader:
        split = splits[name]  # whole on every rank, so that all find out the same
        size = config.evaluate.batch_size
        return Loader(split, data.eval_views, InOrder(len(split)), size, device=device, workers=settings.workers)

    sampler = method.sampler if config.data.sampler == "auto" else config.data.sampler
    rest = len(data.train) % settings.batch_size  # a last batch too small for the method's losses is left out
    drop_last = settings.drop_last or 0 < rest < method.least_batch
    loader = loader_of(data.train_views, sampler, settings.batch_size, drop_last, config.seed)
    wanted = method.second
    second = None
    if wanted is not None:
        views = wanted.views(data.train_views)
        second = loader_of(views, wanted.sampler, wanted.batch_size, False, OTHER + config.seed)
    if not len(loader):
        raise ValueError(
            f"train.batch_size={settings.batch_size} with train.drop_last leaves no batch of {len(data.train)} samples; "
            "lower one or switch off the other"
        )
    players = {
        name: _player(config, name, parameters, method.optimisers.get(name, {}))
        for name, parameters in method.to(device).players().items()
    }
    return Training(
        method,
        players,
        loader,
        seed=config.seed,
        precision=settings.precision,
        clip=settings.clip,
        channels_last=settings.channels_last,
        compiled=settings.compile,
        second=second,
        sweep=sweep,
    )


def _without_bias(split: Split) -> Split:
    return replace(split, bias=None) if isinstance(split, ArraySplit | FileSplit) else split


def _player(
    config: Config, name: str, parameters: list[torch.nn.Parameter], differs: Mapping[str, Any]
) -> optimise.Player:
    optimiser, schedule = config.for_player(name, differs)
    settings = schedule.model_dump()
    rate = optimise.schedule(settings.pop("name"), config.train.epochs, **settings)
    return optimise.player(parameters, optimiser.model_dump(), rate)


def _needs_bias(make: Callable[..., Sampler]) -> Callable[[Split, int], Sampler]:
    def sampler(split: Split, seed: int) -> Sampler:
        if split.bias is None:
            raise ValueError("this data.sampler groups samples by bias and the training set has no bias labels")
        return make(split.labels, split.bias, seed)

    return sampler


SAMPLERS: dict[str, Callable[[Split, int], Sampler]] = {
    "shuffled": lambda split, seed: Shuffled(len(split), seed),
    "class-balanced": lambda split, seed: ClassBalanced(split.labels, seed),
    "group-balanced": _needs_bias(lambda y, b, seed: GroupBalanced(y, b, seed)),
    "bias-aware": _needs_bias(lambda y, b, seed: BiasAware(y, b, seed=seed)),
    "weighted": _needs_bias(lambda y, b, seed: Weighted(bias_weights(y, b), ratio=10, seed=seed)),
}
