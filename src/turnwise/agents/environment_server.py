"""Serves an environment by OpenEnv's protocol (0.10), to trainers and agents that speak it.

A session is a WebSocket at `/ws`, with messages such as `{"type": "reset", "data": {"seed": 3}}`.
An action is `{"message": text}`. An environment with tools is served as an MCP environment: an
action calls one of its tools, or `environment_step` with the text. MCP's clients use `/mcp`.
"""

import asyncio
import inspect
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from turnwise.agents import _extra as _extra  # isort: skip - its error names what to install
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from turnwise.config import LimitsConfig
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import close_environment
from turnwise.env.step_tool import EnvironmentStepTool
from turnwise.episode.environment_session import EnvironmentSession
from turnwise.episode.watchdog import EpisodeTimer
from turnwise.errors import EnvironmentFault, describe_error
from turnwise.http_server import is_same_site
from turnwise.tools import ToolCall, ToolContext, ToolFailure, ToolRegistry, ToolResult

_IDLE_SECONDS = 3600.0
"""A session that was not used for so long makes room for another one."""
_TEXT = {"type": "string"}


class _Refused(Exception):
    """A message is answered with an error, which has one of OpenEnv's codes."""

    def __init__(self, code: str, message: str, **data: Any) -> None:
        super().__init__(message)
        self.data = {"message": message, "code": code, **data}


class _Session:
    """The episodes of one client, one after the other, each in a fresh environment."""

    def __init__(self, server: "EnvironmentServer") -> None:
        self.used = time.monotonic()
        self.state: dict[str, Any] = {"episode_id": None, "step_count": 0}
        self._server = server
        self._lock = asyncio.Lock()  # one client may use its WebSocket and HTTP at the same time
        self._episode: EnvironmentSession | None = None
        self._tools = ToolRegistry()
        self._context = ToolContext()

    async def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        server, seed = self._server, data.get("seed")
        if not isinstance(seed, int | None):
            raise _invalid("seed", f"expected an integer, got {seed!r:.80}")
        task = server.find_task(data)
        async with self._lock:
            await self.close()
            self._episode = EnvironmentSession(
                server.factory, server.limits, EpisodeTimer(), task=task
            )
            text, _ = await self._episode.start(seed)
            step = EnvironmentStepTool(step_timeout=server.limits.step_timeout)
            self._tools = ToolRegistry([step]).bind(self._episode.environment)
            self._context = self._tools.open_context(self._episode.environment)
            self.state = {"episode_id": data.get("episode_id"), "step_count": 0}
        return {"observation": {"text": text, "metadata": {}}, "reward": None, "done": False}

    async def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        seen: dict[str, Any]
        match action:
            case {"type": "list_tools"} if self._server.tools:
                return {"observation": {"tools": self._server.tools}, "reward": None, "done": False}
            case {"tool_name": str(name)} if self._server.tools:
                result = await self.call(name, action.get("arguments") or {})
                error = {"error_type": "execution_error", "message": result.text}
                seen = {"result": result.text} if result.success else {"error": error}
                seen = {"tool_name": name, "result": None, "error": None, **seen}
            case {"message": str(text)} if not self._server.tools:
                result = await self.call("environment_step", {"action": text})
                if not result.success:  # such as a step after the end
                    raise _Refused("EXECUTION_ERROR", result.text)
                seen = {"text": result.text}
            case _:
                raise _invalid("action", f"expected {[*self._server.action]}, got {action!r:.200}")
        assert self._episode is not None
        assert self._episode.environment is not None
        info, reward, done = {}, None, self._episode.environment.done
        if (step := result.step) is not None:
            info, reward, done = step.info, step.reward, step.done
        observation = {**seen, "metadata": info}
        return {"observation": observation, "reward": reward, "done": done, "metadata": info}

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        async with self._lock:
            self.used = time.monotonic()
            if self._episode is None:
                raise _Refused("EXECUTION_ERROR", "there is no episode: send a reset first")
            result = await self._tools.execute_async(ToolCall(name, arguments), self._context)
            if result.failure is ToolFailure.ENVIRONMENT:
                raise EnvironmentFault(result.text)
            self.state["step_count"] += 1
            return result

    async def close(self) -> None:
        await self._context.aclose()
        if self._episode is not None:
            await self._episode.close()
            self._episode = None


class EnvironmentServer:
    """An environment as the app of an OpenEnv server; `rows` are the tasks of each split."""

    def __init__(
        self,
        name: str,
        factory: EnvironmentFactory,
        limits: LimitsConfig,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
        max_sessions: int,
    ) -> None:
        self.factory, self.limits, self._rows = factory, limits, rows
        self._max_sessions = max_sessions
        self._sessions: dict[str, _Session] = {}
        environment = factory()
        description = environment.get_prompt_prefix() or inspect.getdoc(environment) or name
        registry = ToolRegistry([EnvironmentStepTool()]).bind(environment)
        close_environment(environment)
        self.tools: list[dict[str, Any]] = []
        """As MCP describes them; empty if the environment has none of its own."""
        self.action: dict[str, Any] = {"message": _TEXT}
        if len(registry) > 1:
            for tool in registry.definitions:
                schemas = {"inputSchema": tool.parameters, "input_schema": tool.parameters}
                self.tools.append({"name": tool.name, "description": tool.description, **schemas})
            kind = {**_TEXT, "const": "call_tool", "default": "call_tool"}
            self.action = {"type": kind, "tool_name": _TEXT, "arguments": {"type": "object"}}
        required = [field for field in self.action if field in ("message", "tool_name")]
        action = {"type": "object", "properties": self.action, "required": required}
        schema = {"action": action, "observation": {"type": "object"}, "state": {"type": "object"}}
        answers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "GET /health": lambda _: {"status": "healthy"},
            "GET /metadata": lambda _: {"name": name, "description": description},
            "GET /schema": lambda _: schema,
            "GET /openapi.json": lambda _: api,
            "GET /list_environments": lambda _: [name],
            "POST /mcp": self._mcp,
        }
        if rows:
            answers[f"GET /{name}/splits"] = lambda _: [{"name": s, "type": s} for s in rows]
            for what in ("num_tasks", "tasks", "task_range", "task"):
                answers[f"POST /{name}/{what}"] = partial(self._tasks, what)
        paths: dict[str, Any] = {
            route.split()[1]: {route.split()[0].lower(): {}} for route in answers
        }
        api = {"openapi": "3.1.0", "info": {"title": name, "version": "1.0.0"}, "paths": paths}
        routes = [_route(route, answer) for route, answer in answers.items()]
        self.app = Starlette(routes=[*routes, WebSocketRoute("/ws", self._serve)])

    # -- tasks -------------------------------------------------------------------------------------

    def find_task(self, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the row that `split` and `index` select, or else all arguments of the reset."""
        if not self._rows or "index" not in data:
            return {k: v for k, v in data.items() if k not in ("seed", "episode_id")} or None
        rows, index = self._split(data), data["index"]
        if not isinstance(index, int) or not 0 <= index < len(rows):
            raise _invalid("index", f"expected 0 to {len(rows) - 1}, got {index!r:.80}")
        return dict(rows[index])

    def _tasks(self, what: str, body: Mapping[str, Any]) -> dict[str, Any]:
        rows = self._split(body)
        if what == "num_tasks":
            return {"num_tasks": len(rows)}
        if what == "task":
            return {"task": self.find_task(body)}
        numbers = range(len(rows))[body.get("start") : body.get("stop")]
        return {"tasks": [rows[number] for number in numbers]}

    def _split(self, data: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        if data.get("split") not in self._rows:
            raise _invalid("split", f"expected one of {[*self._rows]}, got {data.get('split')!r}")
        return self._rows[data["split"]]

    # -- sessions ----------------------------------------------------------------------------------

    async def _open(self) -> str:
        """Returns the key of a new session."""
        now = time.monotonic()
        for key in [k for k, s in self._sessions.items() if s.used < now - _IDLE_SECONDS]:
            await self._close(key)
        if (most := self._max_sessions) <= len(self._sessions):
            counts = {"active_sessions": len(self._sessions), "max_sessions": most}
            raise _Refused("CAPACITY_REACHED", f"all {most} sessions are in use", **counts)
        key = secrets.token_hex(16)
        self._sessions[key] = _Session(self)
        return key

    async def _close(self, key: str) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            await session.close()

    async def _serve(self, socket: WebSocket) -> None:
        """Serves a WebSocket: a session of its own, or the one of an MCP client."""
        _check_site(socket)
        await socket.accept()
        opened = None
        try:
            key = socket.query_params.get("session_id") or (opened := await self._open())
            if (session := self._sessions.get(key)) is None:
                raise _Refused("SESSION_ERROR", f"there is no session {key!r:.80}")
            while (reply := await _reply(session, await socket.receive_text())) is not None:
                await socket.send_text(_dumps(reply))
            await socket.close()
        except _Refused as error:
            await socket.send_text(_dumps({"type": "error", "data": error.data}))
            await socket.close()
        except WebSocketDisconnect:
            pass
        finally:
            if opened is not None:
                await self._close(opened)

    async def _mcp(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a JSON-RPC request: MCP's about tools, OpenEnv's about sessions."""
        params = request.get("params") or {}
        key = params.get("session_id")
        error = {"code": -32601, "message": f"no method {request.get('method')!r:.80} here"}
        answer: dict[str, Any] = {"error": error}
        try:
            match request.get("method"):
                case "openenv/session/create":
                    answer = {"result": {"session_id": await self._open()}}
                case "openenv/session/close":
                    await self._close(str(key))
                    answer = {"result": {"session_id": key, "closed": True}}
                case "tools/list" if self.tools:
                    answer = {"result": {"tools": self.tools}}
                case "tools/call" if key in self._sessions:
                    result = await self._sessions[key].call(params["name"], params["arguments"])
                    content = [{"type": "text", "text": result.text}]
                    answer = {"result": {"content": content, "data": result.value}}
                    if not result.success:
                        answer = {"error": {"code": -32602, "message": result.text}}
        except Exception as failure:
            answer = {"error": {"code": -32603, "message": describe_error(failure)}}
        return {"jsonrpc": "2.0", "id": request.get("id"), **answer}


async def _reply(session: _Session, frame: str) -> dict[str, Any] | None:
    """Returns the answer to a message of a WebSocket; None if it ends the session."""
    try:
        message = json.loads(frame)
        match message:
            case {"type": "reset"}:
                answer = await session.reset(message.get("data") or {})
                return {"type": "observation", "data": answer}
            case {"type": "step", "data": dict(action)}:
                return {"type": "observation", "data": await session.step(action)}
            case {"type": "state"}:
                return {"type": "state", "data": session.state}
            case {"type": "close"}:
                return None
            case _:
                raise _Refused("UNKNOWN_TYPE", f"unknown message: {message!r:.200}")
    except _Refused as error:
        return {"type": "error", "data": error.data}
    except Exception as error:
        code = "INVALID_JSON" if isinstance(error, json.JSONDecodeError) else "EXECUTION_ERROR"
        return {"type": "error", "data": {"message": describe_error(error), "code": code}}


def _route(route: str, function: Callable[[dict[str, Any]], Any]) -> Route:
    method, path = route.split()

    async def handle(request: Request) -> Response:
        _check_site(request)
        try:
            body = json.loads(await request.body() or b"{}")
            answer = function(body if isinstance(body, dict) else {})
            answer = await answer if inspect.isawaitable(answer) else answer
        except (_Refused, ValueError) as error:
            raise HTTPException(422, str(error)) from error
        return Response(_dumps(answer), media_type="application/json")

    return Route(path, handle, methods=[method])


def _check_site(request: Request | WebSocket) -> None:
    """Refuses pages of other web sites, which a browser lets connect to servers on its machine."""
    origins = request.headers.getlist("origin")
    if origins and not is_same_site(request.headers.getlist("host"), origins):
        raise HTTPException(403, "pages of other web sites may not use this server")


def _invalid(where: str, problem: str) -> _Refused:
    errors = [{"loc": [where], "msg": problem, "type": "value_error"}]
    return _Refused("VALIDATION_ERROR", f"{where}: {problem}", errors=errors)


def _dumps(value: Any) -> str:
    return json.dumps(value, default=str)
