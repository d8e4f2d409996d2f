"""Environments of OpenEnv servers: `openenv:http://localhost:8000`, a folder, or a command."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from turnwise.config import EnvironmentConfig
from turnwise.env.adapters.openenv_server import find_server
from turnwise.env.base import BaseEnvironment
from turnwise.env.step_tool import EnvironmentStepTool
from turnwise.errors import EnvironmentFault, describe_error
from turnwise.tools.base import Tool
from turnwise.tools.types import ToolContext, ToolDefinition
from turnwise.types import StepResult

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

T = TypeVar("T")

_CONNECT_SECONDS = 30.0
_FREE_SECONDS = 100.0  # less than limits.reset_timeout, whose error would not say why
_ANSWER_SECONDS = 600.0
"""Of one message, for callers without a limit; an episode's limits are lower."""
_CLOSE_SECONDS = 1.0
_MAX_MESSAGE = 2**27
_ENDED = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Errors after which the server closes the session."""


class OpenEnvEnvironment(BaseEnvironment):
    """An environment of an OpenEnv server; each episode is a session there, reset with its seed.

    `source` is the server's URL; or the folder of an OpenEnv package, or a command with `{port}`,
    which are started here, once, and ended with this process. `headers` go with each request; a
    `$NAME` in them is an environment variable. `python` starts the server of a folder.
    `observation_field` is the only field of an observation that the agent reads. Other options are
    arguments of the server's `reset`. Each can also be set in the config's `params`.

    The server's schema decides what an action is: the agent's reply, if it has one field; calls of
    the tool `act`, if it has several; calls of the server's own tools, if it is an MCP environment,
    whose episode a reply without a call ends. A reward of None is 0.

    A row of a dataset with `split` and `index` selects a task; others are arguments of `reset` too.
    """

    max_steps = 1000

    def __init__(
        self,
        source: str,
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(config)
        self._source, self._given = source, options
        self._reset_options = {**self.config.params, **options}
        self._observation_field = self._reset_options.pop("observation_field", None)
        connection = (self._reset_options.pop(name, None) for name in ("headers", "python"))
        self._server = find_server(source, *connection)
        self._socket: ClientConnection | None = None
        self._seen = ""

    async def reset(self, seed: int | None = None) -> str:  # type: ignore[override]
        self._done, self.step_count = False, 0
        task = self.task or {}
        if task.keys() >= {"split", "index"}:
            task = {"split": task["split"], "index": task["index"]}
        data = {**self._reset_options, **task}
        if seed is not None:
            data["seed"] = seed % 2**31  # what every generator of random numbers takes
        return self._see(await self._in_loop(self._begin(data)))

    async def step(  # type: ignore[override]
        self, action: str
    ) -> tuple[str, float, bool, dict[str, Any]]:
        if self._socket is None:
            raise EnvironmentFault("step() was called before reset(). Begin with reset().")
        fields = self._read_action(action)
        if fields is None and self._server.is_mcp:  # an answer, after the calls
            self._done = True
            return "", 0.0, True, {}
        if fields is None:
            return "Invalid action: call the tool act.", 0.0, False, {"invalid_action": True}
        answer = await self._in_loop(self._ask("step", fields))
        if answer["type"] == "error":
            said = answer["data"]
            if said.get("code") != "VALIDATION_ERROR":
                raise self._fault(f"failed in a step: {said.get('message')}")
            errors = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in said.get("errors", ())]
            problem = "; ".join(errors) or said.get("message")
            return f"Invalid action: {problem}", 0.0, False, {"invalid_action": True}
        text, result = self._see(answer), answer["data"]
        info = dict(result.get("metadata") or {})
        if self._server.is_mcp and result["observation"].get("error"):
            info["invalid_action"] = True
        self._done = bool(result.get("done"))
        reward = result.get("reward")
        return text, 0.0 if reward is None else reward, self._done, info

    def get_tools(self) -> list[Tool]:
        return [_ServerTool(self, definition) for definition in self._server.tools]

    def get_state_description(self) -> str:
        state = {k: v for k, v in (self.state or {}).items() if k not in _COUNTERS}
        return f"{self._seen}\n{json.dumps(state)}" if state else self._seen

    def get_prompt_prefix(self) -> str:
        texts = [self._server.description]
        if self._server.reply_field is not None:
            name, field = self._server.reply_field
            about = [field.get("description"), ", ".join(map(str, field.get("enum", ())))]
            if any(about):
                texts.append(f"Your reply is the {name}: {'; '.join(filter(None, about))}")
        return "\n\n".join(filter(None, texts))

    def spawn(self) -> Self:
        return type(self)(self._source, self.config, **self._given)

    def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            self._server.thread.submit(_end(socket))

    def _read_action(self, text: str) -> dict[str, Any] | None:
        """Returns the fields of an action; None if they are not in a reply but in a call."""
        if self._server.reply_field is None:
            with suppress(ValueError):
                fields = json.loads(text)
                if isinstance(fields, dict) and (not self._server.is_mcp or "type" in fields):
                    return fields
            return None
        name, field = self._server.reply_field
        value: Any = text.strip() if "enum" in field else text
        if field.get("type", "string") != "string":
            with suppress(ValueError):
                value = json.loads(text)
        return {name: value}

    def _see(self, answer: Mapping[str, Any]) -> str:
        """Returns the observation as text: its only field, or each field with its name."""
        data = answer.get("data")
        fields = data.get("observation") if isinstance(data, Mapping) else None
        if not isinstance(fields, Mapping):
            expected = "{'type': 'observation', 'data': {'observation': {...}}}"
            raise self._fault(f"answered {answer!r:.200}, expected {expected}")
        if (chosen := self._observation_field) is not None:
            if chosen not in fields:
                raise self._fault(f"has no observation_field {chosen!r}: {', '.join(fields)}")
            shown = {chosen: fields[chosen]}
        elif self._server.is_mcp and "tool_name" in fields:
            shown = {"result": fields.get("error") or fields.get("result")}
        else:
            shown = {name: v for name, v in fields.items() if name != "metadata"}
            shown = {name: v for name, v in shown.items() if v not in (None, "", [], {})}
            shown = shown or dict(fields.get("metadata") or {})
        is_one = len(shown) == 1
        texts = [_text(v) if is_one else f"{name}: {_text(v)}" for name, v in shown.items()]
        self._seen = "\n".join(texts)
        return self._seen

    # -- the session -------------------------------------------------------------------------------

    async def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits work in the loop of the connections; what fails there is the server's fault."""
        from websockets.exceptions import WebSocketException

        loop = self._server.thread.loop
        assert loop is not None
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
        except (OSError, WebSocketException) as error:
            raise self._fault(f"was lost: {describe_error(error)}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._fault(f"answered what OpenEnv does not: {describe_error(error)}") from error

    async def _begin(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Opens a session and resets it; waits while the server has as many as it takes."""
        deadline = time.monotonic() + _FREE_SECONDS
        pause = 0.05
        while True:
            await self._connect()
            answer = await self._ask("reset", data)
            if answer["type"] != "error":
                return answer
            message = answer["data"].get("message")
            if answer["data"].get("code") != "CAPACITY_REACHED":
                raise self._fault(f"failed in its reset: {message}")
            if time.monotonic() > deadline:
                raise self._fault(
                    f"has had no free session for {_FREE_SECONDS:g} s: {message}. Raise "
                    "max_concurrent_envs in its create_app, or play fewer episodes at once."
                )
            await asyncio.sleep(pause)
            pause = min(1.0, 1.5 * pause)

    async def _connect(self) -> None:
        from websockets.asyncio.client import connect

        if self._socket is not None:
            await _end(self._socket)
        self._socket = await connect(
            f"ws{self._server.url.removeprefix('http')}/ws",
            additional_headers=self._server.headers,
            compression=None,
            open_timeout=_CONNECT_SECONDS,
            close_timeout=_CLOSE_SECONDS,
            ping_interval=None,  # an environment may block its server's loop; calls have deadlines
            max_size=_MAX_MESSAGE,
            proxy=True if self._server.uses_proxy else None,
        )

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a message and a request for the state; returns the answer, and keeps the state."""
        from websockets.exceptions import ConnectionClosed

        socket = self._socket
        assert socket is not None
        async with asyncio.timeout(_ANSWER_SECONDS):
            with suppress(ConnectionClosed):  # what the server said before that is still to be read
                await socket.send(json.dumps({"type": kind, "data": data}))
                await socket.send(json.dumps({"type": "state"}))
            answer: dict[str, Any] = json.loads(await socket.recv())
            if answer["type"] != "error" or answer["data"].get("code") not in _ENDED:
                state = json.loads(await socket.recv())
                self.state = state["data"] if state["type"] == "state" else None
        return answer

    def _fault(self, problem: str) -> EnvironmentFault:
        return EnvironmentFault(f"the OpenEnv server {self._server.url} {problem}")


_COUNTERS = ("episode_id", "step_count")
"""Fields of a state that differ between equal states."""


class _ServerTool(Tool):
    """An action that is not the agent's reply."""

    timeout = None  # the step has one, and an episode's calls have limits.tool_timeout

    def __init__(self, environment: OpenEnvEnvironment, definition: ToolDefinition) -> None:
        self.name, self.description = definition.name, definition.description
        self.parameters = definition.parameters
        self._is_mcp = environment._server.is_mcp
        self._step = EnvironmentStepTool(environment, step_timeout=_ANSWER_SECONDS)

    async def execute(self, _context: ToolContext, **arguments: Any) -> StepResult:
        call = {"type": "call_tool", "tool_name": self.name, "arguments": arguments}
        return await self._step.execute(json.dumps(call if self._is_mcp else arguments), _context)


async def _end(socket: ClientConnection) -> None:
    with suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await socket.send(json.dumps({"type": "close"}))
    with suppress(Exception):
        await socket.close()


def _text(value: Any) -> str:
    """Returns a field as text; what a tool of an MCP server returned, without its wrapping."""
    if isinstance(value, Mapping) and isinstance(value.get("content"), list):
        texts: list[Any] = [p.get("text") for p in value["content"] if isinstance(p, Mapping)]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    if isinstance(value, Mapping) and value.keys() == {"error_type", "message"}:
        return f"Error: {value['message']}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
