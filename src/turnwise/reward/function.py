"""Reward functions: calling one for one episode or many, weighted sums, and the setting `reward`.

All failures of a function become `RewardError`.
"""

import asyncio
import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from turnwise.config import RewardItem
from turnwise.deadlines import call_with_deadline, is_async, run_sync
from turnwise.env.base import BaseEnvironment
from turnwise.errors import (
    ConfigError,
    DeadlineExceeded,
    RewardError,
    TurnwiseError,
    describe_error,
)
from turnwise.reward.result import Reward, RewardFailure, add_rewards, count_turns, read_reward
from turnwise.types import EpisodeStatus, RolloutData, Trajectory
from turnwise.user_code import definition_note, import_object

RewardFn: TypeAlias = Callable[..., Any]
"""`f(trajectory)` or `f(trajectory, environment)`, synchronous or `async def`.

It returns a float, one float per turn, or a dict of named parts that are either.
"""
TrajectoryBatch: TypeAlias = RolloutData | Iterable[Trajectory | Mapping[str, Any]]

BATCH_TYPES = ("DataProto", "RewardBatch")
"""A function whose first argument is annotated as one of these scores a whole batch."""
DEFAULT_CONCURRENCY = 16


def step_rewards(trajectory: Trajectory) -> list[float]:
    """Returns the environment's own rewards, each on its turn: the default reward function."""
    return trajectory.rewards


class RewardFunction:
    """A reward function, and how it is called; None is the sum of the step rewards."""

    def __init__(self, function: RewardFn | None) -> None:
        if function is None:
            function = step_rewards
        if isinstance(function, type) or not callable(function):
            raise ConfigError(
                f"reward_fn got {function!r:.80}, expected a function of (trajectory) or "
                "(trajectory, environment), or an object that is called like one. A function that "
                "is named by text is the setting reward: path.py:function."
            )
        inner: Any = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        name = getattr(inner, "__qualname__", type(inner).__name__).rpartition("<locals>.")[2]
        self.function: RewardFn = function
        self.name: str = name
        """Its name in errors."""
        self._environment_argument = _environment_argument(function, name)

    async def score(
        self,
        trajectory: Trajectory,
        environment: BaseEnvironment | None,
        *,
        timeout: float | None = None,
    ) -> Reward:
        """Returns the reward of one episode; raises `RewardError` for anything that is no reward.

        A synchronous function runs in a thread of its own, so that one that hangs can be abandoned.
        """
        arguments: list[Any] = [trajectory]
        keywords = {"environment": environment} if self._environment_argument == "keyword" else {}
        if self._environment_argument == "second":
            arguments.append(environment)
        try:
            if self.function is step_rewards:  # without a thread
                return read_reward(trajectory.rewards, count_turns(trajectory))
            value = await call_with_deadline(
                self.function,
                *arguments,
                timeout=timeout,
                waiting_for=f"reward function {self.name!r}",
                limit_name="limits.reward_timeout",
                **keywords,
            )
            return read_reward(value, count_turns(trajectory))
        except Exception as error:  # the boundary where a failing reward fails its episode
            raise self.failure(error) from error

    def failure(self, error: Exception) -> RewardError:
        """Returns the error of an episode whose reward this function could not compute."""
        if isinstance(error, DeadlineExceeded):
            return RewardError(str(error))
        is_ours = isinstance(error, TurnwiseError)
        what = str(error) if is_ours else f"raised {describe_error(error)}"
        failure = RewardError(f"reward function {self.name!r}: {what}")
        if (note := definition_note(self.function)) is not None:
            failure.add_note(note)
        return failure


def _environment_argument(function: RewardFn, name: str) -> Literal["second", "keyword"] | None:
    """Finds in the signature how `function` takes the environment; None if it does not.

    Calling it both ways and catching TypeError would hide the function's own TypeErrors.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have no signature
        return None
    by_position = [p for p in signature.parameters.values() if p.kind <= p.VAR_POSITIONAL]
    if by_position and by_position[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        by_position.append(by_position[-1])  # `*args` takes a second one too
    second = by_position[1] if len(by_position) > 1 else None
    keyword = signature.parameters.get("environment")
    is_bound = isinstance(function, functools.partial) and "environment" in function.keywords
    argument: Literal["second", "keyword"] | None = None
    try:
        # With a default it is the environment only if its name says so.
        if second and (second.default is second.empty or second.name in ("environment", "env")):
            argument = "second"
            signature.bind(None, None)
        elif keyword and keyword.kind is keyword.KEYWORD_ONLY and not is_bound:
            argument = "keyword"
            signature.bind(None, environment=None)
        else:
            signature.bind(None)
    except TypeError as error:
        raise ConfigError(
            f"reward function {name!r} takes {signature}, expected (trajectory) or "
            f"(trajectory, environment): {error}. "
            "Give its other arguments a default, or bind them with functools.partial."
        ) from None
    return argument


def batch_type(function: RewardFn | None) -> type | str | None:
    """Returns the type of batch that a reward function takes; None for one of single episodes.

    It is the annotation of the first argument: a class, or a name that cannot be resolved here.

    >>> def score(data: "RewardBatch") -> list[float]: ...
    >>> batch_type(score), batch_type(lambda trajectory: 1.0)
    ('RewardBatch', None)
    """
    if function is None or isinstance(function, type) or not callable(function):
        return None
    try:
        signature = inspect.signature(function)
        # A name that only type checkers can resolve, such as one of VERL's, stays a text.
        with contextlib.suppress(Exception):
            signature = inspect.signature(function, eval_str=True)
    except ValueError:  # some functions written in C have no signature
        return None
    kind = next((parameter.annotation for parameter in signature.parameters.values()), None)
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return kind if name.strip("'\" ").rpartition(".")[2] in BATCH_TYPES else None


def single_episode_function(function: RewardFn | None) -> RewardFunction:
    """Returns a reward function of single episodes; raises an error for one of batches."""
    if batch_type(function) is not None:
        raise ConfigError(
            "this reward function scores whole batches: a DataProto or a RewardBatch. Give it to a "
            "trainer or an EpisodeCollector, which make one, or write a function of (trajectory)."
        )
    return RewardFunction(function)


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
    """`compute_reward` for async code."""
    function = single_episode_function(reward_fn)
    trajectory = Trajectory.of(trajectory)
    check_scorable(trajectory)
    return await function.score(trajectory, environment, timeout=timeout)


def score_trajectories(
    trajectories: TrajectoryBatch,
    reward_fn: RewardFn | None = None,
    environments: BaseEnvironment | Sequence[BaseEnvironment | None] | None = None,
    *,
    max_concurrency: int | None = None,
    timeout: float | None = 60.0,
) -> list[Reward | RewardFailure]:
    """Returns one outcome for each trajectory, in order; failures do not affect the others.

    `environments` is one for each trajectory, or one for all. An episode that has failed is not
    scored: its outcome has its status. `timeout` is in seconds, for each call; `max_concurrency`
    limits the calls that run at once (`reward_slots`).
    """
    function = single_episode_function(reward_fn)
    if max_concurrency is not None and max_concurrency < 1:
        raise ConfigError(f"max_concurrency must be at least 1, got {max_concurrency}")
    episodes = list_trajectories(trajectories)
    each = environments if isinstance(environments, Sequence) else [environments] * len(episodes)
    if len(each) != len(episodes):
        got = f"{len(each)} environments for {len(episodes)} trajectories"
        raise ConfigError(f"got {got}. Pass one for each, or a single one for all.")

    slots = reward_slots(function, max_concurrency)

    async def score(
        trajectory: Trajectory, environment: BaseEnvironment | None
    ) -> Reward | RewardFailure:
        if trajectory.status.is_error:
            return RewardFailure(trajectory.status, _why_failed(trajectory))
        try:
            async with slots:
                return await function.score(trajectory, environment, timeout=timeout)
        except RewardError as error:
            return RewardFailure(EpisodeStatus.REWARD_ERROR, str(error))

    async def score_all() -> list[Reward | RewardFailure]:
        return await asyncio.gather(*map(score, episodes, each))

    return run_sync(score_all())


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
        fix = "Score a single episode with compute_reward."
        raise ConfigError(f"expected a list of trajectories, got {type(batch).__name__}. {fix}")
    return [Trajectory.of(trajectory) for trajectory in episodes]


def _why_failed(trajectory: Trajectory) -> str:
    return f"{trajectory.status.value}: {trajectory.error or 'no further details.'}"


def reward_slots(function: RewardFunction, max_concurrency: int | None) -> asyncio.Semaphore:
    """Returns what limits the calls of a reward function that run at once, in one event loop.

    By default that is 16 for an async function and one for a synchronous one, which may keep state
    that is not thread-safe.
    """
    default = DEFAULT_CONCURRENCY if is_async(function.function) else 1
    return asyncio.Semaphore(max_concurrency or default)


class WeightedReward:
    """A reward function that is the weighted sum of others.

    >>> def short(trajectory): return float(trajectory.num_turns < 3)
    >>> reward_fn = WeightedReward({"steps": (None, 1.0), "short": (short, 0.5)})

    None stands for the environment's step rewards. The functions run at the same time, synchronous
    ones in threads: one that keeps state must be thread-safe, or run with max_concurrency=1. If one
    fails, the whole fails. If only some return one reward per turn, the others' rewards go on the
    last turn.
    """

    def __init__(self, parts: Mapping[str, tuple[RewardFn | None, float]]) -> None:
        if not isinstance(parts, Mapping) or not parts:
            example = "{'rule': (rule, 1.0), 'judge': (judge, 0.5)}"
            raise ConfigError(f"WeightedReward got {parts!r:.80}, expected parts: {example}")
        self._parts: dict[str, tuple[RewardFunction, float]] = {}
        for name, part in parts.items():
            if not isinstance(part, tuple | list) or len(part) != 2:
                raise ConfigError(
                    f"reward part {name!r} must be a (function, weight), got {part!r}"
                )
            function, weight = part
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ConfigError(f"the weight of {name!r} must be a finite number, got {weight!r}")
            self._parts[name] = (single_episode_function(function), float(weight))

    @property
    def functions(self) -> dict[str, tuple[RewardFn, float]]:
        """The functions with their weights, by name."""
        return {name: (part.function, weight) for name, (part, weight) in self._parts.items()}

    async def __call__(
        self, trajectory: Trajectory, environment: BaseEnvironment | None = None
    ) -> Reward:
        outcomes = await asyncio.gather(
            *(part.score(trajectory, environment) for part, _ in self._parts.values()),
            return_exceptions=True,
        )
        named: dict[str, tuple[Reward, float]] = {}
        for (name, (_, weight)), outcome in zip(self._parts.items(), outcomes, strict=True):
            if isinstance(outcome, RewardError):
                raise RewardError(f"part {name!r}: {outcome}") from outcome
            if isinstance(outcome, BaseException):
                raise outcome
            named[name] = (outcome, weight)
        return add_rewards(named, count_turns(trajectory))


def reward_by_name(setting: str | Sequence[RewardItem] | None) -> RewardFn | None:
    """Returns the reward function of the setting `reward`; None takes the step rewards."""
    if setting is None or isinstance(setting, str):
        return None if setting is None else _imported(setting)
    if not setting:
        raise ConfigError("reward got an empty list, expected {function, weight} in it, or null")
    parts: dict[str, tuple[RewardFn | None, float]] = {}
    for item in setting:
        function = None if item.function is None else _imported(item.function)
        name = item.name or (item.function or ":steps").rpartition(":")[2]
        if name in parts:
            raise ConfigError(f"reward names {name!r} twice. Add their weights.")
        parts[name] = (function, item.weight)
    return WeightedReward(parts)


def _imported(target: str) -> RewardFn:
    function: RewardFn = import_object(target, option="--reward or the setting reward")
    if not callable(function):
        raise ConfigError(f"reward got {target!r}, which is not a function. Write path.py:function")
    return function
