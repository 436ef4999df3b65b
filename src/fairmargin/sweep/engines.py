"""Engines by name."""

from typing import Literal, get_args

from fairmargin.checks import check_choice
from fairmargin.sweep.base import Engine
from fairmargin.sweep.local import Local
from fairmargin.sweep.ray import Ray, import_ray

EngineName = Literal["local", "ray"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)


def engine(
    name: EngineName = "local",
    *,
    jobs: int | None = None,
    address: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
) -> Engine:
    """Return the engine of this name; options that belong to the other one are refused.

    Args:
        jobs: of "local": how many runs at a time; 1 by default.
        address: of "ray": the cluster's; see `Ray`.
        cpus, gpus: of "ray": what each run declares; 1 and 0 by default.
    """
    check_choice(name, "engine", ENGINES)
    if name == "local":
        if address is not None or cpus is not None or gpus is not None:
            raise ValueError(
                "--address, --cpus and --gpus belong to --engine ray; add it, or leave them out"
            )
        return Local(1 if jobs is None else jobs)
    if jobs is not None:
        raise ValueError(
            "--jobs belongs to --engine local; Ray runs as many at a time as there are CPUs and "
            "GPUs for: say what a run needs with --cpus and --gpus"
        )
    import_ray(address)
    return Ray(address, cpus=1 if cpus is None else cpus, gpus=0 if gpus is None else gpus)
