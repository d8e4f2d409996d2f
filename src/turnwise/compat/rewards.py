"""Rewards of environments: `RewardManager`'s weighted terms, and responses of VERL's batches."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

import torch

from turnwise.deadlines import run_sync
from turnwise.env import BaseEnvironment, environment_factory, reset_environment, step_environment
from turnwise.env.catalog import EnvironmentFactory, EnvironmentSource
from turnwise.errors import ConfigError
from turnwise.reward.batches import RewardBatch
from turnwise.reward.function import (
    RewardFn,
    TrajectoryBatch,
    check_scorable,
    compute_reward,
    compute_reward_async,
    list_trajectories,
)
from turnwise.reward.result import Reward, add_rewards, as_plain, count_turns, read_reward
from turnwise.types import Trajectory


@dataclass(frozen=True)
class RewardWeights:
    """The weights of a `RewardManager`'s terms; 0 leaves a term out."""

    step: float = 1.0
    """The sum of the step rewards."""
    success: float = 5.0
    """Whether the last step's `info["success"]` is true."""
    invalid_action: float = -0.5
    """The number of steps whose `info["invalid_action"]` is true."""
    efficiency: float = 0.1
    """The number of steps left over from the environment's `max_steps`."""

    def __post_init__(self) -> None:
        for name, weight in dataclasses.asdict(self).items():
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ConfigError(f"the weight {name!r} must be a finite number, got {weight!r}")


class RewardManager:
    """Computes the rewards of one kind of environment as the sum of four weighted terms.

    >>> from types import SimpleNamespace
    >>> manager = RewardManager(SimpleNamespace(max_steps=10))
    >>> won = {"rewards": [1.0], "infos": [{"success": True}], "actions": ["go"]}
    >>> manager.compute_trajectory_reward(won)  # 1 for the step, 5 for success, 9 × 0.1 for speed
    6.9

    A manager is itself a reward function: `Trainer(..., reward_fn=RewardManager(env))`.
    Called with VERL's `DataProto` or a `RewardBatch` it scores the episodes in the batch, or else
    each response as the first action of a fresh copy of the environment; `tokenizer` decodes
    responses that are token ids.
    """

    def __init__(
        self,
        environment: BaseEnvironment,
        weights: RewardWeights | None = None,
        *,
        tokenizer: Any = None,
    ) -> None:
        self.environment = environment
        self.weights = weights or RewardWeights()
        self.tokenizer = tokenizer

    def score(self, trajectory: Trajectory | Mapping[str, Any]) -> Reward:
        """Returns the reward with its four terms, each step's share on its turn."""
        trajectory = Trajectory.of(trajectory)
        check_scorable(trajectory)
        num_turns, weights = count_turns(trajectory), self.weights
        fines = [0.0] * num_turns
        for turn, info in enumerate(trajectory.infos[:num_turns]):
            fines[turn] = float(bool(info.get("invalid_action", False)))
        saved = 0
        if weights.efficiency:
            max_steps = getattr(self.environment, "max_steps", None)
            if max_steps is None:
                raise ConfigError(
                    f"the efficiency bonus needs max_steps, and {type(self.environment).__name__} "
                    "has none. Set it on the environment, or use RewardWeights(efficiency=0)."
                )
            saved = int(max_steps) - num_turns
        terms = {
            "step": (read_reward(trajectory.rewards, num_turns), weights.step),
            "success": (Reward(float(trajectory.success)), weights.success),
            "invalid_action": (read_reward(fines, num_turns), weights.invalid_action),
            "efficiency": (Reward(float(saved)), weights.efficiency),
        }
        return add_rewards(terms, num_turns)

    def compute_trajectory_reward(self, trajectory: Trajectory | Mapping[str, Any]) -> float:
        """Returns the reward of one episode."""
        return self.score(trajectory).total

    def compute_batch_rewards(self, trajectories: TrajectoryBatch) -> torch.Tensor:
        """Returns the rewards of a batch, float32 [B]. A failed episode is an error, not a zero."""
        rewards = [self.score(trajectory).total for trajectory in list_trajectories(trajectories)]
        return torch.tensor(rewards, dtype=torch.float32)

    @overload
    def __call__(self, data: Trajectory | Mapping[str, Any]) -> Reward: ...
    @overload
    def __call__(self, data: TrajectoryBatch | RewardBatch) -> torch.Tensor: ...
    def __call__(self, data: Any) -> Reward | torch.Tensor:
        """Returns the rewards of a batch, float32 [B], or the `Reward` of a single episode."""
        if isinstance(data, Trajectory | Mapping):
            return self.score(data)
        episodes = _carried_trajectories(data)
        if episodes is None and _has(getattr(data, "batch", None), "responses"):
            make = environment_factory(self.environment)
            return torch.tensor(_score_responses(make, data, self.tokenizer, self.score))
        return self.compute_batch_rewards(data if episodes is None else episodes)


class EnvironmentRewardWrapper:
    """Scores what VERL has sampled by an environment and `reward_fn`.

    Called with a batch of VERL's it returns one reward per row: `reward_fn`'s for the episode that
    the batch carries, or the one earned in the agent loop, or else, for a batch of another rollout,
    the environment's reward for the response as its first action. Responses are texts, or token
    ids that `tokenizer` decodes. A single trajectory is scored by `reward_fn`.
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

    def __call__(
        self, data: Any, environment: BaseEnvironment | None = None
    ) -> Reward | torch.Tensor:
        """Return the rewards [B] of a `DataProto` or `RewardBatch`, or a trajectory's `Reward`."""
        if isinstance(data, Trajectory):
            return compute_reward(data, environment, self._reward_fn)
        episodes = _carried_trajectories(data)
        if episodes is not None:
            rewards = [compute_reward(one, None, self._reward_fn).total for one in episodes]
            return torch.tensor(rewards)
        if "rm_scores" in data.batch:
            earned: torch.Tensor = data.batch["rm_scores"].sum(-1)
            return earned
        return torch.tensor(_score_responses(self._factory, data, self._tokenizer, self._reward_fn))


def _carried_trajectories(data: Any) -> list[Trajectory] | None:
    """Returns the episodes in a batch, as turnwise's trainers provide them; None without any."""
    trajectories = _objects(data).get("trajectory")
    return None if trajectories is None else [Trajectory.of(one) for one in trajectories]


def _score_responses(
    make: EnvironmentFactory, data: Any, tokenizer: Any, reward_fn: RewardFn | None
) -> list[float]:
    """Score each response of a batch as the first action of an episode of its own."""

    async def score(action: str, start: Mapping[str, Any]) -> float:
        environment = make()
        try:
            seed, environment.task = start.get("seed"), start.get("task")
            first = await reset_environment(environment, seed)
            state = environment.get_state_description()
            step = await step_environment(environment, action)
            trajectory = Trajectory(
                [state],
                [action],
                [step.reward],
                [step.done],
                [step.info],
                [step.observation],
                prompts=[environment.get_prompt_prefix(), first],
                seed=seed,
                task=environment.task,
            )
            return (await compute_reward_async(trajectory, environment, reward_fn)).total
        finally:
            environment.close()

    texts = _response_texts(data, tokenizer)
    starts = _objects(data).get("extra_info", [None] * len(texts))
    return [
        run_sync(score(action, start or {})) for action, start in zip(texts, starts, strict=True)
    ]


def _response_texts(data: Any, tokenizer: Any) -> list[str]:
    """Returns the responses of a batch as texts.

    They are texts already, or token ids [B, T], which the tokenizer decodes. The last columns of
    `attention_mask`, if the batch has it, tell tokens from padding.
    """
    texts = _objects(data).get("response_texts")
    responses = data.batch["responses"] if texts is None else texts
    if all(isinstance(response, str) for response in responses):
        return list(responses)
    if tokenizer is None:
        raise ConfigError(
            "the responses are token ids. Pass tokenizer=, or a batch whose responses are texts."
        )
    rows: list[list[int]] = [as_plain(row) for row in responses]
    if _has(data.batch, "attention_mask"):
        masks = [as_plain(row) for row in data.batch["attention_mask"]]
        rows = [
            [token for token, seen in zip(row, mask[len(mask) - len(row) :], strict=True) if seen]
            for row, mask in zip(rows, masks, strict=True)
        ]
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in rows]


def _objects(data: Any) -> Mapping[str, Any]:
    return getattr(data, "non_tensor_batch", None) or {}


def _has(columns: Any, name: str) -> bool:
    return hasattr(columns, "keys") and name in columns.keys()  # noqa: SIM118 - a TensorDict's too
