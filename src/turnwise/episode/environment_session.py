"""The calls of one episode's environment: create, reset, step and close, each with its timeout.

A synchronous environment runs in threads, so that one that hangs can be abandoned. One that has
`quick = True` runs directly on the event loop, which is much cheaper and has no timeout.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from turnwise.config import LimitsConfig
from turnwise.deadlines import call_inline, call_with_deadline, is_async, is_interrupt
from turnwise.env import BaseEnvironment, reset_environment, step_environment
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import finish_without_loop
from turnwise.episode.watchdog import EpisodeTimer
from turnwise.errors import EnvironmentFault, describe_error
from turnwise.types import StepResult

T = TypeVar("T")

_RESET_LIMIT, _STEP_LIMIT = "limits.reset_timeout", "limits.step_timeout"
_LOG = logging.getLogger("turnwise")

EnvironmentCalls: TypeAlias = Literal["auto", "thread", "inline"]
"""Where synchronous environments run; `auto`: inline if the environment has `quick = True`."""


class CallMode:
    """Where synchronous environments run. The episodes of one setup share it."""

    def __init__(self, calls: EnvironmentCalls = "auto") -> None:
        self._calls = calls
        self.is_inline = calls == "inline"

    def inspect(self, environment: BaseEnvironment) -> None:
        """Decides for `auto`, by an environment that was just created."""
        if self._calls == "auto":
            self.is_inline = bool(environment.quick)


@dataclass
class EnvironmentSession:
    """One episode's environment; every call of it has a timeout and a checked result."""

    source: EnvironmentFactory | BaseEnvironment | None
    """A factory, whose environment the session closes, or an environment of the caller's."""
    limits: LimitsConfig
    timer: EpisodeTimer
    mode: CallMode = field(default_factory=CallMode)
    task: Mapping[str, Any] | None = None
    history: list[Mapping[str, Any]] = field(default_factory=list)
    """The messages before the first observation."""
    environment: BaseEnvironment | None = None
    _made: BaseEnvironment | None = None
    _is_closed: bool = False
    _is_async: bool = False
    _name: str = "the environment"

    async def start(self, seed: int | None) -> tuple[str, str]:
        """Creates and resets the environment; returns the first observation and system prompt."""
        source = self.source
        if source is None:
            return "", ""
        with self.timer.component("environment"):
            if isinstance(source, BaseEnvironment):
                environment = source
            else:
                make = functools.partial(self._make, source)
                environment = await self._run(make, "making the environment", _RESET_LIMIT)
            self.attach(environment)
            if self.task is not None:
                environment.task = dict(self.task)  # its own: the group shares the row

        async def reset() -> tuple[str, str]:
            observation = await reset_environment(environment, seed)
            self.history = self._read_history(environment)
            return self._valid(observation), self._text("get_prompt_prefix")

        return await self._call(reset, "reset", _RESET_LIMIT)

    def attach(self, environment: BaseEnvironment) -> None:
        """Uses an environment in its present state."""
        self.environment = environment
        self.mode.inspect(environment)
        self._name = type(environment).__name__
        self._is_async = is_async(environment.reset) or is_async(environment.step)

    async def step(self, action: str) -> tuple[str, StepResult]:
        """Takes a step; returns the state description before it, and its result."""
        environment = self.environment
        assert environment is not None

        async def describe_and_step() -> tuple[str, StepResult]:
            # Both in one thread.
            state = self._text("get_state_description")
            return state, await step_environment(environment, action)

        state, result = await self._call(describe_and_step, "step")
        observation = self._valid(result.observation)
        if observation is not result.observation:
            result = dataclasses.replace(result, observation=observation)
        return state, result

    async def describe(self, method: str) -> str:
        """Returns the description of the present state, or the player's system prompt."""
        if self.environment is None:
            return ""

        async def describe() -> str:
            return self._text(method)

        return await self._call(describe, method)

    async def close(self) -> None:
        """Closes an environment that was created here. May be called twice; errors are logged."""
        self._is_closed = True
        environment, self._made = self._made, None
        self.environment = None
        if environment is None or type(environment).close is BaseEnvironment.close:
            return  # there is nothing to close, and a thread would cost time
        try:
            if self.mode.is_inline and not is_async(environment.close):
                call_inline(environment.close, f"{self._name}.close()")
            else:
                await call_with_deadline(
                    environment.close,
                    timeout=self.limits.close_timeout,
                    waiting_for=f"{self._name}.close()",
                    limit_name="limits.close_timeout",
                )
        except BaseException as error:  # the episode has ended, whatever this raises
            if is_interrupt(error):
                raise
            _LOG.warning("%s.close() failed: %s", self._name, describe_error(error))

    def _make(self, source: EnvironmentFactory) -> BaseEnvironment:
        environment = self._made = source()
        if self._is_closed:  # too late: the episode has ended
            environment.close()
        return environment

    def _valid(self, text: str) -> str:
        """The text as a tokenizer takes it, cut to `limits.max_observation` characters."""
        most = self.limits.max_observation
        if most is not None and len(text) > most:
            text = f"{text[:most]}\n[The rest was cut: it had {len(text)} characters.]"
        # What cannot be encoded is half a surrogate pair.
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()

    def _text(self, method: str) -> str:
        text: object = getattr(self.environment, method)()
        if not isinstance(text, str):
            kind = type(text).__name__
            raise EnvironmentFault(f"{self._name}.{method}() returned {kind}, expected str")
        return self._valid(text)

    def _read_history(self, environment: BaseEnvironment) -> list[Mapping[str, Any]]:
        history: Any = environment.get_history()
        messages: list[Mapping[str, Any]] = []
        for message in history if isinstance(history, list | tuple) else [history]:
            roles = ("user", "assistant") if messages else ("user",)
            is_message = isinstance(message, Mapping) and isinstance(message.get("content"), str)
            if not is_message or message.get("role") not in roles:
                raise EnvironmentFault(
                    f"{self._name}.get_history() has {message!r:.200}, expected a list of "
                    "{'role': 'user' or 'assistant', 'content': text} that begins with the user"
                )
            messages.append({"role": message["role"], "content": self._valid(message["content"])})
        return messages

    async def _call(
        self, work: Callable[[], Coroutine[Any, Any, T]], method: str, limit: str = _STEP_LIMIT
    ) -> T:
        """Runs `work` on the loop if the environment is async, else in a thread or inline."""
        what = f"{self._name}.{method}()"

        def work_without_loop() -> T:
            return finish_without_loop(work(), what)

        with self.timer.component("environment"):
            result: T = await self._run(work if self._is_async else work_without_loop, what, limit)
            return result

    async def _run(self, function: Callable[[], Any], what: str, limit: str) -> Any:
        if self.mode.is_inline and not is_async(function):
            return call_inline(function, what)
        return await call_with_deadline(
            function,
            timeout=self.timer.within(getattr(self.limits, limit.removeprefix("limits."))),
            waiting_for=what,
            limit_name=limit,
        )
