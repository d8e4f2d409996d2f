"""OpenEnv servers, at a URL or started here: what they say of their actions, tools and tasks."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

from turnwise.deadlines import LoopThread
from turnwise.errors import ConfigError, EnvironmentFault, did_you_mean
from turnwise.tools.types import ToolDefinition, argument_schemas
from turnwise.user_code import remember_use, require_use

PARAMS = ("headers", "observation_field", "python")
_START_SECONDS = 100.0  # less than limits.reset_timeout, whose error would not say why
_HTTP_SECONDS = 30.0
_END_SECONDS = 2.0
_PAGE = 1000

# All processes of a server end when the standard input of this shell does. turnwise holds it, so
# they also end after a `kill -9` of turnwise.
_SUPERVISOR = """
exec 3<&0
"$@" 3<&- </dev/null &
server=$!
(trap '' TERM; cat <&3 >/dev/null; kill -TERM -$$; sleep 2; kill -KILL -$$) &
wait $server
"""

_servers: dict[str, OpenEnvServer] = {}


def find_server(source: str, params: Mapping[str, Any]) -> OpenEnvServer:
    """Returns the server of a URL, a folder or a command, which all episodes here share."""
    if odd := next((name for name in params if name not in PARAMS), None):
        raise ConfigError(
            f"environment.params has {odd!r}, and an OpenEnv server is used with none of that name."
            f" {did_you_mean(odd, PARAMS)} Arguments of its reset() are the rows of a dataset."
        )
    key = json.dumps([source, dict(params)], sort_keys=True, default=str)
    server = _servers.setdefault(key, OpenEnvServer(source, params))
    server.open()
    return server


class OpenEnvServer:
    """One server. One that is started here ends with this process."""

    def __init__(self, source: str, params: Mapping[str, Any]) -> None:
        self.source = source
        self.url = source.rstrip("/")
        self.headers: dict[str, str] = params.get("headers") or {}
        self.thread = LoopThread(f"OpenEnv {source}"[:50])
        """Its event loop has the connections, so that any loop and any thread can use them."""
        self._python: str | None = params.get("python")
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Starts the server if it is to run here and does not, and learns its actions."""
        with self._lock:
            is_elsewhere = self.source.startswith(("http://", "https://"))
            if not is_elsewhere and (self._process is None or self._process.poll() is not None):
                self._start()
            _ = self.reply_field, self.tools, self.description  # a wrong URL fails now
            if self.thread.loop is None:
                self.thread.submit(asyncio.sleep(0)).outcome.result(_END_SECONDS)

    @property
    def proxies(self) -> bool:
        """Whether to use the proxies of this machine, which know other machines only."""
        return urlsplit(self.url).hostname not in ("localhost", "127.0.0.1", "::1")

    # -- what it says of itself --------------------------------------------------------------------

    @cached_property
    def reply_field(self) -> tuple[str, Mapping[str, Any]] | None:
        """The name and schema of the field that takes the agent's reply; None: it calls tools."""
        fields = argument_schemas(self._action_schema)
        return None if self.is_mcp or len(fields) != 1 else next(iter(fields.items()))

    @cached_property
    def is_mcp(self) -> bool:
        """Whether actions are calls of the tools of an MCP server."""
        # OpenEnv's base class of actions has no fields, and stands for such calls too.
        fields = argument_schemas(self._action_schema)
        return not fields or fields.get("type", {}).get("const") == "call_tool"

    @cached_property
    def tools(self) -> list[ToolDefinition]:
        """The tools of an MCP environment; one for an action that has several fields."""
        if not self.is_mcp:
            act = ToolDefinition("act", "Act in the environment.", self._action_schema)
            return [act] if self.reply_field is None else []
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        answer = self.ask("/mcp", request)
        tools = (answer.get("result") or {}).get("tools")
        if not tools:
            raise ConfigError(f"{self.url} takes calls of tools, and named none: {answer!r:.200}")
        definitions = []
        for tool in tools:
            schema = tool.get("inputSchema") or tool.get("input_schema") or {}
            parameters = {"properties": {}, **schema, "type": "object"}
            definitions.append(ToolDefinition(tool["name"], tool.get("description"), parameters))
        return definitions

    @cached_property
    def description(self) -> str:
        """What the environment says it is about; empty if it says nothing."""
        about = self.ask("/metadata")
        text = str(about.get("description") or "")
        return "" if text == f"{about.get('name')} environment" else text  # OpenEnv's default

    @cached_property
    def _action_schema(self) -> dict[str, Any]:
        """The schema of an action, without the field `metadata`, which all actions have."""
        answer = self.ask("/schema")
        schema = answer.get("action")
        if not isinstance(schema, dict):
            expected = "{'action': {'properties': ...}}. Is it an OpenEnv server?"
            raise ConfigError(f"{self.url}/schema answered {answer!r:.200}, expected {expected}")
        fields = dict(schema.get("properties") or {})
        fields.pop("metadata", None)
        return {**schema, "type": "object", "properties": fields}

    def ask(self, path: str, body: Any = None) -> Any:
        """Returns the JSON answer to a GET request, or to a POST request with a body."""
        import httpx2  # late: it takes long to import

        try:
            answer = httpx2.request(
                "GET" if body is None else "POST",
                f"{self.url}{path}",
                json=body,
                headers=self.headers,
                timeout=_HTTP_SECONDS,
                trust_env=self.proxies,
                follow_redirects=True,
            )
            if answer.is_error:
                raise ConfigError(
                    f"{self.url}{path} answered {answer.status_code}, expected what an OpenEnv "
                    f"server says there: {answer.text:.200}"
                )
            return answer.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"no OpenEnv server answers at {self.url}{path}: {error!r:.200}. Start it, or name "
                "its folder or command instead of its URL, and turnwise starts it."
            ) from error

    # -- its process -------------------------------------------------------------------------------

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command, folder = self._command(port)
        use = f"the OpenEnv server {self.source!r}"
        require_use(use)
        remember_use(use)
        self.close()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the server writes
        self._process = subprocess.Popen(
            ["sh", "-c", _SUPERVISOR, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
        atexit.register(self.close)
        self.url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with suppress(ConfigError):
                self.ask("/health")
                return
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self.close()
        ended = f"ended with exit code {code}" if code is not None else "did not answer in time"
        log.seek(max(0, os.fstat(log.fileno()).st_size - 1000))
        words = log.read().decode(errors="replace").strip()
        raise EnvironmentFault(f"the OpenEnv server {shlex.join(command)} {ended}. It wrote: {words}")

    def _command(self, port: int) -> tuple[list[str], Path | None]:
        """Returns the command that starts the server, and the folder to start it in."""
        folder = Path(self.source).expanduser().absolute()
        if not folder.is_dir():
            if "{port}" not in self.source:
                raise ConfigError(
                    f"openenv:{self.source} is no URL (http://...), no folder that exists, and no "
                    "command with {port}, such as 'openenv:python server.py --port {port}'"
                )
            return [word.replace("{port}", str(port)) for word in shlex.split(self.source)], None
        if not (folder / "openenv.yaml").is_file():
            raise ConfigError(f"{folder} has no openenv.yaml: it is not the folder of an OpenEnv")
        manifest = yaml.safe_load((folder / "openenv.yaml").read_text(encoding="utf-8"))
        own = folder / ".venv" / "bin" / "python"
        if self._python is not None or own.is_file():
            python = [str(Path(self._python or own).expanduser().absolute())]
        elif shutil.which("uv"):
            python = ["uv", "run", "--project", str(folder), "python"]
        else:
            raise ConfigError(
                f"there is no {own}, and uv, which would make it, is not installed. Make it there "
                "(python -m venv .venv; .venv/bin/pip install -e .), or name a Python that has "
                "the packages of the environment: environment.params.python"
            )
        where = ["--host", "127.0.0.1", "--port", str(port)]
        return [*python, "-m", "uvicorn", manifest.get("app", "server.app:app"), *where], folder

    def close(self) -> None:
        """Ends the processes that were started here. May be called twice."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            atexit.unregister(self.close)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.stdin.close()  # whatever is left then is killed
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)


def task_rows(source: str, split: str | None) -> list[dict[str, Any]]:
    """Returns the tasks of a split as rows: the name of the split, the index, and the task."""
    server = find_server(source, {})
    try:
        base = f"/{quote(str(server.ask('/list_environments')[0]))}"
        splits = [str(one["name"]) for one in server.ask(f"{base}/splits")]
    except (ConfigError, LookupError, TypeError) as error:
        raise ConfigError(
            f"openenv:{source} has no tasks: {error}. Leave the dataset out: its episodes differ "
            "by their seeds."
        ) from error
    split = splits[0] if split is None and len(splits) == 1 else split
    if split not in splits:
        hint = did_you_mean(split or "", splits)
        raise ConfigError(f"dataset.split got {split!r} for openenv:{source}. {hint}")
    count = server.ask(f"{base}/num_tasks", {"split": split})["num_tasks"]
    rows: list[dict[str, Any]] = []
    for start in range(0, count, _PAGE):
        page = {"split": split, "start": start, "stop": min(count, start + _PAGE)}
        tasks = server.ask(f"{base}/task_range", page)["tasks"]
        rows += [{"split": split, "index": start + n, "task": t} for n, t in enumerate(tasks)]
    return rows
