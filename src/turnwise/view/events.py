"""Server-sent events: they notify the page when something changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

_HEARTBEAT_SECONDS = 15.0
"""Seconds between keep-alive lines, by which each side sees that the other is there."""


class Notifier:
    """A notification that any thread can send to every open stream of events."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[asyncio.Event] = set()
        self.is_closed = False

    def attach(self) -> None:
        """Attach to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def notify(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self.is_closed = True
        self.notify()

    def _wake(self) -> None:
        for event in self._listeners:
            event.set()

    async def stream(self, message: Callable[[], bytes]) -> AsyncIterator[bytes]:
        """Yield the message now, and again after each change."""
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
