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
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

from turnwise.deadlines import LoopThread
from turnwise.errors import ConfigError, EnvironmentFault, describe_error, did_you_mean
from turnwise.tools.types import ToolDefinition, argument_schemas
from turnwise.user_code import remember_use, require_use

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


def find_server(
    source: str, headers: Mapping[str, str] | None = None, python: str | None = None
) -> OpenEnvServer:
    """Returns the server of a URL, a folder or a command, which all episodes here share."""
    key = json.dumps([source, headers, python], sort_keys=True)
    server = _servers.setdefault(key, OpenEnvServer(source, headers or {}, python))
    server.open()
    return server


class OpenEnvServer:
    """One server. One that is started here ends with this process."""

    is_mcp: bool
    """Whether actions are calls of the tools of an MCP server."""
    reply_field: tuple[str, Mapping[str, Any]] | None
    """The name and schema of the field that takes the agent's reply; None: it calls `tools`."""
    tools: list[ToolDefinition]
    description: str = ""

    def __init__(self, source: str, headers: Mapping[str, str], python: str | None) -> None:
        self.url = source.rstrip("/")
        # A token stays in its environment variable: settings are written into the run folder.
        self.headers = {name: os.path.expandvars(value) for name, value in headers.items()}
        self.thread = LoopThread(f"OpenEnv {source}"[:50])
        """Its event loop has the connections, so that any loop and any thread can use them."""
        self._source, self._python = source, python
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Starts the server if it is to run here and does not, and learns its actions."""
        use = f"the OpenEnv server {self._source!r}"
        require_use(use)
        remember_use(use)
        with self._lock:
            is_elsewhere = self._source.startswith(("http://", "https://"))
            if not is_elsewhere and (self._process is None or self._process.poll() is not None):
                self._start()
            if self.thread.loop is None:
                self._describe()
                self.thread.submit(asyncio.sleep(0)).outcome.result(_END_SECONDS)

    @property
    def uses_proxy(self) -> bool:
        return urlsplit(self.url).hostname not in ("localhost", "127.0.0.1", "::1")

    def _describe(self) -> None:
        """Reads the schema of actions, the tools of an MCP environment, and what it is about."""
        answer = self.ask("/schema")
        try:
            schema = {**answer["action"], "type": "object"}
            schema["properties"] = dict(schema.get("properties", {}))
            schema["properties"].pop("metadata", None)  # which all actions have
            fields = argument_schemas(schema)
            # OpenEnv's base class of actions has no fields, and stands for calls of tools too.
            self.is_mcp = not fields or fields.get("type", {}).get("const") == "call_tool"
            self.reply_field = None
            self.tools = [ToolDefinition("act", "Act in the environment.", schema)]
            if self.is_mcp:
                request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
                answer = self.ask("/mcp", request)
                self.tools = []
                for tool in answer["result"]["tools"]:
                    given = tool.get("inputSchema") or tool.get("input_schema") or {}
                    arguments = {"properties": {}, **given, "type": "object"}
                    about = tool.get("description") or ""
                    self.tools.append(ToolDefinition(tool["name"], about, arguments))
            elif len(fields) == 1:
                self.reply_field, self.tools = next(iter(fields.items())), []
            answer = self.ask("/metadata")
            if answer.get("description") != f"{answer.get('name')} environment":  # the default
                self.description = answer.get("description") or ""
        except (LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self.url} does not answer as an OpenEnv server: {answer!r:.300} has not what is "
                f"expected there ({describe_error(error)})"
            ) from error

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
                trust_env=self.uses_proxy,
                follow_redirects=True,
            )
            if not answer.is_error:
                return answer.json()
            problem = f"status {answer.status_code}, {answer.text:.200}"
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            problem = describe_error(error)
        raise ConfigError(
            f"there is no OpenEnv server at {self.url}: {path} gave {problem}. Start it, or name "
            "its folder or its command instead of its URL, and turnwise starts it."
        )

    # -- its process -------------------------------------------------------------------------------

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command, folder = self._command(port)
        self.close()
        log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the server writes
        self._process = process = subprocess.Popen(
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
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(ConfigError):
                self.ask("/health")
                return
            time.sleep(0.1)
        code = process.poll()
        self.close()
        log.seek(max(0, os.fstat(log.fileno()).st_size - 1000))
        wrote = log.read().decode(errors="replace").strip()
        ended = "did not answer in time" if code is None else f"ended with exit code {code}"
        raise EnvironmentFault(f"the OpenEnv server {shlex.join(command)} {ended}: {wrote}")

    def _command(self, port: int) -> tuple[list[str], Path | None]:
        """Returns the command that starts the server, and the folder to start it in."""
        folder = Path(self._source).expanduser().absolute()
        if "{port}" in self._source:
            return [word.replace("{port}", str(port)) for word in shlex.split(self._source)], None
        if not (folder / "openenv.yaml").is_file():
            raise ConfigError(
                f"openenv:{self._source} is no URL (http://...), no folder with an openenv.yaml, "
                "and no command with {port}, such as 'openenv:python server.py --port {port}'"
            )
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
        manifest = yaml.safe_load((folder / "openenv.yaml").read_text(encoding="utf-8"))
        app = manifest.get("app", "server.app:app")
        return [*python, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port)], folder

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
    server = find_server(source)
    try:
        base = f"/{quote(server.ask('/list_environments')[0])}"
        splits = [one["name"] for one in server.ask(f"{base}/splits")]
    except (ConfigError, LookupError, TypeError) as error:
        fix = "Leave the dataset out: its episodes differ by their seeds."
        raise ConfigError(f"openenv:{source} has no tasks ({error}). {fix}") from error
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
