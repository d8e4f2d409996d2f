"""Serves the viewer on this machine alone, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from turnwise.errors import ConfigError
from turnwise.view.app import Viewer, make_app
from turnwise.view.folders import check_places
from turnwise.view.index import remove_old_indexes
from turnwise.view.runs import Library

HOST = "127.0.0.1"
PORT = 8765
_NUM_TRIED = 100


def serve(
    places: Sequence[Path],
    port: int | None = None,
    open_browser: bool = True,
    tell: Callable[[str], None] = print,
) -> None:
    """Show the runs in these folders. Without a port: the usual one, or the next that is free."""
    check_places(places)
    with listening(port) as door:
        number = door.getsockname()[1]
        remove_old_indexes()
        library = Library(places)
        library.find()
        for run in library.runs:
            run.look()
        address = f"http://{HOST}:{number}/"
        num_runs = len(library.runs)
        tell(f"{num_runs} {'run' if num_runs == 1 else 'runs'} at {address} (Ctrl-C ends it)")
        viewer = Viewer(library)
        shows = open_browser and has_display()
        app = make_app(viewer, number, (lambda: _open(address)) if shows else None)
        with contextlib.suppress(KeyboardInterrupt):  # that is how it is ended
            ViewServer(viewer, app).run([door])


class ViewServer(uvicorn.Server):
    """Ends at once, though pages listen to their events for as long as they are open."""

    def __init__(self, viewer: Viewer, app: object) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type] # uvicorn's words for an app are its own
                log_level="warning",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._viewer = viewer

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._viewer.bell.close()
        super().handle_exit(sig, frame)

    def end(self) -> None:
        """From another thread."""
        self._viewer.bell.close()
        self.should_exit = True


def listening(port: int | None) -> socket.socket:
    """A socket that nobody outside this machine can reach."""
    for number in range(PORT, PORT + _NUM_TRIED) if port is None else [port]:
        door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((HOST, number))
            door.listen(128)
        except (OSError, OverflowError) as error:
            door.close()
            last = error
            continue
        return door
    if port is None:
        raise ConfigError(f"no port from {PORT} to {PORT + _NUM_TRIED - 1} is free: {last}")
    raise ConfigError(
        f"port {port} cannot be had: {getattr(last, 'strerror', last)}. Choose another with "
        "--port, or leave it out to take the next that is free."
    )


def has_display() -> bool:
    """Whether there is a screen on which a browser could open."""
    if platform.system() == "Linux":
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return "SSH_CONNECTION" not in os.environ


def _open(address: str) -> None:
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
