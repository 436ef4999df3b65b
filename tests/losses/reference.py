"""The losses once more, in plain Python loops over lists of floats.

They are slow and obvious, and share no code with the library.
"""

import math

import torch


def unit(rows):
    rows = [list(map(float, row)) for row in rows]
    return [[x / math.sqrt(sum(v * v for v in row)) for x in row] for row in rows]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def log_sum_exp(values):
    values = list(values)
    if not values:
        return -math.inf
    top = max(values)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(v - top) for v in values))


def anchors(z, y, temperature, guard=0.0):
    """For each anchor: similarities of its positives and negatives, and the log of the guard."""
    for a in range(len(z)):
        s = [dot(z[a], z[j]) / temperature for j in range(len(z))]
        positives = [s[j] for j in range(len(z)) if j != a and y[j] == y[a]]
        negatives = [s[j] for j in range(len(z)) if y[j] != y[a]]
        yield positives, negatives, (math.log(guard) + max(s) if guard else -math.inf)


def mean_over_valid(values):
    values = [v for v in values if v is not None]
    return math.fsum(values) / len(values) if values else 0.0


def eps_supinfonce(z, y, epsilon, temperature, form="c", positives="mean", guard=0.0):
    def one(p, n, extra):
        if not p or (epsilon == math.inf and not n and form in "ac"):
            return None
        if form == "a":
            return log_sum_exp([-epsilon] + [sn - si for si in p for sn in n])
        if form == "b":
            return math.fsum(log_sum_exp([-epsilon] + [sn - si for si in p]) for sn in n)
        if form == "d":
            return math.fsum(log_sum_exp([-epsilon, sn - si]) for si in p for sn in n)
        total = math.fsum(-si + log_sum_exp([si - epsilon, *n, extra]) for si in p)
        return total if positives == "sum" else total / len(p)

    return mean_over_valid(one(*row) for row in anchors(z, y, temperature, guard))


def eps_supcon(z, y, epsilon, temperature, guard=0.0):
    def one(p, n, extra):
        if not p or (epsilon == math.inf and not n):
            return None
        return -math.fsum(p) / len(p) + log_sum_exp([si - epsilon for si in p] + n + [extra])

    return mean_over_valid(one(*row) for row in anchors(z, y, temperature, guard))


def supcon_in(z, y, temperature):
    def one(p, n, _):
        return None if not p else math.log(len(p)) - log_sum_exp(p) + log_sum_exp(p + n)

    return mean_over_valid(one(*row) for row in anchors(z, y, temperature))


def information_bounds(scores, positives, negatives, images):
    """(infonce, infol1o, lower, upper).

    Of each row there are its positive and negative columns, and the images among the latter.
    """
    printed, constants = [], []
    for s, p, n, k in zip(scores, positives, negatives, images, strict=True):
        if not p or not n:
            continue
        rivals = [s[j] for j in n]
        left = math.fsum(s[i] - log_sum_exp([s[i], *rivals]) for i in p) / len(p)
        right = math.fsum(s[i] - log_sum_exp(rivals) for i in p) / len(p)
        printed.append((left, right))
        constants.append((math.log(1 + k), math.log(len(n))))
    (left, right), (plus_left, plus_right) = (
        [mean_over_valid(column) for column in zip(*table, strict=True)]
        for table in (printed, constants)
    )
    return left, right, left + plus_left, right + plus_right


def weighted_supcon(z, y, q, temperature):
    """BiasCon and SoftCon, the mean over all anchors; q[i][j] weights j as a positive of i."""
    total = 0.0
    for i in range(len(z)):
        s = [dot(z[i], z[j]) / temperature for j in range(len(z))]
        denominator = log_sum_exp(s[j] for j in range(len(z)) if j != i)
        w = [q[i][j] if j != i and y[j] == y[i] else 0.0 for j in range(len(z))]
        if sum(w) > 0:
            total += math.fsum(
                wj * (denominator - sj) for wj, sj in zip(w, s, strict=True)
            ) / math.fsum(w)
    return total / len(z)


def pair_sets(z, y, aligned, known, of=lambda d: d, anchor=None):
    """The four sets of (weight, of(distance)) over ordered pairs i ≠ j.

    `aligned[i][j]` lies in [0, 1].
    """
    sets = [[], [], [], []]
    for i in range(len(z)) if anchor is None else [anchor]:
        for j in range(len(z)):
            if i == j or not known[i] or not known[j]:
                continue
            d = math.fsum((a - b) ** 2 for a, b in zip(z[i], z[j], strict=True))
            first = 0 if y[i] == y[j] else 2
            for k, w in ((first, aligned[i][j]), (first + 1, 1 - aligned[i][j])):
                if w > 0:
                    sets[k].append((w, of(d)))
    return sets


def mean_and_variance(pairs, size=None):
    mass = size if size is not None else math.fsum(w for w, _ in pairs)
    mean = math.fsum(w * d for w, d in pairs) / mass
    return mean, math.fsum(w * (d - mean) ** 2 for w, d in pairs) / mass


def kl(a, c, floor):
    (ma, va), (mc, vc) = a, c
    va, vc = va + floor, vc + floor
    return 0.5 * ((va + (ma - mc) ** 2) / vc - math.log(va / vc) - 1)


DIVERGENCES = {
    "kl": kl,
    "lognormal": kl,
    "jeffreys": lambda a, c, floor: kl(a, c, floor) + kl(c, a, floor),
    "moments": lambda a, c, floor: (a[0] - c[0]) ** 2 + (math.sqrt(a[1]) - math.sqrt(c[1])) ** 2,
    "mean": lambda a, c, floor: (a[0] - c[0]) ** 2,
    "absolute-mean": lambda a, c, floor: (a[0] - c[0]) ** 2,
}
MEASURES = {
    "lognormal": lambda d: math.log(max(d, 1e-4)),
    "absolute-mean": lambda d: abs(1 - d / 2),
}


def fairkl(
    z,
    y,
    b=None,
    aligned=None,
    *,
    divergence="kl",
    scope="batch",
    negatives=False,
    floor=0.1,
    normalize="weights",
):
    n = len(z)
    known = [True] * n if b is None else [x >= 0 for x in b]
    aligned = aligned or [[float(b[i] == b[j]) for j in range(n)] for i in range(n)]
    least = 1 if divergence in ("mean", "absolute-mean") else 2
    of = MEASURES.get(divergence, lambda d: d)
    samples = sum(known)
    size = None if normalize == "weights" else (samples if scope == "anchor" else samples**2)
    total = 0.0
    for sign in (0, 2) if negatives else (0,):
        values = []
        for anchor in range(n) if scope == "anchor" else [None]:
            a, c = pair_sets(z, y, aligned, known, of, anchor)[sign : sign + 2]
            if min(len(a), len(c)) >= least:
                values.append(
                    DIVERGENCES[divergence](
                        mean_and_variance(a, size), mean_and_variance(c, size), floor
                    )
                )
        total += math.fsum(values) / len(values) if values else 0.0
    return total


def fairkl_authors(z, y, b, spread=True):
    """The released formula on the B×B similarity matrix, self-pairs and zeros included."""
    n = len(z)
    mean, sigma = {}, {}
    for name, label, bias in (("pa", 1, 1), ("pc", 1, 0), ("na", 0, 1), ("nc", 0, 0)):
        mask = [
            [float((y[i] == y[j]) == label and (b[i] == b[j]) == bias) for j in range(n)]
            for i in range(n)
        ]
        entries = [dot(z[i], z[j]) * mask[i][j] for i in range(n) for j in range(n)]
        mean[name] = math.fsum(entries) / max(sum(map(sum, mask)), 1)
        centre = math.fsum(entries) / n**2
        sigma[name] = math.sqrt(math.fsum((e - centre) ** 2 for e in entries) / (n**2 - 1))
    value = (
        (mean["pc"] - mean["pa"]) ** 2 + (mean["na"] - mean["nc"]) ** 2 - mean["pc"] + mean["na"]
    )
    if spread:
        value += (sigma["pa"] - sigma["pc"]) ** 2 + (sigma["na"] - sigma["nc"]) ** 2
    return value


def end_terms(z, y, b, released=False):
    perpendicular, pairs = {}, 0
    parallel, others = 0.0, 0
    for i in range(len(z)):
        for j in range(i):
            if b[i] < 0 or b[j] < 0:
                continue
            if b[i] == b[j]:
                perpendicular[b[i]] = perpendicular.get(b[i], 0.0) + dot(z[i], z[j])
                pairs += 1
            elif y[i] == y[j] and (not released or b[i] < b[j]):
                parallel += (1 + dot(z[i], z[j])) / 2
                others += 1
    first = sum(abs(v) for v in perpendicular.values()) / pairs if pairs else 0.0
    return first, 1 - parallel / others if others else 0.0


def random_batch(seed, n=12, d=5, classes=3, biases=3, views=1, agree=0.5):
    """Features [n, views, d] in float64, labels, and a bias that agrees at the given rate."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, views, d, generator=g, dtype=torch.float64)
    y = torch.randint(classes, (n,), generator=g)
    b = torch.where(
        torch.rand(n, generator=g) < agree, y % biases, torch.randint(biases, (n,), generator=g)
    )
    return z, y, b
