"""The calls of one episode's environment: create, reset, step and close, each with its timeout.

A synchronous environment runs in threads, so that one that hangs can be abandoned. One that has
`quick = True` runs directly on the event loop, which is much cheaper and has no timeout.
"""

import dataclasses
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from turnwise.deadlines import (
    await_with_deadline,
    call_with_deadline,
    ending_forked_copies,
    is_async,
    is_interrupt,
)
from turnwise.env import BaseEnvironment, reset_environment, step_environment
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import finish_without_loop
from turnwise.errors import EnvironmentFault, describe_error
from turnwise.types import StepResult

T = TypeVar("T")

_LOG = logging.getLogger("turnwise")

EnvironmentCalls: TypeAlias = Literal["auto", "thread", "inline"]
"""Where synchronous environments run; `auto`: inline if the environment has `quick = True`."""
TextMethod: TypeAlias = Literal["get_state_description", "get_prompt_prefix"]


class CallMode:
    """Where synchronous environments run. The episodes of one setup share it."""

    def __init__(self, calls: EnvironmentCalls = "auto") -> None:
        self._calls = calls
        self.is_inline = calls == "inline"

    def inspect(self, environment: BaseEnvironment) -> None:
        """Decides for `auto`, by an environment that was just created."""
        if self._calls == "auto":
            self.is_inline = bool(environment.quick)


class EnvironmentSession:
    """One episode's environment; every call of it has a timeout and a checked result.

    `source` is a factory, whose environment the session closes, or an environment that the caller
    owns and closes.
    """

    def __init__(
        self,
        source: EnvironmentFactory | BaseEnvironment,
        mode: CallMode,
        max_text: int | None = None,
        task: Mapping[str, Any] | None = None,
    ) -> None:
        self.history: list[Mapping[str, Any]] = []
        """The messages before the first observation."""
        self.environment: BaseEnvironment | None = None
        self._made: BaseEnvironment | None = None
        self._source = source
        self._mode = mode
        self._max_text = max_text
        self._task = task
        self._is_closed = False
        self._is_async = False
        self._name = "the environment"

    async def start(self, seed: int | None, timeout: float | None) -> tuple[str, str]:
        """Creates and resets the environment; returns the first observation and system prompt."""
        if isinstance(self._source, BaseEnvironment):
            environment = self._source
        elif self._mode.is_inline:
            with ending_forked_copies():
                environment = self._make()
        else:
            environment = await call_with_deadline(
                self._make,
                timeout=timeout,
                waiting_for="making the environment",
                limit_name="limits.reset_timeout",
            )
        self.attach(environment)
        if self._task is not None:  # an environment may have an attribute of that name for itself
            try:
                environment.task = dict(self._task)  # its own: the group shares the row
            except AttributeError as error:
                raise EnvironmentFault(
                    f"{self._name}.task cannot be set, and the row of the dataset goes there: "
                    f"{error}. Give the environment's own attribute another name."
                ) from None

        async def reset() -> tuple[str, str]:
            observation = await reset_environment(environment, seed)
            self.history = self._read_history(environment)
            return valid_text(observation, self._max_text), self._text("get_prompt_prefix")

        return await self._call(reset(), "reset", timeout, "limits.reset_timeout")

    def attach(self, environment: BaseEnvironment) -> None:
        """Uses an environment in its present state."""
        self.environment = environment
        self._mode.inspect(environment)
        self._name = type(environment).__name__
        self._is_async = is_async(environment.reset) or is_async(environment.step)

    async def step(self, action: str, timeout: float | None) -> tuple[str, StepResult]:
        """Takes a step; returns the state description before it, and its result."""
        environment = self.environment
        assert environment is not None

        async def describe_and_step() -> tuple[str, StepResult]:
            # Both in one thread.
            state = self._text("get_state_description")
            return state, await step_environment(environment, action)

        state, result = await self._call(describe_and_step(), "step", timeout)
        observation = valid_text(result.observation, self._max_text)
        if observation is not result.observation:
            result = dataclasses.replace(result, observation=observation)
        return state, result

    async def describe(self, method: TextMethod, timeout: float | None) -> str:
        """Returns the description of the present state, or the player's system prompt."""

        async def describe() -> str:
            return self._text(method)

        return await self._call(describe(), method, timeout)

    async def close(self, timeout: float | None) -> None:
        """Closes an environment that was created here. May be called twice; errors are logged."""
        self._is_closed = True
        environment, self._made = self._made, None
        self.environment = None
        if environment is None:
            return
        if type(environment).close is BaseEnvironment.close:
            return  # there is nothing to close, and a thread would cost time
        try:
            if self._mode.is_inline and not is_async(environment.close):
                with ending_forked_copies():
                    environment.close()
            else:
                await call_with_deadline(
                    environment.close,
                    timeout=timeout,
                    waiting_for=f"{self._name}.close()",
                    limit_name="limits.close_timeout",
                )
        except BaseException as error:
            if is_interrupt(error):
                raise
            _LOG.warning("%s.close() failed: %s", self._name, describe_error(error))

    def _make(self) -> BaseEnvironment:
        assert not isinstance(self._source, BaseEnvironment)
        environment = self._source()
        if not isinstance(environment, BaseEnvironment):
            raise EnvironmentFault(
                f"the environment factory returned {type(environment).__name__}, expected a "
                "BaseEnvironment"
            )
        self._made = environment
        if self._is_closed:  # too late: the episode has ended
            environment.close()
        return environment

    def _text(self, method: TextMethod) -> str:
        text: object = getattr(self.environment, method)()
        if not isinstance(text, str):
            kind = type(text).__name__
            raise EnvironmentFault(f"{self._name}.{method}() returned {kind}, expected str")
        return valid_text(text, self._max_text)

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
            text = valid_text(message["content"], self._max_text)
            messages.append({"role": message["role"], "content": text})
        return messages

    async def _call(
        self,
        work: Coroutine[Any, Any, T],
        method: str,
        timeout: float | None,
        limit: str = "limits.step_timeout",
    ) -> T:
        """Runs a coroutine on the loop if the environment is async, else in a thread or inline."""
        what = f"{self._name}.{method}()"
        if self._is_async:
            return await await_with_deadline(
                work, timeout=timeout, waiting_for=what, limit_name=limit
            )
        if self._mode.is_inline:
            with ending_forked_copies():
                return finish_without_loop(work, what)
        result: T = await call_with_deadline(
            finish_without_loop, work, what, timeout=timeout, waiting_for=what, limit_name=limit
        )
        return result


def valid_text(text: str, max_length: int | None = None) -> str:
    """Returns the text as a tokenizer takes it, cut to `max_length` characters and a note.

    >>> valid_text("abcdef", 3)
    'abc\\n[The rest was cut: it had 6 characters.]'
    """
    if max_length is not None and len(text) > max_length:
        text = f"{text[:max_length]}\n[The rest was cut: it had {len(text)} characters.]"
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return text.encode("utf-8", "backslashreplace").decode()
    return text
