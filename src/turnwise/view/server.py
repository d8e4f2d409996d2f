"""The viewer's server: the HTTP endpoints of the page, on this machine alone, until Ctrl-C.

The endpoints return JSON, and write nothing but a user's notes.
"""

import asyncio
import contextlib
import logging
import mimetypes
import os
import platform
import secrets
import socket
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from turnwise.errors import ConfigError
from turnwise.http_server import AppServer, open_listener
from turnwise.json_files import parse_json
from turnwise.progress.lines import count
from turnwise.view.compare import compare
from turnwise.view.episodes import find_episodes, neighbours
from turnwise.view.export import export_episode
from turnwise.view.payloads import episode_payload, json_bytes, timeline, tokens_payload
from turnwise.view.report import export_run
from turnwise.view.run_files import NotesNotSaved, legible_path
from turnwise.view.runs import Library, NotFound, ViewedRun
from turnwise.view.security import Guard

HOST = "127.0.0.1"
PORT = 8765
_NUM_TRIED = 100
_FIRST_READ_SECONDS = 2.0

_LOG = logging.getLogger("turnwise")
for _ending, _type in ((".js", "text/javascript"), (".woff2", "font/woff2")):
    mimetypes.add_type(_type, _ending)  # not every system knows them
PAGE = Path(__file__).parent / "page"
_IN_EVENTS = ("key", "step", "status", "is_live", "num_episodes", "indexed", "notes", "problems")
_POLL_SECONDS = 1.0
_POLL_SHARE = 3
_TICK_SECONDS = 0.1
"""How often a stream of events looks for changes."""


class Viewer:
    """A library of runs that is kept current, and the answers about it."""

    def __init__(self, library: Library, is_read_only: bool = False) -> None:
        self.library = library
        self.write_token = None if is_read_only else secrets.token_urlsafe(24)
        """A request that saves notes must have it; None: notes are never saved."""
        self.is_closed = False
        """Whether all streams of events end, so that the server can stop."""
        self._num_changes = 0

    def note_change(self) -> None:
        """Let every open stream of events tell that something changed; any thread may call this."""
        self._num_changes += 1

    async def watch(self) -> None:
        """Keep the library current, until this is cancelled."""
        while True:
            started = time.monotonic()
            try:
                if await asyncio.to_thread(self.library.refresh):
                    self.note_change()
            except Exception:  # of one bad folder; the others are to stay current
                _LOG.exception("The list of runs could not be brought up to date.")
            # Polling thousands of runs takes long; most of the time belongs to the page's requests.
            pause = max(_POLL_SECONDS, _POLL_SHARE * (time.monotonic() - started))
            indexed = [run.indexed() for run in self.library.runs]
            if any(files["files"] < files["of"] for files in indexed):
                pause = 0.0
            await asyncio.sleep(pause)

    async def events(self, request: Request) -> Response:
        """Return a stream of the state of all runs now, and again after each change."""

        async def stream() -> AsyncIterator[bytes]:
            num_told = -1
            yield b"retry: 2000\n\n"
            while not self.is_closed:
                if num_told != self._num_changes:
                    num_told = self._num_changes
                    yield b"event: runs\ndata: " + await asyncio.to_thread(self._state) + b"\n\n"
                await asyncio.sleep(_TICK_SECONDS)

        return StreamingResponse(stream(), media_type="text/event-stream")

    def _state(self) -> bytes:
        runs = [run.summary() for run in self.library.runs]
        return json_bytes({"runs": [{name: run[name] for name in _IN_EVENTS} for run in runs]})

    def runs(self, request: Request) -> dict[str, Any]:
        return {
            "runs": [run.summary() for run in self.library.runs],
            "places": [legible_path(folder.absolute()) for folder in self.library.folders],
            "write_token": self.write_token,
        }

    def run(self, request: Request) -> dict[str, Any]:
        return self._run(request).detail()

    def metrics(self, request: Request) -> dict[str, Any]:
        run = self._run(request, with_episodes=False)
        return run.metrics.columns(_number(request, "since"))

    def compare(self, request: Request) -> dict[str, Any]:
        keys = dict.fromkeys(request.query_params.get("runs", "").split(","))
        return compare([self.library.get(key) for key in keys])

    async def save_notes(self, request: Request) -> Response:
        run, body = self.library.get(request.path_params["run"]), await request.body()
        changes = parse_json(body, "the request")
        notes = await asyncio.to_thread(run.change_notes, changes)
        self.note_change()
        return _json(notes)

    def episodes(self, request: Request) -> dict[str, Any]:
        run = self._run(request)
        listed = find_episodes(run.episodes, request.query_params.multi_items())
        return {**listed, "indexed": run.indexed()}

    def episode(self, request: Request) -> dict[str, Any]:
        run = self._run(request)
        (kind, step), index, episode = run.episode(request.path_params["id"])
        previous, following = neighbours(run.episodes, kind, step, index)
        payload = episode_payload(kind, step, index, episode)
        return {**payload, "previous": previous, "next": following}

    def tokens(self, request: Request) -> dict[str, Any]:
        run = self._run(request)
        _, _, episode = run.episode(request.path_params["id"])
        return tokens_payload(episode, _number(request, "agent"), run.token_texts)

    def timeline(self, request: Request) -> dict[str, Any]:
        run, step = self._run(request), int(request.path_params["step"])
        kind = request.query_params.get("kind") or "train"
        episodes, phases = run.step_episodes((kind, step))
        return timeline(kind, step, episodes, phases, run.metrics.at(step))

    def export(self, request: Request) -> Response:
        run = self._run(request)
        if "id" in request.path_params:
            (kind, step), index, episode = run.episode(request.path_params["id"])
            page = export_episode(run.key, kind, step, index, episode, run.token_texts)
            name = f"{run.key}-{kind}-{step}-{index}"
        else:
            page, name = export_run(run), run.key
        headers = {"content-disposition": f'attachment; filename="{name}.html"'}
        return Response(page, 200, headers, media_type="text/html; charset=utf-8")

    def _run(self, request: Request, *, with_episodes: bool = True) -> ViewedRun:
        run = self.library.get(request.path_params["run"])
        is_new = run.open_episodes() if with_episodes else run.refresh()
        if is_new:  # the watcher would not report this change again
            self.note_change()
        return run


def make_app(viewer: Viewer, on_start: Callable[[], None] | None = None) -> ASGIApp:
    """Return the app behind the guard that checks every request."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(viewer.watch())
        if on_start is not None:
            on_start()
        yield
        watching.cancel()

    answers = {
        "/api/compare": viewer.compare,
        "/api/runs": viewer.runs,
        "/api/runs/{run}": viewer.run,
        "/api/runs/{run}/metrics": viewer.metrics,
        "/api/runs/{run}/episodes": viewer.episodes,
        "/api/runs/{run}/episodes/{id}": viewer.episode,
        "/api/runs/{run}/episodes/{id}/tokens": viewer.tokens,
        "/api/runs/{run}/steps/{step:int}/timeline": viewer.timeline,
        "/export/{run}/{id}.html": viewer.export,
        "/export/{run}.html": viewer.export,
    }
    routes = [
        Route("/", _index),
        Mount("/assets", StaticFiles(directory=PAGE)),
        Route("/api/events", viewer.events, methods=["GET"]),
        Route("/api/runs/{run}/notes", viewer.save_notes, methods=["PATCH"]),
        *(Route(path, _endpoint(answer)) for path, answer in answers.items()),
    ]
    failures = dict.fromkeys((HTTPException, ConfigError, Exception), _failed)
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=failures)
    return Guard(app, viewer.write_token)


def _endpoint(answer: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """Starlette runs a plain function in a thread: a slow file does not delay other requests."""

    def endpoint(request: Request) -> Response:
        response = answer(request)
        return response if isinstance(response, Response) else _json(response)

    return endpoint


def _index(request: Request) -> Response:
    return FileResponse(PAGE / "index.html")


def _json(data: Any, status: int = 200) -> Response:
    return Response(json_bytes(data), status, media_type="application/json")


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        why = f"{request.url.path[:200]}: there is nothing here"
        return _json({"error": why}, error.status_code)
    statuses = {NotFound: 404, NotesNotSaved: 403, ConfigError: 400, Exception: 500}
    status = next(number for kind, number in statuses.items() if isinstance(error, kind))
    if status == 500:
        _LOG.error("%s failed: %s: %s", request.url.path, type(error).__name__, error)
    return _json({"error": str(error) or type(error).__name__}, status)


def _number(request: Request, name: str) -> int:
    value = request.query_params.get(name) or "0"
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name} got {value[:80]!r}, expected a whole number") from None


# ---- on this machine ----


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
        what = f"{count(len(library.runs), 'run')} at"
        if not library.runs:
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
