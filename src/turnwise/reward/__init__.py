"""Rewards: scoring episodes with a user's function, by rules, by a judge, or by a mixture."""

from typing import TYPE_CHECKING

from turnwise.late_names import late_names
from turnwise.reward.batches import RewardBatch
from turnwise.reward.function import (
    RewardFn,
    WeightedReward,
    batch_type,
    compute_reward,
    compute_reward_async,
    score_trajectories,
)
from turnwise.reward.judge import LLMJudge, openai_complete
from turnwise.reward.result import Reward, RewardFailure, RewardOutcome

if TYPE_CHECKING:
    from turnwise.compat.rewards import RewardManager, RewardWeights
else:
    __getattr__ = late_names(__name__, "turnwise.compat.rewards")

__all__ = [
    "LLMJudge",
    "Reward",
    "RewardBatch",
    "RewardFailure",
    "RewardFn",
    "RewardManager",
    "RewardOutcome",
    "RewardWeights",
    "WeightedReward",
    "batch_type",
    "compute_reward",
    "compute_reward_async",
    "openai_complete",
    "score_trajectories",
]
