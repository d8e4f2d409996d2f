"""The section `ray`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from turnwise.config.fields import Positive, Section, setting


@dataclass
class RayConfig(Section):
    """Running on a Ray cluster."""

    use_ray: bool = setting(False, "Run episodes and learners as Ray actors.")
    num_actors: Positive = setting(1, "Workers that play episodes.")
    num_learners: Positive = setting(1, "Workers that share each update.")
    gpus_per_worker: Annotated[float, Ge(0)] = setting(
        0.0, "GPUs of each worker; a half lets two share one."
    )
    address: str | None = setting(
        None, "The cluster, auto or host:port of its head; null: one is started, then stopped."
    )
    mode: Literal["sync", "one_step_off"] = setting(
        "sync", "one_step_off: the next episodes are played while an update is computed."
    )
    max_failures: Annotated[int, Ge(0)] = setting(
        3, "Lost workers that are replaced within one step; one more ends the run."
    )
