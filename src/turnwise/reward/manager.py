"""`RewardManager`: step rewards, bonuses for success and efficiency, a fine for invalid actions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from turnwise.errors import ConfigError
from turnwise.reward.batches import carried_trajectories, is_batch, score_responses
from turnwise.reward.function import TrajectoryBatch, check_scorable, list_trajectories
from turnwise.reward.result import Reward, count_turns, read_reward
from turnwise.types import Trajectory

if TYPE_CHECKING:
    import torch

    from turnwise.env.base import BaseEnvironment
    from turnwise.reward.batches import RewardBatch


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
        num_turns = count_turns(trajectory)
        steps = read_reward(trajectory.rewards, num_turns).by_turn(num_turns)
        infos = trajectory.infos[:num_turns]
        fines = [float(bool(info.get("invalid_action", False))) for info in infos]
        weights = self.weights
        per_turn = [weights.step * step for step in steps]
        for turn, fine in enumerate(fines):
            per_turn[turn] += weights.invalid_action * fine
        saved = 0
        if weights.efficiency:
            max_steps = getattr(self.environment, "max_steps", None)
            if max_steps is None:
                raise ConfigError(
                    f"the efficiency bonus needs max_steps, and {type(self.environment).__name__} "
                    "has none. Set it on the environment, or use RewardWeights(efficiency=0)."
                )
            saved = int(max_steps) - num_turns
        parts = {
            "step": weights.step * sum(steps),
            "success": weights.success * trajectory.success,
            "invalid_action": weights.invalid_action * sum(fines),
            "efficiency": weights.efficiency * saved,
        }
        if per_turn:
            per_turn[-1] += parts["success"] + parts["efficiency"]
        return Reward(sum(parts.values()), tuple(per_turn), parts)

    def compute_trajectory_reward(self, trajectory: Trajectory | Mapping[str, Any]) -> float:
        """Returns the reward of one episode."""
        return self.score(trajectory).total

    def compute_batch_rewards(self, trajectories: TrajectoryBatch) -> torch.Tensor:
        """Returns the rewards of a batch, float32 [B]. A failed episode is an error, not a zero."""
        import torch

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
        if is_batch(data):
            episodes = carried_trajectories(data)
            if episodes is None:
                import torch

                from turnwise.env import environment_factory

                make = environment_factory(self.environment)
                return torch.tensor(score_responses(make, data, self.tokenizer, self.score))
            data = episodes
        return self.compute_batch_rewards(data)
