"""Serves the viewer on this machine alone, until Ctrl-C."""

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
from turnwise.http_server import AppServer, open_listener
from turnwise.view.app import Viewer, make_app
from turnwise.view.runs import Library

HOST = "127.0.0.1"
PORT = 8765
_NUM_TRIED = 100
_FIRST_READ_SECONDS = 2.0


def serve(
    folders: Sequence[Path],
    port: int | None,
    open_browser: bool,
    report: Callable[[str], None],
    is_read_only: bool,
) -> None:
    """Show the runs in these folders, at a port; without one, at the first free one from 8765."""
    with listening(port) as listener:
        library = Library(folders)
        library.find()
        end = time.monotonic() + _FIRST_READ_SECONDS
        for run in library.runs:
            if time.monotonic() < end:  # the others are read while the page is open
                run.refresh()
        address = f"http://{HOST}:{listener.getsockname()[1]}/"
        num_runs = len(library.runs)
        what = f"{num_runs} {'run' if num_runs == 1 else 'runs'} at"
        if not num_runs:
            what = f"Waiting for the first run in {' and '.join(map(str, folders))}:"
        report(f"{what} {address} (Ctrl-C ends it)")
        has_display = "SSH_CONNECTION" not in os.environ
        if platform.system() == "Linux":
            has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

        def show() -> None:
            if open_browser and has_display:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        viewer = Viewer(library, is_read_only)
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends the server
            ViewServer(viewer, make_app(viewer, show)).run([listener])


class ViewServer(AppServer):
    """A server that ends at once, though open pages keep listening to its events."""

    def __init__(self, viewer: Viewer, app: object) -> None:
        super().__init__(app, has_lifespan=True)
        self._viewer = viewer

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._viewer.is_closed = True
        super().handle_exit(sig, frame)


def listening(port: int | None) -> socket.socket:
    """Return a socket that can be reached from this machine only."""
    ports = range(PORT, PORT + _NUM_TRIED) if port is None else range(port, port + 1)
    try:
        return open_listener(HOST, ports)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {port or PORT}: {error.strerror or error}. Choose another with "
            "--port, or leave it out to take the next that is free."
        ) from None
