"""`EnvironmentRewardWrapper`: a reward function with the signatures that VERL calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

import torch

from turnwise.deadlines import run_sync
from turnwise.env import BaseEnvironment, environment_factory
from turnwise.env.catalog import EnvironmentSource
from turnwise.reward import Reward, RewardBatch, RewardFn, compute_reward, compute_reward_async
from turnwise.reward.batches import (
    carried_trajectories,
    play_response,
    response_texts,
    starts,
)
from turnwise.types import Trajectory


class EnvironmentRewardWrapper:
    """Scores what VERL has sampled by an environment and `reward_fn`.

    Called with a batch of VERL's it returns one reward per row: `reward_fn`'s for the episode that
    the batch carries, or the one earned in the agent loop, or else, for a batch of another rollout,
    the environment's reward for the response as its first action. Responses are texts, or token
    ids that `tokenizer` decodes. `compute_score` does the same for one response, with the arguments
    of VERL's custom reward functions; a single trajectory is scored by `reward_fn`.
    """

    def __init__(
        self,
        environment: EnvironmentSource,
        reward_fn: RewardFn | None = None,
        tokenizer: Any = None,
        *,
        config: Any = None,
    ) -> None:
        self._factory = environment_factory(environment, config)
        self._reward_fn = reward_fn
        self._tokenizer = tokenizer

    @overload
    def __call__(self, data: Trajectory, environment: BaseEnvironment | None = None) -> Reward: ...
    @overload
    def __call__(self, data: RewardBatch) -> torch.Tensor: ...
    def __call__(
        self, data: Any, environment: BaseEnvironment | None = None
    ) -> Reward | torch.Tensor:
        """Return the rewards [B] of a `DataProto` or `RewardBatch`, or a trajectory's `Reward`."""
        if isinstance(data, Trajectory):
            return compute_reward(data, environment, self._reward_fn)
        carried = carried_trajectories(data)
        if carried is not None:
            return torch.tensor([self(trajectory).total for trajectory in carried])
        if "rm_scores" in data.batch:
            earned: torch.Tensor = data.batch["rm_scores"].sum(-1)
            return earned
        texts = response_texts(data, self._tokenizer)
        rows = starts(data, len(texts))
        rewards = [
            self.compute_score("", text, None, row) for text, row in zip(texts, rows, strict=True)
        ]
        return torch.tensor(rewards)

    def compute_score(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: Any = None,
        extra_info: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> float:
        """Return the reward of one response, as the first action of a new episode."""
        return run_sync(self._score(solution_str, extra_info or {}))

    async def _score(self, action: str, start: Mapping[str, Any]) -> float:
        async with play_response(self._factory, action, start) as (trajectory, environment):
            reward = await compute_reward_async(trajectory, environment, self._reward_fn)
        return reward.total
