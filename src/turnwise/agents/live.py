"""A reply that is sent while it is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Protocol

from turnwise.agents.requests import ApiError, ChatReply, Delta
from turnwise.errors import describe_error
from turnwise.tools.thoughts import HARMONY_MARKS, THOUGHT_MARKS, answer_of, thought_of

_REFINEMENT = 256
"""Long texts are decoded after every 1/256 of their tokens, so that the cost stays linear."""


class LiveText:
    """Finds what of a growing turn can be sent already: beginnings of its thought and its text.

    Nothing is sent that may change: characters whose bytes are incomplete, what may become a tag or
    a stop string, spaces that may be at the end. A text in which a tool call may begin comes at
    its end, and so does every reply in the format harmony.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        send: Callable[[Delta], None],
        *,
        num_prompt_tokens: int,
        in_thought: bool,
        may_call: bool,
        stops: tuple[str, ...],
    ) -> None:
        self._decode, self._send = decode, send
        self._num_prompt_tokens = num_prompt_tokens
        self._in_thought, self._may_call, self._stops = in_thought, may_call, stops
        self._next = 0
        self._thought = self._text = ""

    def add(self, ids: Sequence[int]) -> None:
        """Take all tokens so far, and send what is new."""
        if len(ids) < self._next:
            return
        self._next = len(ids) + 1 + len(ids) // _REFINEMENT
        thought, text = self._read(self._decode(ids))
        new_thought = thought.removeprefix(self._thought)
        new_text = text.removeprefix(self._text)
        # A second thought can make a thought of the text before it. Then the rest is not sent.
        is_longer = thought.startswith(self._thought) and text.startswith(self._text)
        if is_longer and (new_thought or new_text):
            self._thought, self._text = thought, text
            self._send(Delta(new_thought, new_text, self._num_prompt_tokens))

    def _read(self, text: str) -> tuple[str, str]:
        text = text.rstrip("\ufffd")
        for stop in self._stops:
            text = text.partition(stop)[0]
        text = _without_partial(text, (*self._stops, *THOUGHT_MARKS))
        if any(mark in text for mark in HARMONY_MARKS):
            return "", ""
        thought = thought_of(text, in_thought=self._in_thought)
        answer = "" if self._may_call else answer_of(text, in_thought=self._in_thought)
        return thought, answer.rstrip()


def _without_partial(text: str, marks: Sequence[str]) -> str:
    """Return the text without an end that may become one of the marks."""
    longest = max(
        (n for mark in marks for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0
    )
    return text[: len(text) - longest]


class EventWriter(Protocol):
    """Writes a reply as the server-sent events of one API."""

    def delta(self, delta: Delta) -> Iterator[str]:
        """Write what is known of the only reply while it is sampled."""

    def end(self, replies: Sequence[ChatReply]) -> Iterator[str]:
        """Write what was not written yet."""

    def failed(self, error: ApiError) -> Iterator[str]:
        """Write an error after the stream has begun."""


class ReplyStream:
    """Samples replies and writes their events. Await `begin`, then read `events`, then `close`."""

    def __init__(self, complete: Callable[[Callable[[Delta], None]], Any], writer: EventWriter):
        self._writer = writer
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._work = asyncio.ensure_future(complete(self._deltas.put_nowait))
        self._work.add_done_callback(lambda _: self._deltas.put_nowait(None))
        self._first: Delta | None = None

    async def begin(self) -> None:
        """Wait for the first text or the end; raises ApiError for a request that is refused."""
        try:
            self._first = await self._deltas.get()
            if self._first is None:
                await self._work
        except BaseException:
            await self.close()
            raise

    async def events(self) -> AsyncIterator[str]:
        # Each is sent at once: asyncio logs several sends to a client that has hung up.
        delta = self._first
        while delta is not None:
            yield "".join(self._writer.delta(delta))
            delta = await self._deltas.get()
        yield "".join(self._last())

    def _last(self) -> Iterator[str]:
        if self._work.cancelled():
            return self._writer.failed(ApiError("the episode has ended", status=401))
        error = self._work.exception()
        if error is None:
            return self._writer.end(self._work.result())
        if not isinstance(error, ApiError):
            error = ApiError(describe_error(error), status=500, code="server_error")
        return self._writer.failed(error)

    async def close(self) -> None:
        """Cancel what is still sampled."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
