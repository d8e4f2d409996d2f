"""`RewardFunction`: calls a user's reward function; all its failures become `RewardError`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from turnwise.deadlines import call_with_deadline, is_async, is_interrupt
from turnwise.errors import (
    ConfigError,
    DeadlineExceeded,
    RewardError,
    TurnwiseError,
    describe_error,
    error_message,
)
from turnwise.reward.result import Reward, count_turns, read_reward
from turnwise.types import Trajectory
from turnwise.user_code import definition_note

if TYPE_CHECKING:
    from turnwise.env.base import BaseEnvironment

RewardFn: TypeAlias = Callable[..., Any]
"""`f(trajectory)` or `f(trajectory, environment)`, synchronous or `async def`.

It returns a float, one float per turn, or a dict of named parts that are either.
"""

EnvironmentArgument: TypeAlias = Literal["second", "keyword", "none"]


def step_rewards(trajectory: Trajectory) -> list[float]:
    """Returns the environment's own rewards, each on its turn: the default reward function."""
    return trajectory.rewards


@dataclass(frozen=True)
class RewardFunction:
    """A reward function, and how it is called."""

    function: RewardFn
    name: str
    """Its name in errors."""
    environment_argument: EnvironmentArgument
    """How it takes the environment."""

    @classmethod
    def of(cls, function: RewardFn | None) -> RewardFunction:
        """Reads the signature of a function; None is the sum of the step rewards."""
        if function is None:
            function = step_rewards
        if isinstance(function, type):
            raise ConfigError(
                f"reward_fn is the class {function.__name__}. Pass an object of it: "
                f"reward_fn={function.__name__}(...)"
            )
        if not callable(function):
            raise ConfigError(
                f"reward_fn got {function!r:.80}, expected a function of (trajectory) or "
                "(trajectory, environment). Pass the function itself; one that is named by text is "
                "the setting reward: path.py:function."
            )
        name = _name_of(function)
        return cls(function, name, _environment_argument(function, name))

    @property
    def is_async(self) -> bool:
        return is_async(self.function)

    async def score(
        self,
        trajectory: Trajectory,
        environment: BaseEnvironment | None,
        *,
        timeout: float | None = None,
        inline: bool = False,
    ) -> Reward:
        """Returns the reward of one episode; raises `RewardError` for anything that is no reward.

        A synchronous function runs in a thread of its own, so that one that hangs can be abandoned;
        `inline` saves the thread and has no timeout.
        """
        try:
            value = await self._call(trajectory, environment, timeout, inline)
            return read_reward(value, count_turns(trajectory))
        except DeadlineExceeded as error:
            raise RewardError(str(error)) from error
        except BaseException as error:  # the boundary where a failing reward fails its episode
            if is_interrupt(error):
                raise
            is_ours = isinstance(error, TurnwiseError)
            what = error_message(error) if is_ours else f"raised {describe_error(error)}"
            failure = RewardError(f"reward function {self.name!r}: {what}")
            if (note := definition_note(self.function)) is not None:
                failure.add_note(note)
            raise failure from error

    async def _call(
        self,
        trajectory: Trajectory,
        environment: BaseEnvironment | None,
        timeout: float | None,
        inline: bool,
    ) -> Any:
        args: tuple[Any, ...] = (trajectory,)
        kwargs: dict[str, Any] = {}
        if self.environment_argument == "second":
            args = (trajectory, environment)
        elif self.environment_argument == "keyword":
            kwargs = {"environment": environment}
        if not self.is_async and (inline or self.function is step_rewards):
            value = self.function(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value
        return await call_with_deadline(
            self.function,
            *args,
            timeout=timeout,
            waiting_for=f"reward function {self.name!r}",
            limit_name="limits.reward_timeout",
            **kwargs,
        )


def _environment_argument(function: RewardFn, name: str) -> EnvironmentArgument:
    """Finds in the signature how `function` takes the environment.

    Calling it both ways and catching TypeError would hide the function's own TypeErrors.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have no signature
        return "none"
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2:
        takes_second = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    else:  # with a default it is the environment only if its name says so
        second = positional[1]
        takes_second = second.default is second.empty or second.name in {"environment", "env"}
    is_bound = isinstance(function, functools.partial) and "environment" in function.keywords
    argument: EnvironmentArgument = "none"
    if takes_second:
        argument = "second"
    elif any(p.name == "environment" for p in parameters[1:]) and not is_bound:
        argument = "keyword"
    try:
        signature.bind(
            *([None, None] if argument == "second" else [None]),
            **({"environment": None} if argument == "keyword" else {}),
        )
    except TypeError as error:
        raise ConfigError(
            f"reward function {name!r} takes {signature}, expected (trajectory) or "
            f"(trajectory, environment): {error}. "
            "Give its other arguments a default, or bind them with functools.partial."
        ) from None
    return argument


def _name_of(function: RewardFn) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__name__)
    return name.rpartition("<locals>.")[2]
