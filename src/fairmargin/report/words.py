"""Sentences of a report: what was asked, how it came out, and how sure that is."""

from collections.abc import Sequence

from markupsafe import Markup

from fairmargin.report.headline import Compared, unlike
from fairmargin.report.runs import Part

JUDGES = {
    "own": "each method's own classifier",
    "probe": "a linear probe on the features",
    "knn": "nearest neighbours",
    "linear": "linear evaluation (a layer trained on the frozen features)",
    "reported": "the classifier that each run reports",
}
# How an answer begins, where a dataset's name does not say what its test asks.
SHUFFLED = {
    "biased-mnist": "On digits whose colours are shuffled",
    "biased-mnist-mini": "On digits whose colours are shuffled",
    "corrupted-cifar10": "On pictures whose corruptions are shuffled",
}
# Datasets that are people's own.
OWN = ("folder", "embeddings")
# How an answer begins, by the headline accuracy.
ASKED = {
    "plain": "On the test images of {}",
    "cell-mean": "On {}, with every label and bias counted alike",
    "aligned": "On images of {} that follow the shortcut",
    "conflicting": "On images of {} that contradict the shortcut",
    "worst-group": "On its weakest group of {}",
    "train-weighted": "On {}, with groups weighted as in training",
}


def percent(fraction: float) -> str:
    """Return per cent with one decimal, without a sign: 0.314 → "31.4"."""
    return f"{100 * fraction:.1f}"


def whole(fraction: float) -> str:
    """Return whole per cent with its sign: 0.314 → "31 %"."""
    return f"{100 * fraction:.0f}\u00a0%"


def count(number: float) -> str:
    """Return a whole number with commas: 60000 → "60,000"."""
    return f"{number:,.0f}"


def in_sentence(name: str) -> str:
    """Return the name as it stands inside a sentence: "Cross-entropy" → "cross-entropy".

    Names with further capitals, such as "SupCon", stay as they are.
    """
    capitalised = name[:1].isupper() and name[1:].split(" ")[0].islower()
    return name[0].lower() + name[1:] if capitalised else name


def unbroken(name: str) -> Markup:
    """Return a name that no browser breaks at a hyphen, unless it is too long for a phone."""
    kept = Markup('<span class="unbroken">{}</span>')
    words = []
    for word in name.split(" "):
        short = "-" in word and len(word) <= 18
        words.append(kept.format(word) if short else Markup.escape(word))
    return Markup(" ").join(words)


def title(parts: Sequence[Part]) -> str:
    """Return the title of a page about these datasets."""
    if not parts:
        return "FairMargin report"
    return "FairMargin report: " + ", ".join(part.title for part in parts)


def answer(part: Part, pair: Compared) -> Markup:
    """Say the result in a sentence: two methods and their headline accuracies.

    Args:
        part: the dataset's groups.
        pair: the two methods.
    """
    accuracy = part.headline[1]
    # The name of people's own data is any word, which reads as part of the sentence.
    own = part.groups[0].first.config.get("data", {}).get("name") in OWN
    asked = ASKED.get(accuracy, "On {}").format(f"“{part.title}”" if own else part.title)
    if accuracy in ("plain", "cell-mean"):
        asked = SHUFFLED.get(part.dataset, asked)
    first, second = pair.first, pair.second
    values = [part.headline_of(group).value for group in (first, second)]
    exact = first is not second and whole(values[0]) == whole(values[1])
    said = [f"{percent(v)}\u00a0%" if exact else whole(v) for v in values]
    name = Markup('<span class="m m{}">{}</span>')
    number = Markup('<b class="m m{}">{}</b>')
    opening = Markup("{}, {} is right {} of the time").format(
        asked,
        name.format(first.colour, unbroken(in_sentence(first.name))),
        number.format(first.colour, said[0]),
    )
    if first is second:
        return opening + "."
    closing = Markup("; {} {}.")
    return opening + closing.format(
        name.format(second.colour, unbroken(in_sentence(second.name))),
        number.format(second.colour, said[1]),
    )


def verdict(part: Part, pair: Compared) -> str:
    """Say whether the two methods can be told apart, by what, and how they were chosen.

    Args:
        part: the dataset's groups.
        pair: the two methods.
    """
    if pair.first is pair.second:
        return ""
    return " ".join(filter(None, (_told_apart(part, pair), pair.chosen)))


def _told_apart(part: Part, pair: Compared) -> str:
    estimates = [part.headline_of(group) for group in (pair.first, pair.second)]
    worst, best = sorted(estimates, key=lambda one: one.value)
    said = f"The difference is {100 * (best.value - worst.value):.1f} points"
    if worst.spread is not None and best.spread is not None:
        if best.value - worst.value > 2 * max(worst.spread, best.spread):
            return said + ", more than twice the larger deviation between seeds."
        return said + (
            ", within twice the larger deviation between seeds: "
            "more seeds are needed to tell them apart."
        )
    if worst.high is None or best.low is None:
        return said + "."
    if best.low > worst.high:
        return said + ", and the intervals do not overlap."
    return said + "; the intervals overlap, so this test set does not tell the two apart."


def unlike_runs(part: Part) -> str:
    """Say in what the runs differ besides the method; "" if in nothing."""
    found = unlike(part)
    if not found:
        return ""
    return f"These runs differ in more than the method: {'; '.join(found)}."


def measure(part: Part) -> str:
    """Say what the headline number is, for the line under the bars."""
    classifier, accuracy = part.headline
    over = ""
    if any(len(group.runs) > 1 for group in part.groups):
        over = ", mean ± sample standard deviation over seeds"
    elif any(part.headline_of(group).low is not None for group in part.groups):
        over = ", with its bootstrap interval"
    judge = JUDGES.get(classifier, classifier)
    images = count(part.groups[0].judged(classifier)[0]["n"])
    return f"“{accuracy}” accuracy by {judge} on {images} test images{over}."


def small_numbers(part: Part) -> str:
    """Say what the small numbers in the table of accuracies are."""
    at = [part.headline_of(group) for group in part.groups]
    kinds = []
    if any(one.spread is not None for one in at):
        kinds.append("sample standard deviation over seeds (±)")
    if any(one.spread is None and one.low is not None for one in at):
        kinds.append("bootstrap interval of a single run")
    return f"Small numbers: {' or '.join(kinds)}." if kinds else ""


def selection(part: Part) -> str:
    """Say which methods have charts; "" if all have."""
    few = part.charted.groups
    if len(few) == len(part.groups):
        return ""
    names = [in_sentence(group.name) for group in few]
    listed = ", ".join(names[:-1]) + f" and {names[-1]}"
    return (
        f"Images and charts are of {len(few)} of the {len(part.groups)} methods, "
        f"the best and the worst among them: {listed}. The tables have all."
    )


def story(part: Part) -> str:
    """Say how far the bias gives the label away, in the training and in the test images."""
    sizes, classes = part.data["sizes"], len(part.class_names)
    if part.aligned is None or part.counts is None or not part.counts.sum():
        return (
            f"Trained on {count(sizes['train'])} images of {classes} classes and tested on "
            f"{count(sizes['test'])}. No bias was written down for this dataset, so accuracies by "
            "group cannot be given."
        )
    train = part.counts[part.aligned].sum() / part.counts.sum()
    usual = int(part.counts.max(axis=1).argmax())
    label = part.class_names[usual]
    bias = part.bias_names[int(part.counts[usual].argmax())]
    told = (
        f"In {whole(train)} of the {count(part.counts.sum())} training images the bias gives the "
        f"label away: “{label}” comes with “{bias}”, for example. "
        "A model can learn that instead of the label."
    )
    test = _test_share(part)
    if test is not None:
        told += f" Of the test images {whole(test)} follow this pattern."
    return told


def _test_share(part: Part) -> float | None:
    """Return the share of test images of known bias that follow the shortcut."""
    test = part.groups[0].first.test
    if part.aligned is None or "bias" not in test:
        return None
    known = test["bias"] >= 0
    if not known.any():
        return None
    return float(part.aligned[test["labels"][known], test["bias"][known]].mean())


def inferred_bias(part: Part) -> list[str]:
    """Return what methods knew of the bias where that was inferred, one sentence for each.

    Args:
        part: of one dataset.
    """
    found: dict[str, list[str]] = {}
    for group in part.groups:
        for run in group.runs:
            recorded = run.data.get("bias") or {}
            texts = [recorded.get(key) or "" for key in ("why", "sentence", "groups")]
            text = " ".join(f"{t[:1].upper()}{t[1:].rstrip('.')}." for t in texts if t)
            names = found.setdefault(text, [])
            names += [group.name] if group.name not in names else []
    found.pop("", None)
    return [f"{', '.join(names)}: {text}" for text, names in found.items()]
