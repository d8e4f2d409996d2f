"""Serves the viewer on this machine alone, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnwise.errors import ConfigError
from turnwise.view.app import Viewer, make_app
from turnwise.view.index import remove_old_indexes
from turnwise.view.library import Library, check_places

HOST = "127.0.0.1"
PORT = 8765
_NUM_TRIED = 100
_FIRST_READ_SECONDS = 2.0
REQUEST_SECONDS = 10.0
"""Seconds after which an incomplete request is dropped."""
_MOST_CONNECTIONS = 500
"""The limit of connections, of which a browser opens six per page; others are refused."""


class DeadlineProtocol(H11Protocol):
    """HTTP that closes a connection on which no whole request comes in time.

    uvicorn itself waits for ever once a request has begun, so that a few hundred half requests
    would take all the open files that a process may have.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _watch(self) -> None:
        """Wait for the rest of a request, and no longer from its last byte than from its first."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_waiting()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._waiting = None
        if self.conn.our_state in (h11.IDLE, h11.DONE, h11.MUST_CLOSE):  # no answer is under way
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def serve(
    places: Sequence[Path],
    port: int | None = None,
    open_browser: bool = True,
    report: Callable[[str], None] = print,
    is_read_only: bool = False,
) -> None:
    """Show the runs in these folders, at a port; without one, at the first free one from 8765."""
    check_places(places)
    with listening(port) as listener:
        number = listener.getsockname()[1]
        remove_old_indexes()
        library = Library(places)
        library.find()
        end = time.monotonic() + _FIRST_READ_SECONDS
        for run in library.runs:
            if time.monotonic() < end:  # the others are read while the page is open
                run.refresh()
        address = f"http://{HOST}:{number}/"
        num_runs = len(library.runs)
        if num_runs:
            report(f"{num_runs} {'run' if num_runs == 1 else 'runs'} at {address} (Ctrl-C ends it)")
        else:
            where = " and ".join(map(str, places))
            report(f"Waiting for the first run in {where}: {address} (Ctrl-C ends it)")
        viewer = Viewer(library, is_read_only)
        shows = open_browser and has_display()
        app = make_app(viewer, number, (lambda: _open(address)) if shows else None)
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the server
            ViewServer(viewer, app).run([listener])


class ViewServer(uvicorn.Server):
    """A server that ends at once, though open pages keep listening to its events."""

    def __init__(self, viewer: Viewer, app: object) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type] # uvicorn has its own type for an app
                log_level="warning",
                log_config=None,
                access_log=False,
                server_header=False,
                http=DeadlineProtocol,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        self._viewer = viewer

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._viewer.notifier.close()
        super().handle_exit(sig, frame)

    def end(self) -> None:
        """End the server; any thread may call this."""
        self._viewer.notifier.close()
        self.should_exit = True


def listening(port: int | None) -> socket.socket:
    """Return a socket that can be reached from this machine only."""
    for number in range(PORT, PORT + _NUM_TRIED) if port is None else [port]:
        # With the protocol named, asyncio sends small packets at once (TCP_NODELAY).
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
            listener.listen(128)
        except (OSError, OverflowError) as error:
            listener.close()
            last = error
            continue
        return listener
    if port is None:
        raise ConfigError(f"no port from {PORT} to {PORT + _NUM_TRIED - 1} is free: {last}")
    raise ConfigError(
        f"cannot listen on port {port}: {getattr(last, 'strerror', last)}. Choose another with "
        "--port, or leave it out to take the next that is free."
    )


def has_display() -> bool:
    """Return whether there is a display on which a browser could open."""
    if platform.system() == "Linux":
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return "SSH_CONNECTION" not in os.environ


def _open(address: str) -> None:
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
