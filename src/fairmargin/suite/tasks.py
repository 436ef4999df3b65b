"""The tasks of the suite by name, and groups of them."""

from dataclasses import dataclass
from typing import Literal

from fairmargin.checks import check_choice

Group = Literal["core", "held-out"]


@dataclass(frozen=True)
class SuiteTask:
    """One task.

    Args:
        name: what --tasks calls it.
        shows: what gives the class away, in a few words.
        group: "core", or "held-out" if nothing may be chosen on it.
        images: False if its samples are vectors.
    """

    name: str
    shows: str
    group: Group = "core"
    images: bool = True

    @property
    def dataset(self) -> str:
        """Name of its dataset."""
        return f"suite-{self.name}"


_ALL = (
    SuiteTask("colors", "color of the ground"),
    SuiteTask("corners", "corner of a small square"),
    SuiteTask("brightness", "brightness of the ground"),
    SuiteTask("corruptions", "corruption of the image"),
    SuiteTask("backgrounds", "photograph behind the digit"),
    SuiteTask("several", "color and corner, both"),
    SuiteTask("continuous", "length of a bar"),
    SuiteTask("absent", "color; some groups absent in training"),
    SuiteTask("control", "nothing: an honest control"),
    SuiteTask("embeddings", "direction in fixed vectors", images=False),
    SuiteTask("vehicles", "color of the light", "held-out"),
    SuiteTask("clothes", "corner of a small square", "held-out"),
)
TASKS: dict[str, SuiteTask] = {task.name: task for task in _ALL}
# Names that stand for several tasks.
GROUPS: dict[str, tuple[str, ...]] = {
    "core": tuple(task.name for task in _ALL if task.group == "core"),
    "images": tuple(task.name for task in _ALL if task.group == "core" and task.images),
    "held-out": tuple(task.name for task in _ALL if task.group == "held-out"),
}


def parse_tasks(text: str) -> list[SuiteTask]:
    """Return the tasks named in "colors,corners" or "core", each once, in the order of the suite.

    Args:
        text: names of tasks and groups, with commas between them.
    """
    wanted: set[str] = set()
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("--tasks is empty; give names, such as colors,corners, or core")
    for name in names:
        check_choice(name, "task", [*GROUPS, *TASKS])
        wanted.update(GROUPS.get(name, (name,)))
    groups = {TASKS[name].group for name in wanted}
    if len(groups) > 1:
        raise ValueError(
            "held-out tasks are not ranked together with the others, so that nothing is chosen on "
            "them; give --tasks held-out a run of its own, with another --out"
        )
    return [task for task in _ALL if task.name in wanted]
