"""`ToolContext`: the state that the tools of one episode share."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

from turnwise.deadlines import call_with_deadline, is_interrupt, run_sync
from turnwise.errors import ToolError, describe_error
from turnwise.types import StepResult

_LOG = logging.getLogger("turnwise")
_CLOSE_TIMEOUT = 10.0


Ask: TypeAlias = Callable[[Sequence[Mapping[str, Any]], int | None], Awaitable[str]]
"""Asks the policy: messages and the most tokens of its answer in, the answer out."""


class ToolContext:
    """The environment of an episode, and a store for what its tools want to keep.

    A tool with an argument of this type receives the episode's context; the model does not see it.

    >>> def note(text: str, context: ToolContext) -> str:
    ...     notes = context.store.setdefault("notes", [])
    ...     notes.append(text)
    ...     return f"{len(notes)} notes"

    Objects in the store that have `close` (or `aclose`) are closed with the context, the newest
    first. The tools of an episode share the store; no other episode sees it.
    """

    def __init__(self, environment: Any = None) -> None:
        self.environment = environment
        """The episode's `BaseEnvironment`, of the user's own class; None if there is none."""
        self.store: dict[str, Any] = {}
        self.steps: list[StepResult] = []
        """The results of the steps that tools took in the environment, oldest first."""
        self.asked: Ask | None = None
        """Answers `ask`; set by the episode."""
        self._closed = False

    async def ask(
        self, messages: str | Sequence[Mapping[str, Any]], *, max_tokens: int | None = None
    ) -> str:
        """Asks the model that plays the episode, as a sub-agent; returns its answer.

        The messages are a conversation of their own, which the model sees alone; a text is one
        message of the user. To continue it, pass all messages again, with the answer and what
        follows. What the model samples is trained with the episode.

        >>> async def research(question: str, context: ToolContext) -> str:
        ...     return await context.ask(f"Answer in one sentence: {question}")
        """
        if self.asked is None or self._closed:
            raise ToolError(
                "there is no model to ask: context.ask works in a tool that an episode calls, "
                "until the episode ends"
            )
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return await self.asked(messages, max_tokens)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Closes the objects in the store. May be called twice; errors are logged, not raised."""
        if self.store:
            run_sync(self.aclose())
        self._closed = True

    async def aclose(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """`close` for async code; each object in the store has `timeout` seconds."""
        self._closed = True
        while self.store:
            name, thing = self.store.popitem()
            try:
                close = getattr(thing, "aclose", None) or getattr(thing, "close", None)
                if callable(close) and not isinstance(thing, type):
                    await call_with_deadline(close, timeout=timeout, waiting_for=f"closing {name}")
            except BaseException as error:  # the others must be closed too
                if is_interrupt(error):
                    raise
                _LOG.warning(
                    "closing %r of an episode's tools failed: %s", name, describe_error(error)
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to another episode: it keeps only (a copy of) the environment.
        return {"environment": self.environment}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["environment"])  # type: ignore[misc]  # a fresh one
