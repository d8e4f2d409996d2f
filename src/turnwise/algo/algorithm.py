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
from turnwise.algo.records import AdvantageEstimator, PolicyLoss
from turnwise.config import TrainingConfig


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
        estimator.check()
        loss.check()
        return cls(estimator, loss)
