"""Engines by name."""

from fairmargin.checks import check_choice
from fairmargin.sweep.base import Engine
from fairmargin.sweep.local import Local
from fairmargin.sweep.ray import Ray, import_ray

ENGINES = ("local", "ray")


def engine(
    name: str = "local",
    *,
    jobs: int | None = None,
    address: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
) -> Engine:
    """By name, with what was given and nothing that belongs to the other."""
    check_choice(name, "engine", ENGINES)
    if name == "local":
        if address is not None or cpus is not None or gpus is not None:
            raise ValueError(
                "--address, --cpus and --gpus are about --engine ray; add it, or leave them out"
            )
        return Local(1 if jobs is None else jobs)
    if jobs is not None:
        raise ValueError(
            "--jobs is about --engine local; Ray runs as many at a time as there are CPUs and GPUs for: say what a run needs "
            "with --cpus and --gpus"
        )
    import_ray()
    return Ray(address, 1 if cpus is None else cpus, 0 if gpus is None else gpus)
