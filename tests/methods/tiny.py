"""A dataset and networks small enough to run every method in a moment."""

from dataclasses import replace
from functools import partial

import torch

from fairmargin.batch import Batch, DataInfo
from fairmargin.data.loader import Loader
from fairmargin.data.samplers import InOrder
from fairmargin.data.split import ArraySplit
from fairmargin.data.views import HALF, Flip, Views
from fairmargin.methods import build_method
from fairmargin.methods.objectives import ROWS
from fairmargin.networks import build_encoder
from fairmargin.optim import player, schedule

CLASSES, BIASES, SIDE = 3, 3, 8
ADAM = {
    "name": "adam",
    "lr": 1e-2,
    "weight_decay": 0.0,
    "momentum": 0.9,
    "betas": (0.9, 0.999),
    "nesterov": False,
}

SGD = {**ADAM, "name": "sgd", "lr": 0.1}
NOTES = {"stylized": "none, but sin may be built"}
OPTIONS = {  # what so few steps, and a dataset of noise, allow
    "dfr": {"source": "train", "draws": 2, "inverse_strength": 1.0},
    "class-refit": {"source": "train", "draws": 2, "inverse_strength": 1.0},
    "afr": {"source": "train", "gamma": 1.0},
    "jtt": {"up_weight": 2.0},
    "flac": {"alpha": 1.0},
    "lc": {"mixup": 0.3, "ramp_steps": 1},
    "dfa": {"swap_start": 1},  # steps: a share is of a run whose length is known
    "softcon": {"beta": 1.0},
    "biascon+ce": {"beta": 1.0},
    "biascon+biasbal": {"beta": 1.0},
    "learned-mixin": {"pretrain_epochs": 0},
    "learned-mixin+h": {"pretrain_epochs": 0},
}


def split(n=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    bias = torch.where(
        torch.rand(n, generator=g) < 0.6, labels, torch.randint(BIASES, (n,), generator=g)
    )
    return ArraySplit(torch.randint(256, (n, 3, SIDE, SIDE), generator=g).byte(), labels, bias)


def info(data=None, biased=True):
    data = data or split()
    counts = torch.zeros(CLASSES, BIASES, dtype=torch.long)
    counts.index_put_((data.labels, data.bias), torch.tensor(1), accumulate=True)
    names = tuple("abc")
    if not biased:
        return DataInfo("tiny", names, (), (3, SIDE, SIDE), counts[:, :0], NOTES, len(data))
    return DataInfo(
        "tiny", names, ("red", "green", "blue"), (3, SIDE, SIDE), counts, NOTES, len(data)
    )


def views(number=1):
    return Views((Flip(),), *HALF, number)


def batch(data=None, number=1, dtype=torch.float32):
    data = data or split()
    index = torch.arange(len(data))
    images = views(number)(data.images(index), torch.Generator().manual_seed(1))
    return Batch(images.to(dtype), data.labels, data.bias, index)


def needs_bias_features(some_method):
    return getattr(some_method, "needs", "") == "bias features"


def bias_features(data):
    bias = torch.arange(len(data)) // 3 % BIASES if data.bias is None else data.bias
    return torch.nn.functional.one_hot(bias, BIASES).float() + 0.2


def batch_for(some_method, data=None, dtype=torch.float32):
    """With as many views as it needs, and a second stream if it asks for one."""
    first = batch(data, number_of_views(some_method), dtype)
    if needs_bias_features(some_method):
        first = replace(first, bias_features=bias_features(data or split()).to(dtype))
    return replace(first, second=batch(data, 2, dtype)) if some_method.second is not None else first


def sweep(name):
    data = split(24 if name == "train" else 12)
    return Loader(data, Views((), *HALF), InOrder(len(data)), 10)


def convolutional():
    return partial(build_encoder, "simple-conv-3", stride=2, widths=(4, 6))


def without_batch_norm():
    return partial(build_encoder, "mlp", in_features=3 * SIDE * SIDE, widths=(12, 6))


def method(name, make_encoder=None, data_info=None, **options):
    """A method that lives on bias features is promised some."""
    torch.manual_seed(0)
    data_info = data_info or info()
    if name in ROWS and ROWS[name].needs == "bias features":
        data_info = replace(data_info, bias_features=BIASES)
    return build_method(name, make_encoder or convolutional(), data_info, **options)


def tamed(name, make_encoder=None, data_info=None):
    """The method with settings that suit a few steps on noise."""
    return method(name, make_encoder, data_info, **OPTIONS.get(name, {}))


def number_of_views(some_method):
    return getattr(some_method, "views", 1)


def players(some_method, optimizer=ADAM):
    return {
        name: player(p, optimizer, schedule("constant", 1))
        for name, p in some_method.players().items()
    }


def part(whole, start, stop):
    pieces = {k: v[start:stop] for k, v in vars(whole).items() if isinstance(v, torch.Tensor)}
    return replace(whole, **pieces, second=whole.second and part(whole.second, start, stop))
