"""The page is told when something changed: server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

_HEARTBEAT_SECONDS = 15.0
"""A line now and then, by which both sides see that the other is there."""


class Bell:
    """Rung by any thread; every open stream of events hears it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[asyncio.Event] = set()
        self.is_closed = False

    def attach(self) -> None:
        """To the event loop that runs now."""
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """Let all streams end, so that nobody waits for them."""
        self.is_closed = True
        self.ring()

    def _wake(self) -> None:
        for event in self._listeners:
            event.set()

    async def stream(self, message: Callable[[], bytes]) -> AsyncIterator[bytes]:
        """The message now, and again after each change."""
        heard = asyncio.Event()
        self._listeners.add(heard)
        try:
            yield b"retry: 2000\n\n"
            while not self.is_closed:
                heard.clear()
                data = await asyncio.to_thread(message)
                yield b"event: runs\ndata: " + data + b"\n\n"
                while not self.is_closed:
                    try:
                        await asyncio.wait_for(heard.wait(), _HEARTBEAT_SECONDS)
                        break
                    except TimeoutError:
                        yield b": still here\n\n"
        finally:
            self._listeners.discard(heard)
