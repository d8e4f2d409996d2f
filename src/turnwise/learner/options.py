"""The options of the learner, and how they follow from a run's settings."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from turnwise.algo.choose import CLIP_RANGE, LossChoice, get_policy_loss
from turnwise.config import ConfigStore, TrainingConfig
from turnwise.errors import ConfigError
from turnwise.learner.optimizer import MakeOptimizer, get_optimizer


@dataclass
class LearnerOptions(TrainingConfig):
    """How a batch of episodes becomes new weights: the section `training`, and three more.

    The learner looks at the settings of the optimiser, of the loss and of how a batch is divided.
    """

    optimizer: MakeOptimizer | str = "adamw"  # type: ignore[assignment]
    policy_loss: LossChoice = "ppo"  # type: ignore[assignment]
    policy_loss_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Keyword arguments of the policy loss, the clip range among them."""
    total_steps: int | None = None
    """The number of updates over which a decaying learning rate falls to 0."""
    horizon: float | None = None
    """For "seq-mean-token-sum-norm"; None takes the longest response of a minibatch."""

    @classmethod
    def from_config(
        cls,
        config: ConfigStore,
        total_steps: int | None = None,
        policy_loss: LossChoice | None = None,
    ) -> LearnerOptions:
        """Return the options of a run's settings; `policy_loss` replaces the one they name."""
        training = config.training
        loss = get_policy_loss(policy_loss or training.policy_loss)
        betas = training.adam_betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(
                f"training.adam_betas got {betas}, expected two numbers from 0 up and below 1, "
                "such as [0.9, 0.95]"
            )
        names = CLIP_RANGE if loss.has_clip_range else ()
        clip_range = {name: getattr(training, name) for name in names}
        derived: dict[str, Any] = {
            "optimizer": get_optimizer(training.optimizer, training.optimizer_options),
            "policy_loss": loss,
            "policy_loss_options": clip_range | training.policy_loss_options,
            "total_steps": total_steps,
        }
        return cls(**{**vars(training), **derived})

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of an update, from 0: linear warmup, then by the schedule.

        >>> options = LearnerOptions(
        ...     learning_rate=1.0, lr_schedule="linear", warmup_steps=2, total_steps=6
        ... )
        >>> [options.learning_rate_at(step) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.lr_schedule == "constant":
            return self.learning_rate
        if self.total_steps is None:
            raise ConfigError(
                f"lr_schedule={self.lr_schedule!r} needs total_steps; 'constant' does not"
            )
        done = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        left = 1.0 - min(1.0, done)
        if self.lr_schedule == "cosine":
            left = 0.5 * (1.0 - math.cos(math.pi * left))
        return self.learning_rate * left

    def for_imitation(self, learning_rate: float | None) -> LearnerOptions:
        """Return options for supervised learning: −log π, a mean over tokens.

        A `learning_rate` given here is constant.
        """
        options = dataclasses.replace(
            self,
            policy_loss="gpg",
            policy_loss_options={},
            kl_loss_coef=0.0,
            entropy_coef=0.0,
            target_kl=None,
            update_epochs=1,
        )
        if learning_rate is not None:
            options.learning_rate = learning_rate
            options.lr_schedule = "constant"
            options.warmup_steps = 0
        return options
