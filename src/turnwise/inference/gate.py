"""Turns on one side, new weights on the other: never both at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Lets turns in and out; who shuts it is alone inside. For use in one event loop."""

    def __init__(self) -> None:
        self._num_inside = 0
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._shutting = asyncio.Lock()

    async def enter(self) -> None:
        """Come in, after whoever has shut it."""
        while not self._is_open.is_set():
            await self._is_open.wait()
        self._num_inside += 1
        self._is_empty.clear()

    def leave(self) -> None:
        self._num_inside -= 1
        if self._num_inside == 0:
            self._is_empty.set()

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Let nobody in, and wait until all have left."""
        async with self._shutting:
            self._is_open.clear()
            try:
                await self._is_empty.wait()
                yield
            finally:
                self._is_open.set()
