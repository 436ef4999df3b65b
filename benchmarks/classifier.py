"""FairMarginClassifier on vectors with a planted bias, for docs/sklearn.md.

    python -m benchmarks.classifier                   # seeds 0–2, on test samples
    python -m benchmarks.classifier --validation      # seeds 10–12, which chose the defaults

Three problems, 2,000 training samples each, whose bias is that of the class for 95 % of them and
drawn for the others:

    four      four classes, linear
    folded    three classes; the sign of the features that matter is random, so they are not linear
    two       two classes among 40 features of noise
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np

from fairmargin import FairMarginClassifier

METHODS = ("ce", "jtt", "group-reweighted", "group-dro", "group-balanced", "ce+fairkl")
RHO = 0.95
TRAIN, HELD_OUT, TEST = 2000, 1000, 4000
Samples = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """How samples are drawn.

    Args:
        spread: deviation of the features that matter.
        noise: features that say nothing.
        folded: give the features that matter a random sign.
    """

    classes: int
    spread: float
    noise: int = 10
    folded: bool = False

    def draw(self, n: int, rho: float, seed: int) -> Samples:
        """(X, y, bias); a share `rho` has the bias of its class, the others a drawn one."""
        random = np.random.default_rng(seed)
        y = random.integers(0, self.classes, n)
        b = np.where(random.random(n) < rho, y, random.integers(0, self.classes, n))
        core = np.eye(self.classes)[y] + self.spread * random.normal(size=(n, self.classes))
        if self.folded:
            core = core * random.choice([-1, 1], size=(n, 1))
        cue = 3 * np.eye(self.classes)[b] + 0.3 * random.normal(size=(n, self.classes))
        noise = random.normal(size=(n, self.noise))
        return np.concatenate([core, cue, noise], axis=1), y, b


PROBLEMS = {
    "four": Problem(classes=4, spread=0.45),
    "folded": Problem(classes=3, spread=0.3, folded=True),
    "two": Problem(classes=2, spread=0.5, noise=40),
}


def validated(method: str, problem: Problem, seed: int) -> float:
    """Mean accuracy over the groups of held-out samples that are drawn like the training ones."""
    x, y, b = problem.draw(TRAIN + HELD_OUT, RHO, seed)
    model = FairMarginClassifier(method, random_state=seed, device="cpu")
    model.fit(x[:TRAIN], y[:TRAIN], bias=b[:TRAIN])
    return model.score(x[TRAIN:], y[TRAIN:], bias=b[TRAIN:])


def tested(method: str, problem: Problem, seed: int) -> float:
    """Accuracy on the conflicting samples among test samples whose bias is drawn."""
    x, y, b = problem.draw(TRAIN, RHO, seed)
    model = FairMarginClassifier(method, random_state=seed, device="cpu").fit(x, y, bias=b)
    x, y, b = problem.draw(TEST, 0.0, 1000 + seed)
    return float((model.predict(x) == y)[b != y].mean())


def main() -> None:
    """Print a Markdown table: a line for each method, a column for each problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--validation", action="store_true", help="validation instead of test")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    chosen = parser.parse_args()
    measure, seeds = (validated, (10, 11, 12)) if chosen.validation else (tested, (0, 1, 2))
    print(f"| method | {' | '.join(PROBLEMS)} | seconds |\n|---|{'---|' * len(PROBLEMS)}---|")
    for method in chosen.methods:
        started = time.process_time()
        cells = []
        for problem in PROBLEMS.values():
            found = [100 * measure(method, problem, seed) for seed in seeds]
            cells.append(f"{np.mean(found):.1f} ± {np.std(found, ddof=1):.1f}")
        seconds = (time.process_time() - started) / (len(PROBLEMS) * len(seeds))
        print(f"| {method} | {' | '.join(cells)} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
