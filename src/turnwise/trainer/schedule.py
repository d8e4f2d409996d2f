"""How far a run is, and when it is evaluated, saved and over."""

import math
from dataclasses import dataclass, field

from turnwise.config import CheckpointConfig, TrainingConfig
from turnwise.trainer.reporter import Metrics

DEFAULT_STEPS = 50
"""Steps between evaluations and checkpoints within a long epoch, where the settings say none."""


@dataclass
class Progress:
    """How far a run is. Part of each checkpoint."""

    step: int = 0
    """Finished steps."""
    num_epochs: int = 0
    """Finished epochs."""
    epoch_steps: int = 0
    """Finished steps of the current epoch."""
    fit_epochs: list[int] = field(default_factory=list)
    """The number of finished epochs when each call of `fit` began."""
    fit_steps: list[int] = field(default_factory=list)
    """The number of finished steps when each call of `fit` began."""
    num_broken_steps: int = 0
    """Consecutive steps that did not change the model, up to the last one."""
    num_imitated: int = 0
    """Finished steps of the warm start."""
    pending_metrics: Metrics | None = None
    """The metrics of a finished step whose evaluation is still missing."""
    success_reported: list[str] = field(default_factory=list)
    """Environments of a mix ("" without one) whose episodes have reported success."""

    def begin_fit(
        self, number: int, num_epochs: int, steps_per_epoch: int, max_steps: int | None = None
    ) -> int:
        """Begin the call of `fit` with this number, or resume it; return its last step.

        A new call begins a new epoch: an unfinished one counts as an epoch. `max_steps` replaces
        the number of epochs.
        """
        if number >= len(self.fit_steps):
            if self.epoch_steps:
                self.end_epoch()
            self.fit_epochs.append(self.num_epochs)
            self.fit_steps.append(self.step)
        if number + 1 < len(self.fit_steps):  # a later call has begun: this one is over
            return self.step
        if max_steps is not None:
            return max(self.fit_steps[number] + max_steps, self.step)
        epochs_left = self.fit_epochs[number] + num_epochs - self.num_epochs
        if epochs_left <= 0:
            return self.step
        # An epoch that is already too long ends with its next step, or the missing evaluation.
        longest = steps_per_epoch - (self.pending_metrics is None)
        return self.step + epochs_left * steps_per_epoch - min(self.epoch_steps, longest)

    def count_step(self, metrics: Metrics) -> Metrics:
        """Count a finished step; return its finite metrics with the numbers of step and epoch."""
        self.step += 1
        self.epoch_steps += 1
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return {"step": self.step, "epoch": self.num_epochs + 1, **finite}

    def end_epoch(self) -> None:
        """End the current epoch."""
        self.num_epochs += 1
        self.epoch_steps = 0

    def is_evaluated(
        self, settings: TrainingConfig, *, last_step: int, steps_per_epoch: int
    ) -> bool:
        """Return whether an evaluation follows the step that was just counted."""
        if self.step >= last_step:
            return True
        if settings.eval_steps is not None:
            return self.step % settings.eval_steps == 0
        return self.epoch_steps >= steps_per_epoch or self.epoch_steps % DEFAULT_STEPS == 0

    def is_saved(
        self, settings: CheckpointConfig, *, steps_per_epoch: int, is_best: bool, is_overdue: bool
    ) -> bool:
        """Return whether a checkpoint follows the step that was just counted.

        The clock decides when one is written, never what is in it. The last step is saved when the
        run ends.
        """
        if settings.save_steps is not None:
            return self.step % settings.save_steps == 0
        every = settings.save_interval
        if self.epoch_steps >= steps_per_epoch:
            is_due = (self.num_epochs + 1) % (every or 1) == 0
        else:
            is_due = every is None and self.epoch_steps % DEFAULT_STEPS == 0
        return is_due or is_best or (every is None and is_overdue)
