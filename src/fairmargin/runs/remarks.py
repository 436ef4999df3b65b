"""What should be said at the end of a run, in a sentence each, with the next command."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairmargin.config import Config
from fairmargin.data import OWN
from fairmargin.evaluate import REPORTED

# Differences of accuracies, as fractions, from which something is said.
LAG = 0.03
FAR = 0.10

# Stands for the run folder.
RUN = "RUN"
# Methods that know nothing of a bias: the data are audited next, and not the run.
BLIND = ("ce", "supcon", "eps-supinfonce")


def closing_remarks(result: Mapping[str, Any], config: Config) -> list[str]:
    """Return sentences about a run's result: a classifier that lags, a validation that flatters.

    They are kept with the run, so its folder, which may be moved, is called RUN in them; `said`
    puts the folder in its place.

    Args:
        result: with "headline", "test" and "records", as in result.json.
        config: of the run.
    """
    found = [_lag(result), _flattering(result, config)]
    return [remark for remark in found if remark]


def said(remark: str, path: Path) -> str:
    """Return a remark for the terminal, with a command that can be copied.

    Args:
        remark: of `closing_remarks`.
        path: the run folder.
    """
    return remark.replace(f"audit {RUN}", f"audit {shlex.quote(str(path))}")


def _lag(result: Mapping[str, Any]) -> str:
    """Say that the reported classifier is behind another one on the same features."""
    reported, name = result["headline"]["classifier"], result["headline"]["accuracy"]
    values = {}
    for classifier, judged in result["test"].items():
        if classifier in REPORTED.values() and name in judged["accuracy"]:
            values[classifier] = judged["accuracy"][name]["value"]
    if reported != "own" or "own" not in values:
        return ""
    best = max(values, key=lambda classifier: values[classifier])
    if values[best] - values["own"] <= LAG:
        return ""
    option = next(key for key, classifier in REPORTED.items() if classifier == best)
    said = {"probe": "one fitted to the same features", "knn": "nearest neighbours"}[best]
    return (
        f"the classifier that was trained along ({name} {values['own']:.1%}) lags behind {said} "
        f"({values[best]:.1%}), so it has not converged; report the other with "
        f"--set evaluate.report_classifier={option}, or train longer"
    )


def _flattering(result: Mapping[str, Any], config: Config) -> str:
    """Say that validation is far above conflicting test samples, or above the whole test."""
    last = result["records"].get("last", {})
    valid, test = last.get("valid", {}), last.get("test", {})
    if "plain" not in valid:
        return ""
    lower = ""
    for name, said in (
        ("conflicting", "conflicting test samples show"),
        ("plain", "the test set shows"),
    ):
        if name in test and valid["plain"] - test[name] > FAR:
            lower = f"what {said} ({test[name]:.1%})"
            break
    if not lower:
        return ""
    return (
        f"validation accuracy ({valid['plain']:.1%}) is far above {lower}: validation samples "
        f"share the shortcut of the training set. Next: {_next(config)}"
    )


def _next(config: Config) -> str:
    """The command that helps: train against the bias, or see what the model goes by."""
    own = config.data.name in OWN and config.method.name in BLIND
    return f"fairmargin audit {shlex.quote(str(config.data.root)) if own else RUN}"
