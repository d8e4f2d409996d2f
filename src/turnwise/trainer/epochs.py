"""Counts epochs, since those of two calls of `fit` may differ in length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class FitPlan:
    """When a call of `fit` ends, computed when it starts or resumes."""

    last_epoch: int
    """The epoch after which it ends, counted over the whole run."""
    num_steps: int
    """The step after which it ends."""
    steps_per_epoch: int
    save_interval: int

    def is_saved_after(self, step: int) -> bool:
        """Whether a checkpoint is saved after this many steps."""
        epochs_left, rest = divmod(self.num_steps - step, self.steps_per_epoch)
        epoch = self.last_epoch - epochs_left
        return not rest and epoch % self.save_interval == 0


@dataclass
class Epochs:
    """The finished epochs of a run, and the steps of the current one. Part of each checkpoint."""

    num_done: int = 0
    num_steps: int = 0
    """Finished steps of the current epoch."""
    starts: list[int] = field(default_factory=list)
    """The number of finished epochs when each call of `fit` began."""

    def plan(
        self,
        fit_number: int,
        num_epochs: int,
        steps_per_epoch: int,
        save_interval: int,
        *,
        step: int,
        is_waiting: bool,
    ) -> FitPlan:
        """Begin the call of `fit` with this number, or resume it if the run has begun it before.

        A new call begins a new epoch: an unfinished one counts as an epoch.
        """
        if fit_number >= len(self.starts):
            self.starts.append(self.num_done + bool(self.num_steps))
            if self.num_steps and not is_waiting:
                self.end_epoch()
        last_epoch = self.starts[fit_number] + num_epochs
        num_left = max(last_epoch - self.num_done, 0) * steps_per_epoch
        if num_left and is_waiting:
            num_left -= steps_per_epoch
        elif num_left:  # an epoch that is already too long ends with its next step
            num_left -= min(self.num_steps, steps_per_epoch - 1)
        return FitPlan(last_epoch, step + num_left, steps_per_epoch, save_interval)

    def end_epoch(self) -> None:
        """End the current epoch."""
        self.num_done += 1
        self.num_steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"num_done": self.num_done, "num_steps": self.num_steps, "starts": self.starts}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        return cls(int(state["num_done"]), int(state["num_steps"]), list(map(int, state["starts"])))
