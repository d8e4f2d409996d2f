"""The options of the learner, and how they follow from a run's settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from turnwise.algo.choose import LossChoice, get_policy_loss
from turnwise.algo.correction import Bounds
from turnwise.algo.masked import LossAggregation
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.learner.optimizer import (
    LearningRateSchedule,
    MakeOptimizer,
    get_optimizer,
    learning_rate_at,
)


@dataclass(frozen=True)
class LearnerOptions:
    """How a batch of episodes becomes new weights."""

    learning_rate: float = 1e-4
    optimizer: MakeOptimizer | str = "adamw"
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """More keyword arguments of the optimiser, such as Muon's momentum."""
    weight_decay: float = 0.0
    adam_betas: tuple[float, float] = (0.9, 0.95)
    adam_epsilon: float = 1e-8
    offload_optimizer: bool = False
    """Whether master weights and moments are in the memory of the CPU, which makes the step."""
    warmup_steps: int = 0
    """Updates over which the learning rate rises."""
    lr_schedule: LearningRateSchedule = "constant"
    total_steps: int | None = None
    """The number of updates over which a decaying learning rate falls to 0."""
    max_grad_norm: float | None = 1.0
    """Gradients are clipped to this norm; None disables clipping."""

    update_epochs: int = 1
    """Passes over the batch."""
    mini_batch_size: int | None = None
    """Episodes in one step of the optimiser; None takes the whole batch."""
    micro_batch_tokens: int | None = None
    """Tokens that are computed at once; it changes memory and speed, not the result. None chooses
    by the device."""
    target_kl: float | None = None
    """The update stops early when the KL to the old policy exceeds 1.5 times this."""
    seed: int = 0
    """Seed of the order of episodes in minibatches, and of other random draws of an update."""

    policy_loss: LossChoice = "ppo"
    policy_loss_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the policy loss, such as clip_ratio."""
    loss_agg_mode: LossAggregation | None = None
    """How token losses are aggregated; None takes the default of the policy loss."""
    horizon: float | None = None
    """For "seq-mean-token-sum-norm"; None takes the longest response of a minibatch."""
    entropy_coef: float = 0.0
    kl_loss_coef: float = 0.0
    kl_estimate: str = "k3+"
    """See `algo.estimate_kl`; with "+" its gradient is that of the KL itself."""
    value_coef: float = 0.5
    value_clip: float | None = 0.2
    """How far a value may move from its old one in an update; None disables clipping."""
    importance_level: Literal["token", "sequence"] | None = "token"
    """The level at which importance weights correct for the sampler; None disables them."""
    importance_bounds: Bounds = 2.0

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
        loss_options = dict(training.policy_loss_options)
        if loss.has_clip_range:
            loss_options = {
                "clip_ratio": training.clip_ratio,
                "clip_ratio_low": training.clip_ratio_low,
                "clip_ratio_high": training.clip_ratio_high,
                **loss_options,
            }
        betas = training.adam_betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(
                f"training.adam_betas got {betas}, expected two numbers from 0 up and below 1, "
                "such as [0.9, 0.95]"
            )
        # By name, so that a setting that is renamed cannot fall back to the default above.
        return cls(
            learning_rate=training.learning_rate,
            optimizer=get_optimizer(training.optimizer, training.optimizer_options),
            optimizer_options=training.optimizer_options,
            weight_decay=training.weight_decay,
            adam_betas=(betas[0], betas[1]),
            adam_epsilon=training.adam_epsilon,
            offload_optimizer=training.offload_optimizer,
            warmup_steps=training.warmup_steps,
            lr_schedule=training.lr_schedule,
            total_steps=total_steps,
            max_grad_norm=training.max_grad_norm,
            update_epochs=training.update_epochs,
            mini_batch_size=training.mini_batch_size,
            micro_batch_tokens=training.micro_batch_tokens,
            target_kl=training.target_kl,
            seed=training.seed,
            policy_loss=loss,
            policy_loss_options=loss_options,
            loss_agg_mode=training.loss_agg_mode,
            entropy_coef=training.entropy_coef,
            kl_loss_coef=training.kl_loss_coef,
            kl_estimate=training.kl_loss_type,
            value_coef=training.value_coef,
            value_clip=training.value_clip,
            importance_level=training.importance_level,
            importance_bounds=training.importance_bounds,
        )

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
        options = dataclasses.replace(
            self,
            policy_loss="gpg",
            policy_loss_options={},
            kl_loss_coef=0.0,
            entropy_coef=0.0,
            target_kl=None,
            update_epochs=1,
        )
        if learning_rate is None:
            return options
        return dataclasses.replace(
            options, learning_rate=learning_rate, lr_schedule="constant", warmup_steps=0
        )
