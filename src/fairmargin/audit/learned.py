"""Attributes that are learned from the fitting half: marks at any place, and faint fixed patterns.

Both look at what is left of a picture when a blurred copy is subtracted, which holds marks, noise
and edges and hardly any object. Like every attribute they are judged on the other half, and they
are called a shortcut only if they are not bound to the object (audit/bond.py).
"""

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor
from torch.nn import functional as F

from fairmargin.audit.attributes import AT_ONCE, Attribute
from fairmargin.audit.section import Progress, silent
from fairmargin.data.split import Split
from fairmargin.runtime.threads import one_thread

# Side of the patches that marks are made of.
PATCH = 5
# Patches learned, pictures they are learned from, and patches taken from each.
KINDS = 64
PICTURES = 1000
EACH = 20
# Larger pictures are looked at in the middle only.
LARGEST = 96
# Largest difference from the surroundings that a faint pattern makes.
FAINT = 0.04


def small_marks(
    split: Split, index: np.ndarray, fit: np.ndarray, seed: int, progress: Progress = silent
) -> Attribute:
    """Return how strongly, and how often, each of 64 kinds of patch occurs anywhere in a picture.

    The kinds are clusters of patches of the fitting half.

    Args:
        split: of the pictures.
        index: [N] positions in the split.
        fit: positions in `index` of the fitting half.
        seed: of the patches and the clusters.
        progress: called after each chunk.
    """
    where = torch.from_numpy(index)
    with one_thread():
        filters = _kinds(split, where[torch.from_numpy(fit)], seed)
        # One block for all chunks; pieces between large ones that are freed scatter the memory.
        values = torch.empty(len(where), 2 * KINDS)
        step = _step(split, where)
        for start in range(0, len(where), step):
            x = _padded(_residual(split.images(where[start : start + step])))
            likeness = F.conv2d(x, filters).relu_().flatten(2)
            values[start : start + step, :KINDS] = likeness.amax(2)
            values[start : start + step, KINDS:] = likeness.mean(2)
            progress("looking for small marks", min(start + step, len(where)), len(where))
    return Attribute("small marks", "learned", "several", values.numpy())


def fixed_pattern(
    split: Split,
    index: np.ndarray,
    labels: np.ndarray,
    fit: np.ndarray,
    classes: int,
    progress: Progress = silent,
) -> Attribute:
    """Return how well the faint fine structure of a picture fits the mean of each class.

    Cameras leave such patterns: each has its own, at the same place in every picture. The means
    are those of the fitting half; a picture of that half is taken out of its own mean.

    Args:
        split: of the pictures.
        index: [N] positions in the split.
        labels: [N] classes.
        fit: positions in `index` of the fitting half.
        classes: number of classes.
        progress: called after each chunk.
    """
    where, y = torch.from_numpy(index), torch.from_numpy(labels)
    fitted = torch.zeros(len(index), dtype=torch.bool)
    fitted[torch.from_numpy(fit)] = True
    number = torch.bincount(y[fitted], minlength=classes).float()
    step = _step(split, where)
    with one_thread():
        total: Tensor | None = None
        for start in range(0, len(where), step):
            x = _fine(split, where[start : start + step])
            part = fitted[start : start + step]
            if total is None:
                total = torch.zeros(classes, x.shape[1])
            total.index_add_(0, y[start : start + step][part], x[part])
        assert total is not None
        values = torch.empty(len(where), classes)
        for start in range(0, len(where), step):
            x = _fine(split, where[start : start + step])
            part = fitted[start : start + step].float()
            own = F.one_hot(y[start : start + step], classes) * part[:, None]
            # The sum of the class without the picture itself, for pictures of the fitting half.
            fits = x @ total.T - own * (x**2).sum(1, keepdim=True)
            values[start : start + step] = fits / (number - own).clamp(min=1)
            progress("looking for fixed patterns", min(start + step, len(where)), len(where))
    values -= values.mean(1, keepdim=True)
    return Attribute("fixed pattern", "learned", "several", values.numpy())


def _step(split: Split, where: Tensor) -> int:
    # A sixteenth of what plain statistics take at once, because each kind of patch has its own map.
    return max(1, AT_ONCE // 16 // max(1, split.images(where[:1]).numel()))


def _residual(images: Tensor) -> Tensor:
    """What a blurred copy lacks, [n, 1, h, w], on one scale for all pictures."""
    height, width = images.shape[2:]
    top, left = max(0, height - LARGEST) // 2, max(0, width - LARGEST) // 2
    grey = images[:, :, top : top + LARGEST, left : left + LARGEST].float().mean(1, keepdim=True)
    around = F.avg_pool2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return (grey - around) / 255


def _padded(x: Tensor) -> Tensor:
    """Make room for one patch in pictures that are smaller."""
    return x if min(x.shape[2:]) >= PATCH else F.pad(x, (PATCH,) * 4)


def _fine(split: Split, where: Tensor) -> Tensor:
    """The residual without the object's edges, [n, pixels], each of length 1."""
    x = _residual(split.images(where)).flatten(1)
    # A sensor's noise is faint; edges of the object would drown it.
    return F.normalize(torch.where(x.abs() < FAINT, x, 0), dim=1)


def _kinds(split: Split, where: Tensor, seed: int) -> Tensor:
    """Kinds of patch as filters, [64, 1, 5, 5], each with mean 0 and length 1."""
    random = np.random.default_rng(seed)
    chosen = where[torch.from_numpy(np.sort(random.permutation(len(where))[:PICTURES]))]
    patches = []
    for part in chosen.split(_step(split, where)):
        x = _padded(_residual(split.images(part)))
        every = F.unfold(x, PATCH).mT  # [n, places, 25]
        strong = every.norm(dim=2) + 1e-3 * torch.from_numpy(random.random(every.shape[:2])).float()
        # Marks have contrast, so that half of the patches come from the strongest places.
        best = strong.topk(min(EACH // 2, strong.shape[1]), 1).indices
        other = torch.from_numpy(random.integers(0, strong.shape[1], (len(x), EACH // 2)))
        at = torch.cat([best, other], 1)[:, :, None].expand(-1, -1, PATCH**2)
        patches.append(every.gather(1, at).flatten(0, 1))
    rows = torch.cat(patches)
    rows = rows - rows.mean(1, keepdim=True)
    rows = rows[rows.norm(dim=1) > 1e-3]
    if len(rows) < KINDS:
        return torch.zeros(KINDS, 1, PATCH, PATCH)
    rows = F.normalize(rows, dim=1)
    clusters = MiniBatchKMeans(KINDS, n_init=1, batch_size=2048, random_state=seed, max_iter=20)
    centres = torch.from_numpy(clusters.fit(rows.numpy()).cluster_centers_).float()
    return F.normalize(centres, dim=1).view(KINDS, 1, PATCH, PATCH)
