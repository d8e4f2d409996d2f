"""A lock per model: an engine and the learner both change how its modules compute.

Each replaces the attention, and the learner also norms and MLPs, while it runs a forward. While
episodes are played during an update, these forwards must not overlap. Engines that read only the
weights need no lock.
"""

import threading
from collections import deque
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary


class ModelLock:
    """A reentrant lock that threads get in the order in which they ask for it.

    Python's own lock may be taken again by the thread that has just released it, so that an engine
    that computes step after step would keep the learner waiting.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[int] = deque()
        """The thread that holds the lock, then those that wait."""
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            if self._depth and self._queue[0] == me:
                self._depth += 1
                return
            self._queue.append(me)
            try:
                self._changed.wait_for(lambda: self._queue[0] == me)
            except BaseException:  # a signal in the main thread
                self._queue.remove(me)
                self._changed.notify_all()
                raise
            self._depth = 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._queue.popleft()
                self._changed.notify_all()


_LOCKS: WeakKeyDictionary[Any, ModelLock] = WeakKeyDictionary()
_CREATING = threading.Lock()


def lock_of(model: Any) -> ModelLock:
    """Return the lock of a model; that of the model inside peft's wrapper is the same."""
    unwrap = getattr(model, "get_base_model", None)
    inner = model if unwrap is None else unwrap()
    with _CREATING:
        return _LOCKS.setdefault(inner, ModelLock())
