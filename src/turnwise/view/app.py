"""The HTTP endpoints of the page. They return JSON, and write nothing but a user's notes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from turnwise.bounded_files import parse_json
from turnwise.errors import ConfigError
from turnwise.view.compare import compare
from turnwise.view.events import Notifier
from turnwise.view.export import export_episode
from turnwise.view.library import Library
from turnwise.view.notes import NotesNotSaved
from turnwise.view.payloads import episode_payload, json_bytes, tokens_payload
from turnwise.view.query import EpisodeQuery, neighbours, same_seed, same_task
from turnwise.view.report import export_run
from turnwise.view.run_files import legible_path
from turnwise.view.runs import NotFound, ViewedRun
from turnwise.view.security import Guard
from turnwise.view.timeline import timeline
from turnwise.view.watcher import Watcher

_LOG = logging.getLogger("turnwise")
PAGE = Path(__file__).parent / "page"
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
"""Types that not every system knows."""
Answer: TypeAlias = Callable[["Viewer", Request], Any]


class Viewer:
    """A library of runs that is kept current, and the answers about it."""

    def __init__(self, library: Library, is_read_only: bool = False) -> None:
        self.library = library
        self.write_token = None if is_read_only else secrets.token_urlsafe(24)
        """A request that saves notes must have it; None: notes are never saved."""
        self.notifier = Notifier()
        self.watcher = Watcher(library, self.notifier.notify)

    def runs(self, request: Request) -> dict[str, Any]:
        return {
            "runs": [run.summary() for run in self.library.runs],
            "places": [legible_path(place.absolute()) for place in self.library.places],
            "write_token": self.write_token,
        }

    def run(self, request: Request) -> dict[str, Any]:
        return self._run(request).detail()

    def metrics(self, request: Request) -> dict[str, Any]:
        run = self._run(request, with_episodes=False)
        return run.metrics.columns(_number(request, "since"))

    def compare(self, request: Request) -> dict[str, Any]:
        keys = dict.fromkeys((request.query_params.get("runs") or "").split(","))
        return compare([self.library.get(key) for key in keys])

    def save_notes(self, run: ViewedRun, body: bytes) -> dict[str, Any]:
        changes = parse_json(body, "the request")
        if not isinstance(changes, dict):
            raise ConfigError(f"notes got {changes!r:.80}, expected a JSON object")
        notes = run.change_notes(changes)
        self.notifier.notify()
        return notes

    def episodes(self, request: Request) -> dict[str, Any]:
        run = self._run(request)
        query = EpisodeQuery.parse(request.query_params.multi_items())
        return {**query.run(run.episodes), "indexed": run.indexed()}

    def episode(self, request: Request) -> dict[str, Any]:
        run = self._run(request)
        key, place, episode = run.episode(request.path_params["id"])
        previous, following = neighbours(run.episodes, *key, place)
        return {
            **episode_payload(*key, place, episode),
            "previous": previous,
            "next": following,
        }

    def tokens(self, request: Request) -> dict[str, Any]:
        run = self._run(request)
        _, _, episode = run.episode(request.path_params["id"])
        return tokens_payload(episode, _number(request, "agent"), run.token_texts)

    def seed(self, request: Request) -> dict[str, Any]:
        kind = request.query_params.get("kind")
        episodes = self._run(request).episodes
        return {"episodes": same_seed(episodes, request.path_params["seed"], kind)}

    def task(self, request: Request) -> dict[str, Any]:
        kind = request.query_params.get("kind")
        episodes = self._run(request).episodes
        return {"episodes": same_task(episodes, request.path_params["key"], kind)}

    def timeline(self, request: Request) -> dict[str, Any]:
        run, step = self._run(request), int(request.path_params["step"])
        kind = request.query_params.get("kind") or "train"
        episodes, phases = run.step_episodes((kind, step))
        return timeline(kind, step, episodes, phases, run.metrics.at(step))

    def export(self, request: Request) -> Response:
        run = self._run(request)
        key, place, episode = run.episode(request.path_params["id"])
        page = export_episode(run.key, *key, place, episode, run.token_texts)
        return _download(page, f"{run.key}-{key[0]}-{key[1]}-{place}.html")

    def export_run(self, request: Request) -> Response:
        run = self._run(request)
        return _download(export_run(run), f"{run.key}.html")

    def changes(self) -> bytes:
        """Return the event that is sent to pages when something changed."""
        runs = self.library.runs
        return json_bytes({"runs": [_state(run) for run in runs]})

    def _run(self, request: Request, *, with_episodes: bool = True) -> ViewedRun:
        run = self.library.get(request.path_params["run"])
        is_new = run.open_episodes() if with_episodes else run.refresh()
        if is_new:  # the watcher would not report this change again
            self.notifier.notify()
        return run


def _state(run: ViewedRun) -> dict[str, Any]:
    summary = run.summary()
    names = ("key", "step", "status", "is_live", "num_episodes", "indexed", "notes", "problems")
    return {name: summary[name] for name in names}


def make_app(viewer: Viewer, port: int, on_start: Callable[[], None] | None = None) -> ASGIApp:
    """Return the app behind the guard that checks every request."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        viewer.notifier.attach()
        viewer.watcher.start()
        if on_start is not None:
            on_start()
        yield
        viewer.notifier.close()
        viewer.watcher.stop()

    async def events(request: Request) -> Response:
        headers = {"cache-control": "no-store"}
        if request.method == "HEAD":
            return Response(None, 200, headers, media_type="text/event-stream")
        stream = viewer.notifier.stream(viewer.changes)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def notes(request: Request) -> Response:
        run, body = viewer.library.get(request.path_params["run"]), await request.body()
        return _json(await asyncio.to_thread(viewer.save_notes, run, body))

    run = "/api/runs/{run}"
    routes = [
        Route("/", _asset),
        Route("/assets/{name:path}", _asset),
        Route("/api/events", events),
        Route("/api/compare", _answer(viewer, Viewer.compare)),
        Route("/api/runs", _answer(viewer, Viewer.runs)),
        Route(run, _answer(viewer, Viewer.run)),
        Route(f"{run}/metrics", _answer(viewer, Viewer.metrics)),
        Route(f"{run}/notes", notes, methods=["PATCH"]),
        Route(f"{run}/episodes", _answer(viewer, Viewer.episodes)),
        Route(f"{run}/episodes/{{id}}", _answer(viewer, Viewer.episode)),
        Route(f"{run}/episodes/{{id}}/tokens", _answer(viewer, Viewer.tokens)),
        Route(f"{run}/seeds/{{seed}}", _answer(viewer, Viewer.seed)),
        Route(f"{run}/tasks/{{key}}", _answer(viewer, Viewer.task)),
        Route(f"{run}/steps/{{step:int}}/timeline", _answer(viewer, Viewer.timeline)),
        Route("/export/{run}/{id}.html", _answer(viewer, Viewer.export)),
        Route("/export/{run}.html", _answer(viewer, Viewer.export_run)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            NotFound: _failed(404),
            NotesNotSaved: _failed(403),
            ConfigError: _failed(400),
            HTTPException: _http_failure,
            Exception: _failed(500),
        },
    )
    return Guard(app, port, viewer.write_token)


def _answer(viewer: Viewer, answer: Answer) -> Callable[[Request], Response]:
    """Run a request in a thread, so that a slow file does not delay other requests."""

    def endpoint(request: Request) -> Response:
        response = answer(viewer, request)
        return response if isinstance(response, Response) else _json(response)

    return endpoint


def _json(data: Any, status: int = 200) -> Response:
    return Response(
        json_bytes(data), status, {"cache-control": "no-store"}, media_type="application/json"
    )


def _download(page: str, name: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(page, 200, headers, media_type="text/html; charset=utf-8")


def _failed(status: int) -> Callable[[Request, Exception], Response]:
    def handler(request: Request, error: Exception) -> Response:
        if status == 500:
            _LOG.error("%s failed: %s: %s", request.url.path, type(error).__name__, error)
        return _json({"error": str(error) or type(error).__name__}, status)

    return handler


def _http_failure(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    return _json({"error": f"{request.url.path[:200]}: there is nothing here"}, status)


def _number(request: Request, name: str) -> int:
    value = request.query_params.get(name) or "0"
    if not value.lstrip("-").isdecimal() or len(value) > 18:
        raise ConfigError(f"{name} got {value[:80]!r}, expected a whole number")
    return int(value)


def _asset(request: Request) -> Response:
    """Return a file of the page, if its name is among the known ones."""
    name = request.path_params.get("name", "index.html")
    files = {path.relative_to(PAGE).as_posix(): path for path in PAGE.rglob("*") if path.is_file()}
    path = files.get(name)
    if path is None:
        raise NotFound(f"the page has no file {name[:80]!r}")
    headers = {"cache-control": "no-cache"}
    return FileResponse(path, headers=headers, media_type=_TYPES.get(path.suffix))
