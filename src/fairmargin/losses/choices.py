"""The words that an argument of a loss may be, as types; the losses check them with `get_args`."""

from typing import Literal

# `eps_supinfonce`: how several positives are combined, as in Eq. 17 of the appendix; c is the
# paper's.
Form = Literal["a", "b", "c", "d"]
# `eps_supinfonce`: how form c combines the terms of the positives.
Positives = Literal["mean", "sum"]
# `biascon`, `softcon`: which anchors the mean runs over; "valid" ones have a positive.
Anchors = Literal["all", "valid"]

# `fairkl`: what is taken between the distances of aligned and of conflicting pairs.
Divergence = Literal["kl", "jeffreys", "moments", "mean", "lognormal", "absolute-mean"]
# `fairkl`: one divergence for the batch, or one for each anchor.
Scope = Literal["batch", "anchor"]
# `fairkl`: the paper's formula, or that of the released code.
Variant = Literal["paper", "authors"]
# `fairkl`: what weighted sums are divided by.
Normalize = Literal["weights", "count"]
# `fairkl`: how near two values of the bias are.
Kernel = Literal["gaussian", "box"]
# `fairkl`: what several columns of the bias make: one bias of all together, or a term for each.
Biases = Literal["joint", "sum"]
# `fairkl`: which views of features [N, V, D] are samples.
UsedViews = Literal["all", "first"]

# `end`: all pairs, or those of the released code.
EntangledPairs = Literal["all", "released"]
# `hsic`
Estimator = Literal["unbiased", "biased"]
# `large_margin`: of the distance to the decision boundary.
Norm = Literal["l1", "l2", "linf"]
# `large_margin`: what the decision boundary is taken of.
Scores = Literal["probabilities", "logits"]
