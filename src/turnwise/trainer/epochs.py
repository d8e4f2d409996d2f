"""Counts epochs, since those of two calls of `fit` may differ in length."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class FitPlan:
    """When a call of `fit` ends, computed when it starts or resumes."""

    num_steps: int
    """The step after which it ends, counted over the whole run."""
    steps_per_epoch: int


@dataclass
class Epochs:
    """The finished epochs of a run, and the steps of the current one. Part of each checkpoint."""

    num_done: int = 0
    num_steps: int = 0
    """Finished steps of the current epoch."""
    starts: list[int] = field(default_factory=list)
    """The number of finished epochs when each call of `fit` began."""
    first_steps: list[int] = field(default_factory=list)
    """The number of finished steps when each call of `fit` began."""

    def plan(
        self,
        fit_number: int,
        num_epochs: int,
        steps_per_epoch: int,
        max_steps: int | None = None,
        *,
        step: int,
        is_waiting: bool,
    ) -> FitPlan:
        """Begin the call of `fit` with this number, or resume it if the run has begun it before.

        A new call begins a new epoch: an unfinished one counts as an epoch. `max_steps` replaces
        the number of epochs. `is_waiting` says that the evaluation of the last step is missing.
        """
        if fit_number >= len(self.starts):
            if self.num_steps:
                self.end_epoch()
            self.starts.append(self.num_done)
            self.first_steps.append(step)
        if fit_number + 1 < len(self.starts):  # a later call has begun: this one is over
            num_left = 0
        elif max_steps is not None:
            num_left = max(self.first_steps[fit_number] + max_steps - step, 0)
        else:
            num_left = max(self.starts[fit_number] + num_epochs - self.num_done, 0)
            num_left *= steps_per_epoch
            # An epoch that is already too long ends with its next step, or the missing evaluation.
            if num_left:
                num_left -= min(self.num_steps, steps_per_epoch - (not is_waiting))
        return FitPlan(step + num_left, steps_per_epoch)

    def end_epoch(self) -> None:
        """End the current epoch."""
        self.num_done += 1
        self.num_steps = 0

    def state_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        starts = list(map(int, state["starts"]))
        first_steps = list(map(int, state["first_steps"]))
        return cls(int(state["num_done"]), int(state["num_steps"]), starts, first_steps)
