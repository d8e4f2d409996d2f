"""Score one episode or many: concurrently, in order, with a limit and a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from turnwise.deadlines import run_sync
from turnwise.errors import ConfigError, RewardError
from turnwise.reward.batches import of_one_episode
from turnwise.reward.function import RewardFn
from turnwise.reward.limit import RewardLimit
from turnwise.reward.result import Reward, RewardFailure, RewardOutcome
from turnwise.types import EpisodeStatus, Trajectory

if TYPE_CHECKING:
    from turnwise.env.base import BaseEnvironment


class HasTrajectories(Protocol):
    """A batch that carries its episodes, such as `RolloutData`."""

    @property
    def trajectories(self) -> Iterable[Trajectory | Mapping[str, Any]]: ...


TrajectoryBatch: TypeAlias = HasTrajectories | Iterable[Trajectory | Mapping[str, Any]]


def compute_reward(
    trajectory: Trajectory | Mapping[str, Any],
    environment: BaseEnvironment | None = None,
    reward_fn: RewardFn | None = None,
    *,
    timeout: float | None = None,
) -> Reward:
    """The reward of one episode, or a `RewardError` that says why there is none.

    >>> compute_reward(Trajectory(actions=["a", "b"], rewards=[0.5, 1.0])).total
    1.5
    >>> compute_reward(Trajectory(actions=["a"]), reward_fn=lambda t: len(t.actions)).total
    1.0
    """
    return run_sync(compute_reward_async(trajectory, environment, reward_fn, timeout=timeout))


async def compute_reward_async(
    trajectory: Trajectory | Mapping[str, Any],
    environment: BaseEnvironment | None = None,
    reward_fn: RewardFn | None = None,
    *,
    timeout: float | None = None,
) -> Reward:
    """`compute_reward` for async code; without a timeout, a plain function runs on the loop."""
    function = of_one_episode(reward_fn)
    trajectory = Trajectory.of(trajectory)
    check_scorable(trajectory)
    return await function.score(trajectory, environment, timeout=timeout, inline=timeout is None)


def score_trajectories(
    trajectories: TrajectoryBatch,
    reward_fn: RewardFn | None = None,
    environments: BaseEnvironment | Sequence[BaseEnvironment | None] | None = None,
    *,
    max_concurrency: int | None = None,
    timeout: float | None = 60.0,
) -> list[RewardOutcome]:
    """`score_trajectories_async` for ordinary code."""
    return run_sync(
        score_trajectories_async(
            trajectories,
            reward_fn,
            environments,
            max_concurrency=max_concurrency,
            timeout=timeout,
        )
    )


async def score_trajectories_async(
    trajectories: TrajectoryBatch,
    reward_fn: RewardFn | None = None,
    environments: BaseEnvironment | Sequence[BaseEnvironment | None] | None = None,
    *,
    max_concurrency: int | None = None,
    timeout: float | None = 60.0,
) -> list[RewardOutcome]:
    """One outcome for each trajectory, in order; one that fails does not touch the others.

    `environments` is one for each trajectory, or one for all. An episode that had already failed
    is not scored: its outcome carries its own status. `timeout` is in seconds and for each call.

    `max_concurrency` is how many calls run at once. None means 16 for an async function, and one
    after the other for a plain one: it runs in a thread and may keep state that is not safe to
    share. A call that takes longer than 5 seconds then no longer holds the others back. Without a
    timeout a plain function needs no thread and runs where it is called.
    """
    function = of_one_episode(reward_fn)
    if max_concurrency is not None and max_concurrency < 1:
        raise ConfigError(f"max_concurrency must be at least 1, got {max_concurrency}")
    limit = RewardLimit(function, max_concurrency)
    episodes = list_trajectories(trajectories)

    async def score(trajectory: Trajectory, environment: BaseEnvironment | None) -> RewardOutcome:
        if trajectory.status.is_error:
            return RewardFailure(trajectory.status, _why_failed(trajectory))
        try:
            async with limit.slot():
                return await function.score(
                    trajectory, environment, timeout=timeout, inline=timeout is None
                )
        except RewardError as error:
            return RewardFailure(EpisodeStatus.REWARD_ERROR, str(error))

    pairs = zip(episodes, _one_each(environments, len(episodes)), strict=True)
    return await asyncio.gather(*(score(*pair) for pair in pairs))


def check_scorable(trajectory: Trajectory) -> None:
    """Refuse an episode that failed: it must not turn into a number."""
    if trajectory.status.is_error:
        raise RewardError(
            f"the episode failed and has no reward: {_why_failed(trajectory)} "
            "Leave out the episodes whose status.is_error, or play them again."
        )


def list_trajectories(batch: TrajectoryBatch) -> list[Trajectory]:
    """A batch as a list of `Trajectory`, or an error for what is no batch."""
    episodes = getattr(batch, "trajectories", batch)
    if isinstance(episodes, Trajectory | Mapping | str) or not isinstance(episodes, Iterable):
        raise ConfigError(
            f"expected a list of trajectories, or an object that has one as .trajectories, "
            f"got {type(batch).__name__}. Score a single episode with compute_reward."
        )
    return [Trajectory.of(trajectory) for trajectory in episodes]


def _one_each(
    environments: BaseEnvironment | Sequence[BaseEnvironment | None] | None, num_episodes: int
) -> Sequence[BaseEnvironment | None]:
    if not isinstance(environments, Sequence):
        return [environments] * num_episodes
    if len(environments) != num_episodes:
        raise ConfigError(
            f"got {len(environments)} environments for {num_episodes} trajectories. "
            "Pass one for each, or a single one for all."
        )
    return environments


def _why_failed(trajectory: Trajectory) -> str:
    return f"{trajectory.status.value}: {trajectory.error or 'it says no more about it.'}"
