"""The options of the learner, and how they follow from a run's settings."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from turnwise.algo.choose import LossChoice, get_policy_loss
from turnwise.config import ConfigStore, TrainingConfig
from turnwise.errors import ConfigError
from turnwise.learner.optimizer import MakeOptimizer, get_optimizer, learning_rate_at


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
        clip_range: dict[str, Any] = {}
        if loss.has_clip_range:
            clip_range = {
                "clip_ratio": training.clip_ratio,
                "clip_ratio_low": training.clip_ratio_low,
                "clip_ratio_high": training.clip_ratio_high,
            }
        betas = training.adam_betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(
                f"training.adam_betas got {betas}, expected two numbers from 0 up and below 1, "
                "such as [0.9, 0.95]"
            )
        derived: dict[str, Any] = {
            "optimizer": get_optimizer(training.optimizer, training.optimizer_options),
            "policy_loss": loss,
            "policy_loss_options": {**clip_range, **training.policy_loss_options},
            "total_steps": total_steps,
        }
        return cls(**{**vars(training), **derived})

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of an update, counted from 0."""
        return learning_rate_at(
            step,
            self.learning_rate,
            schedule=self.lr_schedule,
            warmup_steps=self.warmup_steps,
            total_steps=self.total_steps,
        )

    def for_imitation(self, learning_rate: float | None) -> LearnerOptions:
        """Return options for supervised learning: −log π, a mean over tokens.

        A `learning_rate` given here is constant.
        """
        schedule: Any = {"learning_rate": learning_rate, "lr_schedule": "constant"}
        return dataclasses.replace(
            self,
            policy_loss="gpg",
            policy_loss_options={},
            kl_loss_coef=0.0,
            entropy_coef=0.0,
            target_kl=None,
            update_epochs=1,
            **({} if learning_rate is None else {**schedule, "warmup_steps": 0}),
        )
