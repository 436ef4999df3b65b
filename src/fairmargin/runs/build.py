"""From a configuration to the things it names: folder, device, data, method, and everything that trains it."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairmargin import data as datasets
from fairmargin import optim
from fairmargin.batch import DataInfo
from fairmargin.bias import score_file
from fairmargin.bias.visible import VisibleBias, recorded_info, visible_bias
from fairmargin.config import Config, difference, load_resolved
from fairmargin.data import Data, Split
from fairmargin.data.hashes import source_hash
from fairmargin.data.inject import inject, parse
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
from fairmargin.data.split import as_evaluated
from fairmargin.data.views import Views
from fairmargin.evaluate.linear import LinearSettings
from fairmargin.loop import Training
from fairmargin.methods import Method, build_method
from fairmargin.methods.base import FinalStage, RunLength, Unsuited
from fairmargin.networks import build_encoder
from fairmargin.runs.folder import CONFIG, RunFolder, is_run
from fairmargin.runtime import distributed


def device(name: str) -> torch.device:
    """The one named, or for "auto" the best there is; each process of a machine takes the GPU of its local rank."""
    if name == "auto":
        kinds = {
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
            "cpu": True,
        }
        name = next(kind for kind, there in kinds.items() if there)
    try:
        chosen = torch.device(name)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"train.device={name} cannot be used here: {str(error).splitlines()[0]}"
        ) from error
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else chosen
    )


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


def changed(a: Config, b: Config) -> list[str]:
    """How the runs of two configurations differ: "train.epochs 24 → 80"."""
    return [change for change in difference(a, b) if not change.startswith(HARMLESS)]


@contextmanager
def folder(config: Config, path: Path) -> Iterator[RunFolder]:
    """The run folder, kept from other processes; refused if it holds a run with another configuration."""
    opened = RunFolder(path)
    if distributed.rank() != 0:
        yield opened
        return
    opened.create()
    with opened.lock():
        if is_run(path) and (changes := changed(load_resolved(path / CONFIG), config)):
            raise ValueError(
                f"{path} holds a run with another configuration: {', '.join(changes)}. "
                "Choose another folder with --out, or remove that one"
            )
        yield opened


def source(config: Config) -> dict[str, str]:
    """Of one's own images, which have no name of their own: what tells them from others."""
    root = config.data.root
    return (
        {"source": source_hash(root)}
        if config.data.name == "folder" and root is not None and root.exists()
        else {}
    )


def check_source(config: Config, opened: RunFolder) -> None:
    """Refuse a finished run on other images, found without reading any."""
    before, now = opened.data_hashes().get("source"), source(config).get("source")
    if before and now and before != now:
        raise ValueError(
            f"{opened.path} holds a finished run on other images: {config.data.root} is not what it was, or not what that "
            "run was given. Choose another folder with --out, or remove that one"
        )


def data(config: Config) -> Data:
    """The dataset, coloured or split with the run's seed unless the configuration gives another."""
    chosen, options = config.data, dict(config.data.options)
    if "seed" in keywords(datasets.DATASETS[chosen.name]):
        options.setdefault("seed", config.seed)
    if chosen.inject is not None:
        parse(chosen.inject)  # before minutes of reading
    built = datasets.build(chosen.name, chosen.root, **options)
    if chosen.inject is not None:
        built = inject(built, chosen.inject, config.seed)
    missing = [
        built.info.class_names[y]
        for y in range(built.info.num_classes)
        if not bool((built.train.labels == y).any())
    ]
    if missing:
        raise ValueError(
            f"{chosen.name} has no training sample of class {', '.join(missing)}; a model cannot learn it: "
            "remove the class, add samples, or move some of its samples from test to train"
        )
    return built


def method(
    config: Config,
    data: Data,
    *,
    bias: VisibleBias | None = None,
    trained: Mapping[str, Any] | None = None,
) -> Method:
    """Build the method that a configuration names, with weights that depend on the seed alone.

    Args:
        bias: what the method may know; found out here if it is not given.
        trained: `data.json` of the run whose weights are to be loaded; then `bias` is not needed.
    """
    if trained is not None:
        return method_for(config, recorded_info(config, data.info, trained))
    return method_for(config, (bias or visible_bias(config, data)).info)


def method_for(config: Config, info: DataInfo) -> Method:
    """Build the method that a configuration names for data with these facts."""
    options = (
        {"in_features": torch.Size(info.image_shape).numel()}
        if config.network.name == "mlp"
        else {}
    )
    make_encoder = partial(build_encoder, config.network.name, **options | config.network.options)
    torch.manual_seed(config.seed)
    return build_method(config.method.name, make_encoder, info, **config.method.options)


def training(
    config: Config,
    method: Method,
    data: Data,
    device: torch.device,
    *,
    bias: VisibleBias | None = None,
) -> Training:
    """Build everything that moves while `method` is trained: loaders, optimizers, schedules.

    Args:
        bias: what the method may know, as it was built with; found out here if it is not given.
    """
    settings = config.train
    if settings.batch_size < method.least_batch:
        raise ValueError(
            f"{config.method.name} compares samples with each other and train.batch_size={settings.batch_size} leaves "
            f"nothing to compare; give it at least {method.least_batch}, and better some hundreds"
        )
    visible = bias or visible_bias(config, data)
    splits, features = visible.splits, visible.features

    def loader_of(
        views: Views, sampler: str, batch_size: int, drop_last: bool, seed: int
    ) -> Loader:
        return Loader(
            splits["train"],
            views,
            SAMPLERS[sampler]((splits["train"], features.get("train")), seed),
            batch_size,
            device=device,
            seed=seed,
            workers=settings.workers,
            drop_last=drop_last,
            bias_features=features.get("train"),
            rank=distributed.rank(),
            world_size=distributed.world_size(),
        )

    def sweep(name: str) -> Loader:
        split = as_evaluated(splits[name])  # whole on every rank, so that all find out the same
        size = config.evaluate.batch_size
        return Loader(
            split,
            data.eval_views,
            InOrder(len(split)),
            size,
            device=device,
            workers=settings.workers,
            bias_features=features.get(name),
        )

    sampler = method.sampler if config.data.sampler == "auto" else config.data.sampler
    # A last batch is left out if it is too small for the method's losses, or for statistics of a batch.
    normalized = any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in method.modules()
    )
    rest = len(data.train) % settings.batch_size
    drop_last = settings.drop_last or 0 < rest < max(method.least_batch, 2 if normalized else 1)
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
    length = _length(config, len(loader))
    final_stage = method.plan(length)
    _refuse_unfinished(config, length, final_stage)
    if strangers := config.players.keys() - method.players().keys():
        raise Unsuited(
            f"players.{sorted(strangers)[0]}: {config.method.name} has no such player, only {', '.join(method.players())}; "
            f'settings for one method go under [methods."NAME".players.…]'
        )
    players = {
        name: _player(config, name, parameters, method.optimizers.get(name, {}), length.epochs)
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
        final_stage=final_stage,
    )


def _length(config: Config, steps_per_epoch: int) -> RunLength:
    """What `train.epochs` and `train.steps` come to."""
    epochs, most = config.train.epochs, config.train.steps
    steps = epochs * steps_per_epoch
    if most is not None and most < steps:
        return RunLength(most / steps_per_epoch, most)
    return RunLength(epochs, steps)


def _refuse_unfinished(config: Config, length: RunLength, final: FinalStage) -> None:
    """Refuse a run that ends before its method is what its name says."""
    if final.reached(length.epochs, length.steps, ended=True):
        return
    before, there, unit = final.steps, float(length.steps), "steps"
    if length.epochs <= final.epochs:
        before, there, unit = final.epochs, length.epochs, "epochs"
    longer = "train.epochs and train.steps" if config.train.steps else "train.epochs"
    name, _, _ = final.option.partition("=")
    hint = f" ({final.hint})" if final.hint else ""
    raise Unsuited(
        f"{config.method.name} begins after the first {before} {unit} (method.{final.option}), and this run has "
        f"{there:g}; raise {longer}, or lower method.{name}{hint}"
    )


def _player(
    config: Config,
    name: str,
    parameters: list[torch.nn.Parameter],
    differs: Mapping[str, Any],
    length: float,
) -> optim.Player:
    """`length` of the run in epochs, which its schedule spans."""
    optimizer, schedule = config.for_player(name, differs)
    settings = schedule.model_dump()
    rate = optim.schedule(settings.pop("name"), length, **settings)
    return optim.player(parameters, optimizer.model_dump(), rate)


def linear(config: Config) -> LinearSettings:
    """How linear evaluation learns, by the run's seed."""
    prefix = "linear_"
    keys = type(config.evaluate).model_fields
    given = {
        key.removeprefix(prefix): getattr(config.evaluate, key)
        for key in keys
        if key.startswith(prefix)
    }
    return LinearSettings(**given, seed=config.seed)


SeenSplit = tuple[Split, Tensor | None]  # with its bias features


def _needs_bias(make: Callable[..., Sampler]) -> Callable[[SeenSplit, int], Sampler]:
    def sampler(seen: SeenSplit, seed: int) -> Sampler:
        labels, bias = seen[0].labels, seen[0].bias
        if bias is None:
            raise ValueError(
                "this sampler groups samples by bias and the training set has no bias labels that may be used; choose "
                'another, or make labels: run "fairmargin scores" and train with --bias clusters'
            )
        return make(labels, bias, seed)

    return sampler


def _weighted(seen: SeenSplit, seed: int) -> Sampler:
    """Hong & Yang's oversampling: by bias features as with their SoftCon, or by bias labels as with their BiasCon."""
    split, features = seen
    if features is not None:
        return Weighted(score_file.rarity(features, split.labels, seed=seed), ratio=10, seed=seed)
    return _needs_bias(lambda y, b, seed: Weighted(bias_weights(y, b), ratio=10, seed=seed))(
        seen, seed
    )


SAMPLERS: dict[str, Callable[[SeenSplit, int], Sampler]] = {
    "shuffled": lambda seen, seed: Shuffled(len(seen[0]), seed),
    "class-balanced": lambda seen, seed: ClassBalanced(seen[0].labels, seed),
    "group-balanced": _needs_bias(lambda y, b, seed: GroupBalanced(y, b, seed)),
    "bias-aware": _needs_bias(lambda y, b, seed: BiasAware(y, b, seed=seed)),
    "weighted": _weighted,
}
