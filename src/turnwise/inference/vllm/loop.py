"""An event loop of our own in a thread, and the gate between turns and new weights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines away from the caller's loop, which may be blocked or come and go."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start it; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel what runs, wait for it to end, and stop."""
        self.submit(self._cancel_all()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Gate:
    """Many turns at once, or one update: an update waits for turns under way, new turns for it."""

    def __init__(self) -> None:
        self._num_turns = 0
        self._num_updates = 0
        """That wait or are at work."""
        self._changed = asyncio.Condition()
        self._updating = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._num_updates == 0)
            self._num_turns += 1
        try:
            yield
        finally:
            self._num_turns -= 1
            await self._tell()

    @asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        self._num_updates += 1
        try:
            async with self._updating:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._num_turns == 0)
                yield
        finally:
            self._num_updates -= 1
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
