"""The section `logging`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from turnwise.config.fields import Section, setting


@dataclass
class LoggingConfig(Section):
    """What a run logs."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "How much is logged.")
    sinks: list[str] = setting([], "Also send metrics to: tensorboard, wandb, mlflow, trackio.")
    episodes_gb: Annotated[float, Ge(0)] = setting(
        2.0, "Disk for the episodes of a run; when it is full, no more are kept."
    )
