"""The section about slices: where a model fails, found without bias labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fairmargin.audit.formats import Json, bar, interval, p_value, percent, shares
from fairmargin.audit.section import Figure, NameList, Section, Table
from fairmargin.audit.slices import SMALLEST
from fairmargin.report.pictures import picture

# Pictures of a slice.
SHOWN = 8
# Slices that are shown in pictures.
STRIPS = 6
# Classes without slices that are named; audit.json has all.
NAMED = 20
# Pixels. Smaller images are enlarged without smoothing.
TINY = 64
KINDS = {"central": "the most central samples", "mistakes": "the most central mistakes"}
HEAD = (
    "slice of class", "% wrong", "95 % interval", "first half", "rest of class", "p, corrected",
    "samples", "answers",
)  # fmt: skip


@dataclass(frozen=True)
class Samples:
    """What is shown of single samples, by position.

    Args:
        labels: of all samples.
        predicted: of all samples.
        images: [C, H, W], of those at hand.
        names: of all samples; None if they have none.
    """

    labels: Sequence[int]
    predicted: Sequence[int]
    images: dict[int, NDArray[np.uint8]]
    names: Sequence[str] | None = None

    def name(self, position: int) -> str:
        """Return the name of a sample, or its position."""
        return f"sample {position}" if self.names is None else self.names[position]


def pictured(found: Json) -> list[int]:
    """Return the positions of the samples whose pictures the page shows, if it can.

    Args:
        found: the numbers of the audit.
    """
    positions: set[int] = set()
    for one in found["slices"]["found"][:STRIPS]:
        for kind in KINDS:
            positions.update(one[kind][:SHOWN])
    return sorted(positions)


def verdict(found: Json) -> str:
    """Say in a sentence how many slices there are.

    Args:
        found: the numbers of the audit.
    """
    number, left_out = len(found["slices"]["found"]), len(found["slices"]["left_out"])
    looked_at = _looked_at(found)
    if not looked_at:
        return "There were too few samples to look for slices."
    if left_out and not number:
        return (
            f"In the {looked_at} of {looked_at + left_out} classes with enough samples to look for "
            "slices, none fails more often than the rest of its class."
        )
    how_many = {0: "No slice fails", 1: "1 slice fails"}.get(number, f"{number} slices fail")
    return f"{how_many} more often than the rest of {'their' if number > 1 else 'its'} class."


def without_slices(classes: Sequence[str]) -> str:
    """Say which classes had too few samples to look for slices in.

    Args:
        classes: their names.
    """
    number = len(classes)
    named = ", ".join(classes[:NAMED])
    if number > NAMED:
        named += f" and {number - NAMED} more"
    what = "1 class" if number == 1 else f"{number} classes"
    return f"too few samples to look for slices in {what} (a class needs {SMALLEST}): {named}"


def section(found: Json, samples: Samples, members: Sequence[Sequence[int]] = ()) -> Section:
    """Return the section.

    Args:
        found: the numbers of the audit.
        samples: for the pictures.
        members: positions of all samples of each slice.
    """
    slices = found["slices"]
    names = found["class_names"]
    head = list(HEAD)
    if found["bias_names"]:
        head.append("its bias")
    rows = []
    strips = []
    for k, one in enumerate(slices["found"], 1):
        name = names[one["class"]]
        rows.append(_row(f"{k}. {name}", one, bool(found["bias_names"])))
        if k <= STRIPS:
            strips += _strips(f"Slice {k}, of class {name}", one, samples, names)
    return Section(
        "slices",
        "Where it fails, found without bias labels",
        _lead(found),
        strips,
        [Table(head, rows, tuple(range(1, 7)))] if rows else (),
        _lists(found, samples, members),
    )


def _lists(found: Json, samples: Samples, members: Sequence[Sequence[int]]) -> list[NameList]:
    """Return the names of each slice and of all mistakes."""
    lists = []
    for k, positions in enumerate(members, 1):
        lists.append(NameList(f"Slice {k}", [samples.name(i) for i in positions]))
    pairs = zip(samples.labels, samples.predicted, strict=True)
    wrong = [i for i, (label, answer) in enumerate(pairs) if label != answer]
    if wrong:
        lists.append(NameList("All mistakes", [samples.name(i) for i in wrong]))
    return lists


def _looked_at(found: Json) -> int:
    """Return the number of classes in which slices were looked for."""
    return sum(n > 0 for n in found["by_class"]["n"]) - len(found["slices"]["left_out"])


def _lead(found: Json) -> str:
    slices = found["slices"]
    were = "was" if slices["tested"] == 1 else "were"
    lead = (
        "Clusters of embeddings inside a class, proposed on one half of the samples and tested on "
        f"the other. {slices['tested']} {were} tested; reported are those that are still worse "
        f"than the rest of their class there, at a corrected level of {slices['alpha']:g}. "
        "Bias labels were not used."
    )
    if not slices["left_out"]:
        return lead
    few = f"There were {without_slices(slices['left_out'])}."
    return f"{lead} {few}" if _looked_at(found) else few


def _row(name: str, one: Json, with_bias: bool) -> list[str | Markup]:
    row = [
        name,
        bar(one["confirmation"]),
        interval(one["confirmation"]),
        percent(one["discovery"]["value"]),
        percent(one["rest_of_class"]["value"]),
        p_value(one["p_corrected"]),
        f"{one['n']:,}",
        shares(one["answers"]),
    ]
    if with_bias:
        row.append(shares(one["bias"]))
    return row


def _strips(title: str, one: Json, samples: Samples, names: Sequence[str]) -> list[Figure]:
    """Return pictures of a slice: central samples and, if they are others, central mistakes."""
    central, mistakes = one["central"][:SHOWN], one["mistakes"][:SHOWN]
    chosen = {"central": central}
    if mistakes != central:
        chosen["mistakes"] = mistakes
    strips = []
    for kind, positions in chosen.items():
        strip = _strip(f"{title}: {KINDS[kind]}", positions, samples, names)
        if strip is not None:
            strips.append(strip)
    return strips


def _strip(
    title: str, positions: Sequence[int], samples: Samples, names: Sequence[str]
) -> Figure | None:
    item = Markup('<li><img src="{}" alt="Sample {}, label {}"{}><p class="said">{}</p>{}</li>')
    items = []
    for position in positions:
        image = samples.images.get(position)
        if image is None:
            continue
        answer, label = samples.predicted[position], samples.labels[position]
        said = "no answer" if answer < 0 else names[answer]
        mark = "✓" if answer == label else "✗"
        kind = Markup(' class="pixelated"') if max(image.shape[1:]) < TINY else ""
        file = Markup("")
        if samples.names is not None:
            file = Markup('<p class="file">{}</p>').format(samples.names[position])
        said = f"{said} {mark}"
        items.append(item.format(picture(image), position, names[label], kind, said, file))
    if not items:
        return None
    body = Markup('<ul class="strip">') + Markup("").join(items) + Markup("</ul>")
    return Figure(title, body, "Below each stands the model's answer.")
