"""Turns that an engine's thread works on, and how they come to it and go back."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult


@dataclass(eq=False)
class Turn:
    """A request that is being sampled, or waits for it."""

    request: GenerationRequest
    future: asyncio.Future[GenerationResult]
    mail: Mail
    """The way back to whoever waits for it."""
    room: int
    """Tokens that the context still holds after the prompt."""
    decode: Callable[[list[int]], str] | None = None
    """Tokens to text, to look for stop strings."""
    rng: random.Random = field(init=False)
    started: float = field(default_factory=time.monotonic)
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.request.seed)
        stops = self.request.stop_strings
        # A token is at least a byte, so a stop string lies within as many tokens as it has bytes;
        # twice that, since a token may also be part of a character, or of no text at all.
        self._tail = 2 * max((len(s.encode()) for s in stops), default=0) + 8

    @property
    def deadline(self) -> float:
        """When it must end, on the monotonic clock."""
        timeout = self.request.timeout
        return math.inf if timeout is None else self.started + timeout

    def ending(self) -> FinishReason | None:
        """Why this turn samples no further; None if it goes on."""
        request, ids = self.request, self.ids
        if ids and ids[-1] in request.stop_ids:
            return FinishReason.STOP
        if ids and request.stop_strings and self.decode is not None:
            text = self.decode(ids[-self._tail :])
            if any(stop in text for stop in request.stop_strings):
                return FinishReason.STOP
        if len(ids) >= request.max_tokens:
            return FinishReason.LENGTH
        if len(ids) >= self.room:
            return FinishReason.CONTEXT
        if request.timeout is not None and time.monotonic() > self.deadline:
            return FinishReason.DEADLINE
        if self.future.cancelled():
            return FinishReason.ABORTED
        return None

    def take(self, ids: Sequence[int], log_probs: Sequence[float]) -> int:
        """Add tokens that were sampled together, up to the turn's end; how many belong to it."""
        request = self.request
        left = min(request.max_tokens, self.room) - len(self.ids)
        if request.stop_strings:
            left = min(left, 1)  # only the text after each token tells
        if request.stop_ids:
            stops = request.stop_ids
            left = min(left, next((i + 1 for i, t in enumerate(ids) if t in stops), left))
        self.ids += ids[:left]
        self.log_probs += log_probs[:left]
        return min(left, len(ids))

    def settle(self, reason: FinishReason, weight_version: int) -> None:
        """Hand the result to whoever waits, in their own loop."""
        self.mail.to_loop([(self.future, self.result(reason, weight_version))])

    def fail(self, error: BaseException) -> None:
        self.mail.to_loop([(self.future, error)])

    def result(self, reason: FinishReason, weight_version: int) -> GenerationResult:
        """What there is of it now."""
        return GenerationResult(self.ids, self.log_probs, reason, weight_version)


Outcome: TypeAlias = tuple[asyncio.Future[GenerationResult], GenerationResult | BaseException]
"""Whoever waits for a turn, and what came of it."""


class Mail:
    """What goes between an event loop and an engine's thread, many at a time.

    Turns tend to end together and to begin together. Were each handed over by itself, the two
    threads would wake each other for every one, and wait for each other in between.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[Turn], None]) -> None:
        self.loop = loop
        self._send = send
        self._leaving: list[Turn] = []
        self._arriving: list[Outcome] = []
        self._lock = threading.Lock()
        """Whether the loop has been woken is what `_arriving` says: test and change it together."""

    def to_engine(self, turn: Turn) -> None:
        """In the loop: with those that others ask for in this round of the loop."""
        if not self._leaving:
            self.loop.call_soon(self._send_all)
        self._leaving.append(turn)

    def _send_all(self) -> None:
        turns, self._leaving = self._leaving, []
        for turn in turns:
            try:
                self._send(turn)
            except RuntimeError as error:  # closed since
                turn.fail(error)

    def to_loop(self, outcomes: Sequence[Outcome]) -> None:
        """In any thread: what came of some turns."""
        with self._lock:
            is_woken = bool(self._arriving)  # the loop will come for those, and take these too
            self._arriving.extend(outcomes)
        if not is_woken:
            try:
                self.loop.call_soon_threadsafe(self._take_all)
            except RuntimeError:  # the loop has closed: nobody waits any more
                return

    def _take_all(self) -> None:
        with self._lock:
            outcomes, self._arriving = self._arriving, []
        for future, outcome in outcomes:
            if future.done():
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
