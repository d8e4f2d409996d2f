"""Engines whose model works in a thread of its own."""

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

from turnwise.errors import describe_error
from turnwise.inference.base import BaseInferenceEngine, Overflow
from turnwise.inference.openmp_threads import release_openmp_threads
from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult
from turnwise.inference.turns import Mail, Turn

T = TypeVar("T")
_LOG = logging.getLogger("turnwise")


@dataclass(eq=False)
class Task(Generic[T]):
    """Something that must happen in the engine's thread, between its steps."""

    function: Callable[[], T]
    drained: bool
    """Whether it waits until no turn is under way."""
    future: Future[T] = field(default_factory=Future)

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        try:
            result = self.function()
        except BaseException as error:  # goes to whoever asked for it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if self.future.set_running_or_notify_cancel():
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
        self._lock = threading.Lock()
        """Held for closing and for putting: nothing is put after the end."""
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
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._arrivals.put(None)  # wakes the thread
        if self._thread.ident is not None:
            self._thread.join(_CLOSING_SECONDS)
            if self._thread.is_alive():  # it is left behind; those who wait for it are not
                _LOG.warning(
                    "the engine's thread did not end within %g s of closing", _CLOSING_SECONDS
                )
        self._take_in(wait=False)
        for turn in [*self._under_way(), *self._waiting]:
            turn.settle(FinishReason.ABORTED, self.weight_version)
        for task in self._tasks:
            task.fail(RuntimeError(_CLOSED))

    def _in_thread(self, function: Callable[[], T], *, drained: bool) -> Future[T]:
        """Have the engine's thread call `function` between its steps."""
        task = Task(function, drained)
        self._put(task)
        return task.future

    def _put(self, item: Turn | Task[Any]) -> None:
        with self._lock:
            if self._is_closed:
                raise RuntimeError(_CLOSED)
            if self._thread.ident is None:
                self._thread.start()
            if self._is_idle:
                self._is_idle = False
                release_openmp_threads()  # of whoever computed here before
            self._arrivals.put(item)

    def _work(self) -> None:
        try:
            while not self._is_closed:
                self._take_in(wait=not (self._under_way() or self._waiting or self._tasks))
                while self._tasks and not (self._tasks[0].drained and self._under_way()):
                    self._tasks.popleft().run()
                self._advance(may_begin=not self._tasks)
        except BaseException as error:  # without an answer all would wait for ever
            failure = RuntimeError(f"the engine broke down: {describe_error(error)}")
            failure.__cause__ = error
            self._refuse_all(failure)

    def _refuse_all(self, failure: RuntimeError) -> None:
        """Tell whoever waits, or comes later, until the engine is closed."""
        while True:
            for turn in [*self._under_way(), *self._waiting]:
                turn.fail(failure)
            for task in self._tasks:
                task.fail(failure)
            self._waiting.clear()
            self._tasks.clear()
            if self._is_closed:
                return
            self._take_in(wait=True)

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
            release_openmp_threads()
            self._is_idle = True
            items.append(self._arrivals.get())
            self._is_idle = False
            self._wait_for_company()
        with contextlib.suppress(queue.Empty):
            while True:
                items.append(self._arrivals.get_nowait())
        for item in items:
            if isinstance(item, Turn):
                self._waiting.append(item)
            elif item is not None:
                self._tasks.append(item)


_CLOSING_SECONDS = 30.0
"""For the step under way to end; a GPU that hangs never does."""
_CLOSED = "this engine is closed. Make a new one."
