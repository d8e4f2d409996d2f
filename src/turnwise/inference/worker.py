"""The base of engines whose model runs in one thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from turnwise.deadlines import resolve_future
from turnwise.errors import describe_error
from turnwise.inference.base import BaseInferenceEngine, Overflow
from turnwise.inference.openmp_threads import release_openmp_threads
from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult
from turnwise.inference.turns import EngineTurn

T = TypeVar("T")
_LOG = logging.getLogger("turnwise")


@dataclass(eq=False)
class EngineTask(Generic[T]):
    """A call to make in the engine's thread, between its steps."""

    function: Callable[[], T]
    wait_for_idle: bool
    """Whether to wait until no turn is running."""
    future: Future[T] = field(default_factory=Future)

    def fail(self, error: BaseException) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


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
        self._idle_since, self._idle_before = time.monotonic(), 0.0
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
        future = asyncio.get_running_loop().create_future()
        decode = None if self.tokenizer is None else self.tokenizer.decode
        context_left = self.context_left(request)
        self._put(EngineTurn(request, context_left, future, self._clock, decode=decode))
        result: GenerationResult = await future
        return result

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
            if self._thread.is_alive():  # the thread is left behind; its callers are not
                _LOG.warning(
                    "the engine's thread did not end within %g s of closing", _CLOSING_SECONDS
                )
        self._read_arrivals(wait=False)
        for turn in [*self._active_turns(), *self._waiting]:
            turn.finish(FinishReason.ABORTED, self.weight_version)
        for task in self._tasks:
            task.fail(RuntimeError(_CLOSED))

    def _in_thread(self, function: Callable[[], T], *, wait_for_idle: bool) -> Future[T]:
        """Call `function` in the engine's thread, between its steps."""
        task = EngineTask(function, wait_for_idle)
        self._put(task)
        return task.future

    def _put(self, item: EngineTurn | EngineTask[Any]) -> None:
        with self._lock:
            if self._is_closed:
                raise RuntimeError(_CLOSED)
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
        except BaseException as error:  # otherwise every caller would wait for ever
            failure = RuntimeError(f"the engine broke down: {describe_error(error)}")
            failure.__cause__ = error
            self._refuse_all(failure)

    def _refuse_all(self, failure: RuntimeError) -> None:
        """Fail every turn and task, also later ones, until the engine is closed."""
        while True:
            for turn in [*self._active_turns(), *self._waiting]:
                turn.fail(failure)
            for task in self._tasks:
                task.fail(failure)
            self._waiting.clear()
            self._tasks.clear()
            if self._is_closed:
                return
            self._read_arrivals(wait=True)

    def _coalesce_arrivals(self) -> None:
        """Wait a moment while more requests arrive: an idle engine starts with a full batch."""
        number = -1
        for _ in range(10):
            if number == (number := self._arrivals.qsize()):
                return
            time.sleep(0.0002)

    def _read_arrivals(self, *, wait: bool) -> None:
        items: list[EngineTurn | EngineTask[Any] | None] = []
        if wait:
            release_openmp_threads()
            self._idle_since, self._is_idle = time.monotonic(), True
            items.append(self._arrivals.get())
            self._is_idle = False
            self._idle_before += time.monotonic() - self._idle_since
            self._coalesce_arrivals()
        with contextlib.suppress(queue.Empty):
            while True:
                items.append(self._arrivals.get_nowait())
        for item in items:
            if isinstance(item, EngineTurn):
                self._waiting.append(item)
            elif item is not None:
                self._tasks.append(item)


_CLOSING_SECONDS = 30.0
"""For the step under way to end; a GPU that hangs never does."""
_CLOSED = "this engine is closed. Make a new one."
