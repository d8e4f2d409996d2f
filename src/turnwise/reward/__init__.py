"""Rewards: scoring episodes with a user's function, by rules, by a judge, or by a mixture."""

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

__all__ = [
    "LLMJudge",
    "Reward",
    "RewardBatch",
    "RewardFailure",
    "RewardFn",
    "RewardOutcome",
    "WeightedReward",
    "batch_type",
    "compute_reward",
    "compute_reward_async",
    "openai_complete",
    "score_trajectories",
]
