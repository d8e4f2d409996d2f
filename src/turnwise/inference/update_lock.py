"""The lock between sampling and weight updates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class UpdateLock:
    """Many turns may sample at once; an update runs alone. For use in one event loop."""

    def __init__(self) -> None:
        self._num_sampling = 0
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._updating = asyncio.Lock()

    @property
    def is_waiting(self) -> bool:
        """Whether an update waits for turns, or is running."""
        return not self._is_open.is_set()

    async def enter(self) -> None:
        """Start to sample, after the update that is running."""
        while not self._is_open.is_set():
            await self._is_open.wait()
        self._num_sampling += 1
        self._is_idle.clear()

    def leave(self) -> None:
        """Finish sampling."""
        self._num_sampling -= 1
        if self._num_sampling == 0:
            self._is_idle.set()

    @asynccontextmanager
    async def exclusive(
        self, cut: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[None]:
        """Hold new turns back, and wait until all running ones have finished, or `cut` them."""
        async with self._updating:
            self._is_open.clear()
            try:
                if cut is not None:
                    await cut()
                await self._is_idle.wait()
                yield
            finally:
                self._is_open.set()
