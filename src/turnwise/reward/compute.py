"""Computes the reward of one episode or of many, with limits on time and concurrency."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from turnwise.deadlines import run_sync
from turnwise.errors import ConfigError, RewardError
from turnwise.reward.batches import of_one_episode
from turnwise.reward.function import RewardFn, RewardFunction
from turnwise.reward.result import Reward, RewardFailure, RewardOutcome
from turnwise.types import EpisodeStatus, Trajectory

if TYPE_CHECKING:
    from turnwise.env.base import BaseEnvironment

DEFAULT_CONCURRENCY = 16
PATIENCE_SECONDS = 5.0
"""A call that takes longer no longer blocks the others."""

_LOG = logging.getLogger("turnwise")


class HasTrajectories(Protocol):
    """A batch with its episodes, such as `RolloutData`."""

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
    """Returns the reward of one episode; raises `RewardError` if there is none.

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
    """`compute_reward` for async code; without a timeout, synchronous functions run on the loop."""
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
    """`score_trajectories_async` for synchronous code."""
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
    """Returns one outcome for each trajectory, in order; failures do not affect the others.

    `environments` is one for each trajectory, or one for all. An episode that has failed is not
    scored: its outcome has its status. `timeout` is in seconds, for each call.

    `max_concurrency` limits the calls that run at once. None means 16 for an async function and one
    for a synchronous one, which runs in a thread and may keep state that is not thread-safe; a call
    that takes longer than 5 seconds then no longer blocks the others. Without a timeout a
    synchronous function runs without a thread.
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

    each = environments if isinstance(environments, Sequence) else [environments] * len(episodes)
    if len(each) != len(episodes):
        raise ConfigError(
            f"got {len(each)} environments for {len(episodes)} trajectories. "
            "Pass one for each, or a single one for all."
        )
    return await asyncio.gather(*map(score, episodes, each))


def check_scorable(trajectory: Trajectory) -> None:
    """Raises an error for a failed episode, which must not become a number."""
    if trajectory.status.is_error:
        raise RewardError(
            f"the episode failed and has no reward: {_why_failed(trajectory)} "
            "Leave out the episodes whose status.is_error, or play them again."
        )


def list_trajectories(batch: TrajectoryBatch) -> list[Trajectory]:
    """Returns a batch as a list of `Trajectory`; raises an error for anything else."""
    episodes = getattr(batch, "trajectories", batch)
    if isinstance(episodes, Trajectory | Mapping | str) or not isinstance(episodes, Iterable):
        raise ConfigError(
            f"expected a list of trajectories, or an object that has one as .trajectories, "
            f"got {type(batch).__name__}. Score a single episode with compute_reward."
        )
    return [Trajectory.of(trajectory) for trajectory in episodes]


def _why_failed(trajectory: Trajectory) -> str:
    return f"{trajectory.status.value}: {trajectory.error or 'no further details.'}"


class RewardLimit:
    """Limits how many calls of a reward function run at once, in one event loop.

    By default that is 16 for an async function and one for a synchronous one, which may keep state
    that is not thread-safe. After `PATIENCE_SECONDS` the slot of a hanging call is free again, and
    from then on 16 calls run at once. A limit that the user set is never exceeded.
    """

    def __init__(self, function: RewardFunction, max_concurrency: int | None = None) -> None:
        self._name = function.name
        self._is_strict = max_concurrency is not None
        self._num_slots = max_concurrency or (DEFAULT_CONCURRENCY if function.is_async else 1)
        self._slots = asyncio.Semaphore(self._num_slots)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for a slot and holds it for one call."""
        await self._slots.acquire()
        if self._is_strict:
            try:
                yield
            finally:
                self._slots.release()
            return
        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._overrun)
        try:
            yield
        finally:
            if timer.when() > asyncio.get_running_loop().time():
                timer.cancel()
                self._slots.release()

    def _overrun(self) -> None:
        num_new = DEFAULT_CONCURRENCY - self._num_slots
        if num_new:
            _LOG.info(
                "a call of reward function %r takes longer than %g s; others run at the same "
                "time, up to %d at once (reward_concurrency=1 keeps them one at a time)",
                self._name,
                PATIENCE_SECONDS,
                DEFAULT_CONCURRENCY,
            )
        self._num_slots = DEFAULT_CONCURRENCY
        for _ in range(1 + num_new):
            self._slots.release()
