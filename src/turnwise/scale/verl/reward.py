"""`EnvironmentRewardWrapper`: a reward function in the shapes that VERL calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from turnwise.deadlines import run_sync
from turnwise.env import environment_factory, reset_environment, step_environment
from turnwise.env.catalog import EnvironmentSource
from turnwise.errors import ConfigError
from turnwise.reward import RewardFn, compute_reward_async
from turnwise.types import Trajectory


class EnvironmentRewardWrapper:
    """What the environment and `reward_fn` give for what VERL has sampled.

    Called with a batch of VERL's it gives one reward a row: the one that the episode earned in
    the agent loop, or else, for a batch that some other rollout made, what the environment says
    to the response as its first action. `compute_score` is the same for one response, with the
    arguments of VERL's custom reward functions.
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

    def __call__(self, data: Any) -> torch.Tensor:
        """Rewards [B] of a `DataProto`."""
        if "rm_scores" in data.batch:
            earned: torch.Tensor = data.batch["rm_scores"].sum(-1)
            return earned
        if self._tokenizer is None:
            raise ConfigError("to score responses, EnvironmentRewardWrapper needs tokenizer=")
        responses = data.batch["responses"]
        mask = data.batch["attention_mask"][:, -responses.shape[1] :].bool()
        rows = data.non_tensor_batch.get("extra_info", [{}] * len(responses))
        rewards = [
            self.compute_score("", self._text(ids[seen]), None, row)
            for ids, seen, row in zip(responses, mask, rows, strict=True)
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
        """The reward of one response, as the first action of a fresh episode."""
        row = extra_info or {}
        return run_sync(self._score(solution_str, row.get("seed"), row.get("task")))

    async def _score(self, action: str, seed: int | None, task: Mapping[str, Any] | None) -> float:
        environment = self._factory()
        try:
            environment.task = task
            opening = await reset_environment(environment, seed)
            state = environment.get_state_description()
            step = await step_environment(environment, action)
            trajectory = Trajectory(
                [state], [action], [step.reward], [step.done], [step.info], [step.observation]
            )
            trajectory.prompts = [environment.get_prompt_prefix(), opening]
            trajectory.seed, trajectory.task = seed, task
            reward = await compute_reward_async(trajectory, environment, self._reward_fn)
        finally:
            environment.close()
        return reward.total

    def _text(self, ids: torch.Tensor) -> str:
        text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        return text
