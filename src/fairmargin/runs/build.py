"""Build what a configuration names: folder, device, data, method, and everything that trains it."""

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
from fairmargin.config import Config, difference, load_resolved, settings_of
from fairmargin.config.code import is_code
from fairmargin.data import Data, Split
from fairmargin.data.datasets.folder import images_hash
from fairmargin.data.hashes import source_hash
from fairmargin.data.inject import inject, parse
from fairmargin.data.loader import Loader
from fairmargin.data.options import keywords
from fairmargin.data.problems import BadManifest
from fairmargin.data.samplers import (
    BiasAware,
    ClassBalanced,
    GroupBalanced,
    InOrder,
    InProportion,
    Sampler,
    Shuffled,
    Weighted,
    bias_weights,
)
from fairmargin.data.split import as_evaluated
from fairmargin.data.views import Views
from fairmargin.data.webdataset import is_pattern
from fairmargin.evaluate.linear import LinearSettings
from fairmargin.loop import Training
from fairmargin.methods import Method, build_method
from fairmargin.methods.base import FinalStage, RunLength, Unsuited
from fairmargin.methods.vectors import check_takes_vectors
from fairmargin.networks import Encoder
from fairmargin.runs.folder import RunFolder
from fairmargin.runs.footprint import check_training_fits, check_weights_fit
from fairmargin.runs.network import Network, open_network
from fairmargin.runs.own import check_code, check_data, own_data, own_encoders
from fairmargin.runs.record import CONFIG, is_run
from fairmargin.runtime import distributed
from fairmargin.runtime.agreement import check_agreement
from fairmargin.version import __version__


def device(name: str) -> torch.device:
    """Return the device of this name, after testing that it works.

    Args:
        name: of PyTorch's devices, or "auto" for the best there is. With "cuda", each process of a
            machine takes the GPU of its local rank.
    """
    if name == "auto":
        if torch.cuda.is_available():
            name = "cuda"
        elif torch.backends.mps.is_available():
            name = "mps"
        else:
            name = "cpu"
    try:
        chosen = torch.device(name)
        # A value that is read: the device "meta" makes tensors that hold none.
        torch.zeros(1, device=chosen).item()
    # ImportError: the device of a library that is not installed.
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(
            f"train.device={name} cannot be used here: {str(error).splitlines()[0]}. "
            "Use cpu, or auto for the best there is; weights of a GPU work on any device"
        ) from error
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return chosen


# Added to the seed of the second stream of batches: larger than every seed of a run.
OTHER = 1 << 32
# A run may be continued with other values of these settings.
HARMLESS = (
    "data.root",
    "train.device",
    "train.workers",
    "train.timeout_seconds",
    "train.checkpoint_seconds",
    "train.keep",
    "train.log_steps",
    "train.tensorboard",
    "train.trackers",
    "train.tracked_images",
)


def changed(a: Config, b: Config) -> list[str]:
    """List the settings by which two runs differ, such as "train.epochs 24 → 80".

    Settings that do not change what is learned are left out.

    Args:
        a: the configuration before.
        b: the configuration after.
    """
    return [change for change in difference(a, b) if not change.startswith(HARMLESS)]


@contextmanager
def folder(config: Config, path: Path) -> Iterator[RunFolder]:
    """Make and lock the run folder; refuse one that holds a run with another configuration.

    Args:
        config: of the run that is about to begin or to continue.
        path: the folder.
    """
    opened = RunFolder(path)
    compare_ranks(config)
    if distributed.rank() != 0:
        yield opened
        return
    fresh = not path.exists()
    opened.create()
    with opened.lock(), opened.removed_if_unused(fresh):
        changes = changed(load_resolved(path / CONFIG), config) if is_run(path) else []
        if changes:
            raise ValueError(
                f"{path} holds a run with another configuration: {', '.join(changes)}. "
                "Choose another folder with --out, or remove that one"
            )
        check_code(config, opened)
        yield opened


def compare_ranks(config: Config) -> None:
    """Refuse to begin if processes of this run have other settings or other versions.

    Args:
        config: of the run, as this process has it.
    """
    settings = settings_of(config).items()
    facts = {name: repr(value) for name, value in settings if name not in HARMLESS}
    versions = {"torch": str(torch.__version__), "fairmargin": __version__}
    check_agreement(facts | versions, "at the start")


def source(config: Config) -> dict[str, str]:
    """Return {"source": hash} for people's own data, which have no name; else an empty dict."""
    root = config.data.root
    if config.data.name not in datasets.OWN or root is None:
        return {}
    if root.exists() or is_pattern(root):
        return {"source": source_hash(root)}
    return {}


def images(config: Config) -> str | None:
    """Return the digest of people's own image files; None for other data and if they are not there.

    Args:
        config: names the table or folder.
    """
    root = config.data.root
    if config.data.name != "folder" or root is None or not source(config):
        return None
    try:
        return images_hash(root, config.data.options)
    except BadManifest:
        # The table itself has changed, which is told by its own digest.
        return None


def check_source(config: Config, opened: RunFolder) -> None:
    """Refuse a folder whose finished run saw other images.

    No image is read for this that is as it was when it was last read, except of datasets that were
    given from Python.

    Args:
        config: of the run that was asked for.
        opened: the folder of the finished run.
    """
    check_data(config, opened)
    open_network(config, opened, finished=True)
    before = opened.data_hashes()
    now = source(config)
    same = before.get("source", now.get("source")) == now.get("source") or not now
    if same and "images" in before:
        same = images(config) in (None, before["images"])
    if not same:
        raise ValueError(
            f"{opened.path} holds a finished run on other images: {config.data.root} has changed "
            "since, or that run was given another folder. "
            "Choose another folder with --out, or remove that one"
        )


def check_testable(config: Config, data: Data) -> None:
    """Refuse data without test samples: nothing could be said of the result.

    Args:
        config: names the dataset.
        data: what was built.
    """
    if not len(data.test):
        raise ValueError(
            f"{config.data.name} has no test samples here, so nothing could be said of the result; "
            "add some"
        )


def network(config: Config, opened: RunFolder) -> Network:
    """Open what the run's network comes from, unless a checkpoint has its weights already.

    Args:
        config: of the run.
        opened: its folder.
    """
    return open_network(config, opened)


def data(config: Config, network: Network | None = None) -> Data:
    """Build the dataset, with the run's seed unless `data.seed` is set.

    Args:
        config: of the run.
        network: own images are normalized as it was trained, unless the configuration says how.
    """
    chosen = config.data
    options = dict(chosen.options)
    own = is_code(chosen.name)
    if chosen.name == "folder" and network is not None:
        options = network.normalization() | options
    if not own and "seed" in keywords(datasets.DATASETS[chosen.name]):
        options.setdefault("seed", config.seed)
    if chosen.inject is not None:
        # An error in it should show before the minutes that reading may take.
        parse(chosen.inject)
    built = own_data(config) if own else datasets.build(chosen.name, chosen.root, **options)
    if chosen.inject is not None:
        built = inject(built, chosen.inject, config.seed)
    seen = set(built.train.labels.unique().tolist())
    missing = [name for y, name in enumerate(built.info.class_names) if y not in seen]
    if missing:
        raise ValueError(
            f"{chosen.name} has no training sample of class {', '.join(missing)}, "
            "so a model cannot learn it; "
            "remove the class, add samples, or move some of its samples from test to train"
        )
    return built


def method(
    config: Config,
    data: Data,
    *,
    bias: VisibleBias | None = None,
    trained: Mapping[str, Any] | None = None,
    network: Network | None = None,
) -> Method:
    """Build the method that a configuration names, with weights that depend on the seed alone.

    Args:
        config: of the run.
        data: the dataset, for the numbers of classes and biases.
        bias: what the method may know of the bias; found out here if it is not given.
        trained: `data.json` of the run whose weights are to be loaded; then `bias` is not needed.
        network: of `network`, or of the trained run; opened here if it is not given.
    """
    if trained is not None:
        return method_for(config, recorded_info(config, data.info, trained), network)
    network = network or open_network(config)
    built = method_for(config, (bias or visible_bias(config, data)).info, network)
    network.record(data, built)
    return built


def method_for(config: Config, info: DataInfo, network: Network | None = None) -> Method:
    """Build the method that a configuration names, for data with these facts."""
    make_encoder = _encoders(config, info, network)
    check_weights_fit(config, info)
    torch.manual_seed(config.seed)
    return build_method(config.method.name, make_encoder, info, **config.method.options)


def _encoders(config: Config, info: DataInfo, network: Network | None) -> Callable[..., Encoder]:
    """Return what makes the encoders of a method, for images of this shape."""
    name = config.network.name
    if is_code(name):
        if config.network.weights is not None or config.network.freeze:
            raise ValueError(
                f"network.weights and network.freeze are for named networks; {name} is your own: "
                "load its weights and freeze it in your own code"
            )
        return own_encoders(config, info)
    if info.has_vectors and name != "mlp":
        raise ValueError(
            f"{info.name} holds vectors and {name} takes images; "
            "choose --network mlp, the default for embeddings"
        )
    if info.has_vectors:
        second = config.method.options.get("second", "none") != "none"
        check_takes_vectors(config.method.name, second=second)
    return partial((network or open_network(config)).encoder, tuple(info.image_shape))


def training(
    config: Config,
    method: Method,
    data: Data,
    device: torch.device,
    *,
    bias: VisibleBias | None = None,
    parent: Mapping[str, Any] | None = None,
) -> Training:
    """Build everything that moves while `method` is trained: loaders, optimizers, schedules.

    Args:
        config: of the run.
        method: what is trained; it moves to the device.
        data: the dataset.
        device: where training happens.
        bias: what the method was built with; found out here if it is not given.
        parent: facts about the run that this one goes on from. The method keeps the plan that it
            made then, so that no stage of it comes twice.
    """
    settings = config.train
    if settings.batch_size < method.least_batch:
        raise ValueError(
            f"{config.method.name} compares samples with each other and "
            f"train.batch_size={settings.batch_size} leaves nothing to compare; "
            f"give it at least {method.least_batch}, and better some hundreds"
        )
    visible = bias or visible_bias(config, data)
    splits, features = visible.splits, visible.features

    def loader_of(
        views: Views, sampler: str, batch_size: int, drop_last: bool, seed: int
    ) -> Loader:
        return Loader(
            splits["train"],
            views,
            _sampler(sampler, (splits["train"], features.get("train")), seed),
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
        # Every rank goes through the whole split, so that all find out the same.
        split = as_evaluated(splits[name])
        return Loader(
            split,
            data.eval_views,
            InOrder(len(split)),
            config.evaluate.batch_size,
            device=device,
            workers=settings.workers,
            bias_features=features.get(name),
        )

    sampler = method.sampler if config.data.sampler == "auto" else config.data.sampler
    # A last batch too small for the method's losses, or for batch normalization, is left out.
    batch_norm = nn.modules.batchnorm._BatchNorm
    normalized = any(isinstance(module, batch_norm) for module in method.modules())
    least = max(method.least_batch, 2) if normalized else max(method.least_batch, 1)
    rest = len(data.train) % settings.batch_size
    drop_last = settings.drop_last or 0 < rest < least
    loader = loader_of(data.train_views, sampler, settings.batch_size, drop_last, config.seed)
    wanted = method.second
    second = None
    if wanted is not None:
        views = wanted.views(data.train_views)
        second = loader_of(views, wanted.sampler, wanted.batch_size, False, OTHER + config.seed)
    if not len(loader):
        raise ValueError(
            f"train.batch_size={settings.batch_size} with train.drop_last leaves no batch of "
            f"{len(data.train)} samples; lower train.batch_size or set train.drop_last=false"
        )
    length = _length(settings.epochs, settings.steps, len(loader))
    planned = length
    if parent is not None:
        planned = _length(parent["planned"]["epochs"], parent["planned"]["steps"], len(loader))
    final_stage = method.plan(planned)
    _refuse_unfinished(config, length, final_stage)
    strangers = config.players.keys() - method.players().keys()
    if strangers:
        raise Unsuited(
            f"players.{sorted(strangers)[0]}: {config.method.name} has no such player, only "
            f"{', '.join(method.players())}; "
            f'settings for one method go under [methods."NAME".players.…]'
        )
    method.to(device)
    backbone = [
        p for module in method.modules() if isinstance(module, Encoder) for p in module.parameters()
    ]
    players = {
        name: _player(
            config, name, parameters, method.optimizers.get(name, {}), length.epochs, backbone
        )
        for name, parameters in moving(config, method).items()
    }
    made = Training(
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
    check_training_fits(config, made, data.info)
    return made


def moving(config: Config, method: Method) -> dict[str, list[nn.Parameter]]:
    """Return the parameters that each player moves: all but those of a frozen encoder.

    Args:
        config: of the run.
        method: whose encoder may be frozen.
    """
    players = {
        name: [p for p in parameters if p.requires_grad]
        for name, parameters in method.players().items()
    }
    still = [name for name, parameters in players.items() if not parameters]
    if still:
        raise Unsuited(
            f"network.freeze leaves nothing to train for the player {still[0]} of "
            f"{config.method.name}: its loss shapes the encoder's features. Choose a method that "
            "trains a classifier, such as ce, or give this one a projection head where it has one "
            "(--set method.head=mlp), or leave network.freeze out"
        )
    return players


def _length(epochs: int, most: int | None, steps_per_epoch: int) -> RunLength:
    """Return how long training takes: `train.epochs`, or `train.steps` if that is shorter."""
    steps = epochs * steps_per_epoch
    if most is not None and most < steps:
        return RunLength(most / steps_per_epoch, most)
    return RunLength(epochs, steps)


def _refuse_unfinished(config: Config, length: RunLength, final: FinalStage) -> None:
    """Refuse a run that ends before its method has reached its final stage."""
    if final.reached(length.epochs, length.steps, ended=True):
        return
    before, there, unit = final.steps, float(length.steps), "steps"
    if length.epochs <= final.epochs:
        before, there, unit = final.epochs, length.epochs, "epochs"
    longer = "train.epochs and train.steps" if config.train.steps else "train.epochs"
    name, _, _ = final.option.partition("=")
    hint = f" ({final.hint})" if final.hint else ""
    raise Unsuited(
        f"{config.method.name} begins after the first {before} {unit} (method.{final.option}), "
        f"and this run has {there:g}; raise {longer}, or lower method.{name}{hint}"
    )


def _player(
    config: Config,
    name: str,
    parameters: list[torch.nn.Parameter],
    differs: Mapping[str, Any],
    length: float,
    backbone: list[torch.nn.Parameter],
) -> optim.Player:
    """Build one player with its optimizer; its schedule spans `length` epochs."""
    optimizer, schedule = config.for_player(name, differs)
    own = config.players.get(name)
    inside = {id(p) for p in backbone}
    if own and own.backbone_lr is not None and not any(id(p) in inside for p in parameters):
        raise Unsuited(
            f"players.{name}.backbone_lr: this player moves no encoder; leave it out, or set "
            f"players.{name}.lr"
        )
    settings = schedule.model_dump()
    rate = optim.schedule(settings.pop("name"), length, **settings)
    return optim.player(parameters, optimizer.model_dump(), rate, backbone)


def linear(config: Config) -> LinearSettings:
    """Return the settings of linear evaluation: `evaluate.linear_…` and the run's seed."""
    prefix = "linear_"
    keys = type(config.evaluate).model_fields
    given = {
        key.removeprefix(prefix): getattr(config.evaluate, key)
        for key in keys
        if key.startswith(prefix)
    }
    return LinearSettings(**given, seed=config.seed)


def probe_weights(config: Config, loader: Loader) -> Tensor | None:
    """Return weights for a fitted classifier that is reported: as the run drew its samples.

    Where every (class, bias) group is drawn equally often, every group weighs alike. Otherwise, and
    if the fitted classifier is only looked at, all samples weigh alike: None.

    Args:
        config: of the run.
        loader: of its training samples.
    """
    sampler = loader.sampler
    if config.evaluate.report_classifier != "fitted" or not isinstance(sampler, GroupBalanced):
        return None
    return sampler.weights


# A split and its bias features.
SeenSplit = tuple[Split, Tensor | None]


def _needs_bias(make: Callable[..., Sampler]) -> Callable[[SeenSplit, int], Sampler]:
    def sampler(seen: SeenSplit, seed: int) -> Sampler:
        labels, bias = seen[0].labels, seen[0].bias
        if bias is None:
            raise ValueError(
                "this sampler groups samples by bias and the training set has no bias labels that "
                'may be used; choose another, or make labels: run "fairmargin scores" and train '
                "with --bias clusters"
            )
        return make(labels, bias, seed)

    return sampler


def _weighted(seen: SeenSplit, seed: int) -> Sampler:
    """Oversample as Hong & Yang do: by bias features (their SoftCon) or bias labels (BiasCon)."""
    split, features = seen
    if features is not None:
        return Weighted(score_file.rarity(features, split.labels, seed=seed), ratio=10, seed=seed)
    by_labels = _needs_bias(lambda y, b, seed: Weighted(bias_weights(y, b), ratio=10, seed=seed))
    return by_labels(seen, seed)


def _sampler(name: str, seen: SeenSplit, seed: int) -> Sampler:
    """Build the sampler of this name; where the data give weights, one that draws by them."""
    split = seen[0]
    weights = getattr(split, "weights", None)
    if weights is None:
        return SAMPLERS[name](seen, seed)
    if name == "shuffled":
        return InProportion(weights, seed=seed)
    if name == "class-balanced":
        return InProportion(weights, split.labels[:, None], seed)
    if name == "group-balanced":
        balanced = _needs_bias(
            lambda y, b, seed: InProportion(weights, torch.stack([y, b], 1), seed)
        )
        return balanced(seen, seed)
    raise ValueError(
        f"the sampler {name} has a rule of its own for which samples come, and "
        "data.weight_column gives another; leave one out: set data.sampler to shuffled, "
        "class-balanced or group-balanced, which follow the weights, or drop data.weight_column"
    )


SAMPLERS: dict[str, Callable[[SeenSplit, int], Sampler]] = {
    "shuffled": lambda seen, seed: Shuffled(len(seen[0]), seed),
    "class-balanced": lambda seen, seed: ClassBalanced(seen[0].labels, seed),
    "group-balanced": _needs_bias(lambda y, b, seed: GroupBalanced(y, b, seed)),
    "bias-aware": _needs_bias(lambda y, b, seed: BiasAware(y, b, seed=seed)),
    "weighted": _weighted,
}
