"""Serves the viewer on this machine alone, until Ctrl-C."""

from __future__ import annotations

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

from turnwise.errors import ConfigError
from turnwise.http_server import BoundedServer, open_listener
from turnwise.view.app import Viewer, make_app
from turnwise.view.library import Library, check_places

HOST = "127.0.0.1"
PORT = 8765
_NUM_TRIED = 100
_FIRST_READ_SECONDS = 2.0


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


class ViewServer(BoundedServer):
    """A server that ends at once, though open pages keep listening to its events."""

    def __init__(self, viewer: Viewer, app: object) -> None:
        super().__init__(app, has_lifespan=True)
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
    try:
        return open_listener(HOST, range(PORT, PORT + _NUM_TRIED) if port is None else [port])
    except OSError as error:
        if port is None:
            last = PORT + _NUM_TRIED - 1
            raise ConfigError(f"no port from {PORT} to {last} is free: {error}") from None
        raise ConfigError(
            f"cannot listen on port {port}: {error.strerror or error}. Choose another with "
            "--port, or leave it out to take the next that is free."
        ) from None


def has_display() -> bool:
    """Return whether there is a display on which a browser could open."""
    if platform.system() == "Linux":
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return "SSH_CONNECTION" not in os.environ


def _open(address: str) -> None:
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
