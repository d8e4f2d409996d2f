"""Turns, and the base of engines whose model runs in one thread of this process."""

import asyncio
import contextlib
import ctypes
import queue
import random
import threading
import time
from abc import abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from turnwise.deadlines import resolve_future
from turnwise.errors import describe_error
from turnwise.inference.base import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    Overflow,
)

T = TypeVar("T")
_CLOSING_SECONDS = 30.0
"""For the step under way to end; a thread with a GPU that hangs is left behind."""
CLOSED = "this engine is closed. Make a new one."
_SOFT = 1
"""`omp_pause_soft` of OpenMP: threads are released, and every setting is kept."""


@dataclass(eq=False)
class EngineTurn:
    """A request, and what was sampled for it so far."""

    request: GenerationRequest
    context_left: int
    """Tokens that fit into the context after the prompt."""
    future: asyncio.Future[GenerationResult] | None = None
    """Where an engine's thread delivers the result."""
    clock: Callable[[], float] = time.monotonic
    """The time of deadlines."""
    tokenizer: Any = None
    """Decodes tokens, to look for stop strings."""
    ids: list[int] = field(default_factory=list, init=False)
    log_probs: list[float] = field(default_factory=list, init=False)
    versions: list[tuple[int, int]] = field(default_factory=list, init=False)
    """First tokens and versions of the weights that sampled them, after an update in flight."""

    def __post_init__(self) -> None:
        request = self.request
        self.rng = random.Random(request.seed)
        self.deadline = None if request.timeout is None else self.clock() + request.timeout
        """When the turn must end, by `clock`."""
        # A token is at least a byte, so a stop string lies within as many tokens as it has bytes;
        # twice that, since a token may also be part of a character, or of no text at all.
        self._tail = 2 * max((len(s.encode()) for s in request.stop_strings), default=0) + 8
        self._num_reported = 0

    def finish_reason(self) -> FinishReason | None:
        """Return why sampling stops here; None if it continues."""
        request, ids = self.request, self.ids
        if ids and ids[-1] in request.stop_ids:
            return FinishReason.STOP
        if ids and request.stop_strings and self.tokenizer is not None:
            text = self.tokenizer.decode(ids[-self._tail :])
            if any(stop in text for stop in request.stop_strings):
                return FinishReason.STOP
        if len(ids) >= request.max_tokens:
            return FinishReason.LENGTH
        if len(ids) >= self.context_left:
            return FinishReason.CONTEXT
        if self.deadline is not None and self.clock() >= self.deadline:
            return FinishReason.DEADLINE
        if self.future is not None and self.future.cancelled():
            return FinishReason.ABORTED
        return None

    def append_tokens(self, ids: Sequence[int], log_probs: Sequence[float]) -> int:
        """Append tokens that were sampled together, up to the turn's end; return how many."""
        stops = self.request.stop_ids
        left = min(self.request.max_tokens, self.context_left) - len(self.ids)
        if self.request.stop_strings:
            left = min(left, 1)  # only the text after each token tells
        if stops:
            left = min(left, next((i + 1 for i, t in enumerate(ids) if t in stops), left))
        self.ids += ids[:left]
        self.log_probs += log_probs[:left]
        return min(left, len(ids))

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

    def report(self) -> None:
        """Report new tokens, if the request asks for that. Called in the engine's thread."""
        if self.request.on_tokens is not None and len(self.ids) > self._num_reported:
            self._num_reported = len(self.ids)
            self._call_in_loop(self.request.on_tokens, list(self.ids))

    def deliver(self, outcome: GenerationResult | BaseException) -> None:
        """Set the result or the error in the event loop that awaits it. Called in any thread."""

        def resolve(future: asyncio.Future[GenerationResult]) -> None:
            if future.done():
                return
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._call_in_loop(resolve, self.future)

    def _call_in_loop(self, function: Callable[..., None], argument: Any) -> None:
        assert self.future is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody awaits it
            self.future.get_loop().call_soon_threadsafe(function, argument)


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


@dataclass(eq=False)
class EngineTask(Generic[T]):
    """A call to make in the engine's thread, between its steps."""

    function: Callable[[], T]
    wait_for_idle: bool
    """Whether to wait until no turn is running."""
    future: Future[T] = field(default_factory=Future)


class WorkerEngine(BaseInferenceEngine):
    """Takes requests from any event loop; one thread owns the model and samples them.

    Turns wait in `_waiting` until the thread admits them. A weight update waits until the running
    turns have finished, and no turn is admitted before it.
    """

    def __init__(self, tokenizer: Any = None, overflow: Overflow = "truncate") -> None:
        super().__init__(tokenizer, overflow)
        self._arrivals: queue.SimpleQueue[EngineTurn | EngineTask[Any] | None] = queue.SimpleQueue()
        self._waiting: deque[EngineTurn] = deque()
        self._tasks: deque[EngineTask[Any]] = deque()
        self._is_closed = False
        self._is_idle = True
        self._idle_since = time.monotonic()
        self._idle_before = 0.0
        self._lock = threading.Lock()
        """Held by `close` and `_put`: nothing is put into the queue of a closed engine."""
        self._thread = threading.Thread(target=self._work, name="turnwise: engine", daemon=True)

    @abstractmethod
    def _advance(self, *, may_admit: bool) -> None:
        """Run some steps of the active turns; admit waiting ones if `may_admit`."""

    @abstractmethod
    def _active_turns(self) -> Collection[EngineTurn]:
        """Return the turns that were admitted and have not finished."""

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        self._check_ids(request.prompt_ids)
        future: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()
        left = self.context_left(request)
        self._put(EngineTurn(request, left, future, self._clock, self.tokenizer))
        return await future

    def _clock(self) -> float:
        """Return the time by which turns have deadlines."""
        return time.monotonic() - self.paused_seconds

    @property
    def idle_seconds(self) -> float:
        """How long the engine has had nothing to compute since it was made."""
        return self._idle_before + (time.monotonic() - self._idle_since if self._is_idle else 0.0)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._arrivals.put(None)  # wakes the thread
        if self._thread.ident is not None:
            self._thread.join(_CLOSING_SECONDS)
        self._read_arrivals(wait=False)
        for turn in [*self._active_turns(), *self._waiting]:
            turn.deliver(turn.result(FinishReason.ABORTED, self.weight_version))
        self._fail_tasks(RuntimeError(CLOSED))

    def _in_thread(self, function: Callable[[], T], *, wait_for_idle: bool) -> Future[T]:
        """Call `function` in the engine's thread, between its steps."""
        task = EngineTask(function, wait_for_idle)
        self._put(task)
        return task.future

    def _put(self, item: EngineTurn | EngineTask[Any]) -> None:
        with self._lock:
            if self._is_closed:
                raise RuntimeError(CLOSED)
            if self._thread.ident is None:
                self._thread.start()
            if self._is_idle:
                self._is_idle = False
                release_openmp_threads()  # of the thread that computed until now
            self._arrivals.put(item)

    def _work(self) -> None:
        try:
            while not self._is_closed:
                has_turns = bool(self._active_turns() or self._waiting) and not self.is_paused
                self._read_arrivals(wait=not (has_turns or self._tasks))
                is_busy = bool(self._active_turns()) and not self.is_paused
                while self._tasks and not (self._tasks[0].wait_for_idle and is_busy):
                    task = self._tasks.popleft()
                    resolve_future(task.future, task.function)
                if not self.is_paused:
                    self._advance(may_admit=not self._tasks)
                    for turn in self._active_turns():
                        turn.report()
        except BaseException as error:  # otherwise all callers would wait for ever, later ones too
            failure = RuntimeError(f"the engine broke down: {describe_error(error)}")
            failure.__cause__ = error
            while not self._is_closed:
                for turn in [*self._active_turns(), *self._waiting]:
                    turn.deliver(failure)
                self._waiting.clear()
                self._fail_tasks(failure)
                self._read_arrivals(wait=True)

    def _fail_tasks(self, error: RuntimeError) -> None:
        while self._tasks:
            future = self._tasks.popleft().future
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _read_arrivals(self, *, wait: bool) -> None:
        items: list[EngineTurn | EngineTask[Any] | None] = []
        if wait:
            release_openmp_threads()
            self._idle_since = time.monotonic()
            self._is_idle = True
            items.append(self._arrivals.get())
            self._is_idle = False
            self._idle_before += time.monotonic() - self._idle_since
            # A moment while more requests arrive: an idle engine starts with a full batch.
            number = -1
            for _ in range(10):
                if number == (number := self._arrivals.qsize()):
                    break
                time.sleep(0.0002)
        items += [self._arrivals.get_nowait() for _ in range(self._arrivals.qsize())]
        self._waiting += [item for item in items if isinstance(item, EngineTurn)]
        self._tasks += [item for item in items if isinstance(item, EngineTask)]


def release_openmp_threads() -> None:
    """End the OpenMP team of the calling thread, if it has one; its next operation makes another.

    GNU OpenMP keeps a team of worker threads for every thread that ever ran a large operation. If
    the process has more of them than cores, they sleep between operations instead of spinning, and
    waking them takes longer than a small model's layer: an engine in the process of a learner ran
    at two thirds of its speed. So a thread that hands the work to another releases its team.
    """
    for library in _openmp():
        library.omp_pause_resource_all(_SOFT)


@cache
def _openmp() -> list[ctypes.CDLL]:
    """Return the loaded GNU OpenMP libraries; none in builds with another one (macOS, conda)."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split(maxsplit=5)[5] for line in lines if "libgomp" in line}
    libraries = [ctypes.CDLL(path) for path in sorted(paths)]
    return [library for library in libraries if hasattr(library, "omp_pause_resource_all")]
