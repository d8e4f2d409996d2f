"""Turns that an engine's thread samples for the event loops of the episodes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult


@dataclass(eq=False)
class SampledTurn:
    """A request, and what was sampled for it so far."""

    request: GenerationRequest
    context_left: int
    """Tokens that fit into the context after the prompt."""
    decode: Callable[[list[int]], str] | None = field(default=None, kw_only=True)
    """Decodes tokens, to look for stop strings."""
    ids: list[int] = field(default_factory=list, init=False)
    log_probs: list[float] = field(default_factory=list, init=False)
    versions: list[tuple[int, int]] = field(default_factory=list, init=False)
    """First tokens and versions of the weights that sampled them, after an update in flight."""

    def __post_init__(self) -> None:
        stops = self.request.stop_strings
        # A token is at least a byte, so a stop string lies within as many tokens as it has bytes;
        # twice that, since a token may also be part of a character, or of no text at all.
        self._tail = 2 * max((len(s.encode()) for s in stops), default=0) + 8

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
        return None

    def weights_changed(self, before: int, now: int) -> None:
        """Record that other weights sample the next tokens."""
        if not self.ids or before == now:
            return
        self.versions = self.versions or [(0, before)]
        if self.versions[-1][0] == len(self.ids):  # those weights sampled nothing
            self.versions.pop()
        self.versions.append((len(self.ids), now))

    def result(self, reason: FinishReason, weight_version: int) -> GenerationResult:
        """Return the result so far; `weight_version` is the engine's current one."""
        (_, first), *later = self.versions or [(0, weight_version)]
        later = [change for change in later if change[0] < len(self.ids)]
        return GenerationResult(self.ids, self.log_probs, reason, first, tuple(later))


@dataclass(eq=False)
class EngineTurn(SampledTurn):
    """A request that an engine's thread samples, or will sample."""

    future: asyncio.Future[GenerationResult]
    clock: Callable[[], float] = time.monotonic
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rng = random.Random(self.request.seed)
        timeout = self.request.timeout
        self.deadline = math.inf if timeout is None else self.clock() + timeout
        """When the turn must end, by `clock`."""
        self._num_reported = 0

    def finish_reason(self) -> FinishReason | None:
        """Return why sampling stops here; None if it continues."""
        reason = super().finish_reason()
        if reason is not None:
            return reason
        if self.request.timeout is not None and self.clock() > self.deadline:
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

    def report(self) -> None:
        """Report new tokens, if the request asks for that. Called in the engine's thread."""
        on_tokens = self.request.on_tokens
        if on_tokens is None or len(self.ids) == self._num_reported:
            return
        self._num_reported = len(self.ids)
        with contextlib.suppress(RuntimeError):  # as in `deliver`
            self.future.get_loop().call_soon_threadsafe(on_tokens, list(self.ids))

    def finish(self, reason: FinishReason, weight_version: int) -> None:
        self.deliver(self.result(reason, weight_version))

    def fail(self, error: BaseException) -> None:
        self.deliver(error)

    def deliver(self, outcome: GenerationResult | BaseException) -> None:
        """Set the result or the error in the event loop that awaits it. Called in any thread."""
        # A closed loop raises RuntimeError: nobody awaits the result any more.
        with contextlib.suppress(RuntimeError):
            self.future.get_loop().call_soon_threadsafe(_set_outcome, self.future, outcome)


def _set_outcome(
    future: asyncio.Future[GenerationResult], outcome: GenerationResult | BaseException
) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def length_to_stop(
    ids: Sequence[int], stops: Sequence[str], decode: Callable[[list[int]], str]
) -> int | None:
    """Return how many tokens have a text with one of these stop strings; None if all have not."""

    def has_stop(length: int) -> bool:
        text = decode(list(ids[:length]))
        return any(stop in text for stop in stops)

    if not stops or not has_stop(len(ids)):
        return None
    return bisect_left(range(len(ids)), True, key=has_stop)
