"""The algorithm of a run: its estimator and its policy loss, with the options of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from turnwise.algo.choose import (
    EstimatorChoice,
    LossChoice,
    get_advantage_estimator,
    get_policy_loss,
)
from turnwise.algo.correction import checked_bounds
from turnwise.algo.records import AdvantageEstimator, PolicyLoss
from turnwise.config import TrainingConfig
from turnwise.errors import ConfigError


@dataclass(frozen=True)
class Algorithm:
    """What a run trains with; every check that needs no model is done when it is made."""

    estimator: AdvantageEstimator
    policy_loss: PolicyLoss

    @classmethod
    def of(
        cls,
        training: TrainingConfig,
        adv_estimator: EstimatorChoice | None = None,
        policy_loss: LossChoice | None = None,
    ) -> Self:
        """Return what Python gave, and for the rest what the settings name."""
        estimator = get_advantage_estimator(adv_estimator or training.adv_estimator)
        loss = get_policy_loss(policy_loss or training.policy_loss)
        estimator = estimator.with_options(training.adv_options)
        estimator.check()
        loss.check(training.policy_loss_options)
        has_own_range = training.clip_ratio_low is not None or training.clip_ratio_high is not None
        if has_own_range and not loss.has_clip_range:
            raise ConfigError(
                f"training.clip_ratio_low and clip_ratio_high got ({training.clip_ratio_low}, "
                f"{training.clip_ratio_high}), and the policy loss {loss.name!r} has no clip "
                "range. Leave them at null, or take training.policy_loss=ppo."
            )
        checked_bounds(training.importance_bounds)
        return cls(estimator, loss)
