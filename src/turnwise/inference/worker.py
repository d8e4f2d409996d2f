"""Engines whose model works in a thread of its own, and the turns that it is working on."""

from __future__ import annotations

import asyncio
import math
import queue
import random
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from turnwise.inference.base import BaseInferenceEngine, Overflow
from turnwise.inference.helper_threads import send_helpers_away
from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult

T = TypeVar("T")


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
        self._arriving: deque[Outcome] = deque()
        self._adding = threading.Lock()

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
        with self._adding:
            is_awaited = bool(self._arriving)  # the loop will come for those, and take these too
            self._arriving.extend(outcomes)
        if not is_awaited:
            try:
                self.loop.call_soon_threadsafe(self._take_all)
            except RuntimeError:  # the loop has closed: nobody waits any more
                return

    def _take_all(self) -> None:
        while self._arriving:
            future, outcome = self._arriving.popleft()
            if future.done():
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


@dataclass(eq=False)
class Task(Generic[T]):
    """Something that must happen in the engine's thread, between its steps."""

    function: Callable[[], T]
    drained: bool
    """Whether it waits until no turn is under way."""
    future: Future[T] = field(default_factory=Future)

    def run(self) -> None:
        try:
            self.future.set_result(self.function())
        except BaseException as error:  # goes to whoever asked for it
            self.future.set_exception(error)


class WorkerEngine(BaseInferenceEngine):
    """Takes requests from any event loop; one thread owns the model and works on them.

    Turns wait in `_waiting` until the thread has room for them; new weights wait until the turns
    under way have ended, and no turn begins before them.
    """

    def __init__(self, tokenizer: Any = None, overflow: Overflow = "truncate") -> None:
        super().__init__(tokenizer, overflow)
        self._arrivals: queue.SimpleQueue[Turn | Task[Any] | None] = queue.SimpleQueue()
        self._waiting: deque[Turn] = deque()
        self._tasks: deque[Task[Any]] = deque()
        self._mail: Mail | None = None
        self._is_closed = False
        self._is_idle = True
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="turnwise: engine", daemon=True)

    @abstractmethod
    def _advance(self, *, may_begin: bool) -> None:
        """Work a while on the turns that there are, and on waiting ones if new turns may begin."""

    @abstractmethod
    def _under_way(self) -> Collection[Turn]:
        """Turns that have begun and not ended."""

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        if self._is_closed:
            raise RuntimeError(_CLOSED)
        mail = self._mail_here()
        decode = None if self.tokenizer is None else self.tokenizer.decode
        turn = Turn(request, mail.loop.create_future(), mail, self.room(request), decode)
        mail.to_engine(turn)
        return await turn.future

    def _mail_here(self) -> Mail:
        """Of the loop that runs in this thread."""
        loop, mail = asyncio.get_running_loop(), self._mail
        if mail is None or mail.loop is not loop:
            mail = self._mail = Mail(loop, self._put)
        return mail

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._arrivals.put(None)  # wakes the thread
        if self._thread.ident is not None:
            self._thread.join()
        self._take_in(wait=False)
        for turn in [*self._under_way(), *self._waiting]:
            turn.settle(FinishReason.ABORTED, self.weight_version)
        for task in self._tasks:
            task.future.set_exception(RuntimeError(_CLOSED))

    def _in_thread(self, function: Callable[[], T], *, drained: bool) -> Future[T]:
        """Have the engine's thread call `function` between its steps."""
        task = Task(function, drained)
        self._put(task)
        return task.future

    def _put(self, item: Turn | Task[Any]) -> None:
        if self._is_closed:
            raise RuntimeError(_CLOSED)
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()
        if self._is_idle:
            self._is_idle = False
            send_helpers_away()  # whoever computed here before, now it is the engine's turn
        self._arrivals.put(item)

    def _work(self) -> None:
        while not self._is_closed:
            self._take_in(wait=not (self._under_way() or self._waiting or self._tasks))
            while self._tasks and not (self._tasks[0].drained and self._under_way()):
                self._tasks.popleft().run()
            self._advance(may_begin=not self._tasks)

    def _wait_for_company(self) -> None:
        """Requests come in crowds: an idle engine waits a moment, while more are coming."""
        number = -1
        for _ in range(10):
            if number == (number := self._arrivals.qsize()):
                return
            time.sleep(0.0002)

    def _take_in(self, *, wait: bool) -> None:
        items: list[Turn | Task[Any] | None] = []
        if wait:
            send_helpers_away()
            self._is_idle = True
            items.append(self._arrivals.get())
            self._is_idle = False
            self._wait_for_company()
        while not self._arrivals.empty():
            items.append(self._arrivals.get())
        for item in items:
            if isinstance(item, Turn):
                self._waiting.append(item)
            elif item is not None:
                self._tasks.append(item)


_CLOSED = "this engine is closed. Make a new one."
