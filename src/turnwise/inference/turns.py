"""Turns that an engine's thread samples, and the queue that connects it with event loops."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult
from turnwise.plain_mode import is_plain


@dataclass(eq=False)
class EngineTurn:
    """A request that an engine's thread samples, or will sample."""

    request: GenerationRequest
    future: asyncio.Future[GenerationResult]
    results: ResultQueue
    """Delivers the result to the event loop that awaits it."""
    context_left: int
    """Tokens that fit into the context after the prompt."""
    decode: Callable[[list[int]], str] | None = None
    """Decodes tokens, to look for stop strings."""
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
        """When the turn must end, on the monotonic clock."""
        timeout = self.request.timeout
        return math.inf if timeout is None else self.started + timeout

    def finish_reason(self) -> FinishReason | None:
        """Return why sampling stops here; None if it continues."""
        request, ids = self.request, self.ids
        if ids and ids[-1] in request.stop_ids:
            return FinishReason.STOP
        if ids and request.stop_strings and self.decode is not None:
            text = self.decode(ids[-self._tail :])
            if any(stop in text for stop in request.stop_strings):
                return FinishReason.STOP
        if len(ids) >= request.max_tokens:
            return FinishReason.LENGTH
        if len(ids) >= self.context_left:
            return FinishReason.CONTEXT
        if request.timeout is not None and time.monotonic() > self.deadline:
            return FinishReason.DEADLINE
        if self.future.cancelled():
            return FinishReason.ABORTED
        return None

    def append_tokens(self, ids: Sequence[int], log_probs: Sequence[float]) -> int:
        """Append tokens that were sampled together, up to the turn's end; return how many."""
        request = self.request
        left = min(request.max_tokens, self.context_left) - len(self.ids)
        if request.stop_strings:
            left = min(left, 1)  # only the text after each token tells
        if request.stop_ids:
            stops = request.stop_ids
            left = min(left, next((i + 1 for i, t in enumerate(ids) if t in stops), left))
        self.ids += ids[:left]
        self.log_probs += log_probs[:left]
        return min(left, len(ids))

    def finish(self, reason: FinishReason, weight_version: int) -> None:
        """Deliver the result to the event loop that awaits it."""
        self.results.deliver([(self.future, self.result(reason, weight_version))])

    def fail(self, error: BaseException) -> None:
        self.results.deliver([(self.future, error)])

    def result(self, reason: FinishReason, weight_version: int) -> GenerationResult:
        """Return the result so far."""
        return GenerationResult(self.ids, self.log_probs, reason, weight_version)


Outcome: TypeAlias = tuple[asyncio.Future[GenerationResult], GenerationResult | BaseException]
"""The future of a turn, and its result or error."""


class ResultQueue:
    """Connects an event loop with an engine's thread, many turns at a time.

    Turns tend to finish together and to start together. Handed over one by one, the two threads
    would wake each other for every turn, and wait for each other in between.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[EngineTurn], None]) -> None:
        self.loop = loop
        self._send = send
        self._submitted: list[EngineTurn] = []
        self._delivered: list[Outcome] = []
        self._lock = threading.Lock()
        """Guards `_delivered`: whether it is empty says whether the loop was woken already."""

    def submit(self, turn: EngineTurn) -> None:
        """Send a turn to the engine, with all others of this iteration of the loop.

        Called in the event loop.
        """
        if is_plain("engine.results"):
            self._send(turn)
            return
        if not self._submitted:
            self.loop.call_soon(self._send_all)
        self._submitted.append(turn)

    def _send_all(self) -> None:
        turns, self._submitted = self._submitted, []
        for turn in turns:
            try:
                self._send(turn)
            except RuntimeError as error:  # the engine was closed since
                turn.fail(error)

    def deliver(self, outcomes: Sequence[Outcome]) -> None:
        """Set the results of some turns in the event loop. Called in any thread."""
        if is_plain("engine.results"):
            for outcome in outcomes:
                self._call_in_loop(partial(_set_outcomes, [outcome]))
            return
        with self._lock:
            is_woken = bool(self._delivered)  # then the loop will take these too
            self._delivered.extend(outcomes)
        if not is_woken:
            self._call_in_loop(self._set_all)

    def _set_all(self) -> None:
        with self._lock:
            outcomes, self._delivered = self._delivered, []
        _set_outcomes(outcomes)

    def _call_in_loop(self, function: Callable[[], None]) -> None:
        # A closed loop raises RuntimeError: nobody awaits the result any more.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)


def _set_outcomes(outcomes: Sequence[Outcome]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
