"""`MCPTools`: the tools of an MCP server, over stdio or HTTP.

The connection lives on an event loop in a thread of its own, so that the tools can be called from
ordinary code and from any event loop, and closed from anywhere.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from turnwise.deadlines import LoopCall, LoopThread, call_with_deadline
from turnwise.errors import ToolError, import_extra
from turnwise.tools.base import DEFAULT_MAX_OUTPUT, DEFAULT_TIMEOUT, Tool
from turnwise.tools.by_name import server_entry
from turnwise.tools.registry import short_line

_START_SECONDS = 60.0
_CLOSE_SECONDS = 20.0
_SHOWN_LOG = 300
_TERMINATE_SECONDS = 1.0
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")


def _end_processes(variable: str) -> None:
    """Terminates the processes that have an environment variable, and kills those that ignore it.

    A process id alone proves nothing, because ids are reused. Without `/proc` (not Linux) nothing
    is found, and nothing is killed. It blocks, because it must not be cancelled halfway.
    """
    for number, seconds in ((signal.SIGTERM, _TERMINATE_SECONDS), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while True:
            pids = set()
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended, or belongs to another user
                    if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                        pids.add(int(folder.name))
            if not pids or time.monotonic() > deadline:
                break
            for pid in pids - signalled:  # newly forked ones get the signal too
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            signalled |= pids
            time.sleep(0.01)


class MCPTool(Tool):
    """One tool of an MCP server, with the server's schema."""

    def __init__(self, source: MCPTools, described: Any) -> None:
        self.source = source
        self._name = described.name
        self.name = source.prefix + _NOT_IN_NAMES.sub("_", described.name)[:64]
        self.description = described.description or described.name
        self.parameters = described.input_schema
        self.timeout = source.timeout
        self.max_output = source.max_output

    async def execute(self, **params: Any) -> Any:
        return await self.source.call(self._name, params)


class MCPTools:
    """The tools of an MCP server. Create it with `stdio` or `http`, use it in a `with` block.

        with MCPTools.stdio("python", ["server.py"]) as source:
            registry.register_all(source.tools)

    `connect` takes a file for what the server writes to stderr and returns what `mcp.Client` takes.
    `prefix` precedes the names of its tools, for servers with equal names; `timeout` and
    `max_output` are those of each tool. When the server is lost, calls fail and `status` says why.
    """

    def __init__(
        self,
        connect: Callable[[IO[bytes]], Any],
        name: str,
        *,
        prefix: str = "",
        timeout: float | None = DEFAULT_TIMEOUT,
        max_output: int = DEFAULT_MAX_OUTPUT,
    ) -> None:
        self.name = name
        self.prefix = prefix
        self.timeout = timeout
        self.max_output = max_output
        self.status = "not opened yet"
        """`open`, or why it is not open."""
        self._connect = connect
        self._client: Any = None
        self._tools: list[MCPTool] = []
        self._stop: asyncio.Event | None = None
        self._thread: LoopThread | None = None
        self._serving: LoopCall[None] | None = None
        self._log: IO[bytes]
        self.entry: dict[str, Any] | None = None
        """The server as an entry of the setting `tools`, without secrets; None if there is none."""

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **settings: Any,
    ) -> Self:
        """Returns a server that is started and ended here, with its child processes.

        Its environment has PATH, HOME and the like, and `env`.
        """
        mcp = import_extra("mcp", "mcp")

        @asynccontextmanager
        async def connect(log: IO[bytes]) -> AsyncIterator[Any]:
            mark = uuid.uuid4().hex  # which the children of the server inherit
            variables = {**(env or {}), "TURNWISE_SERVER": mark}
            parameters = mcp.StdioServerParameters(
                command=command, args=list(args), env=variables, cwd=cwd
            )
            try:
                async with mcp.stdio_client(parameters, errlog=log) as streams:
                    yield streams
            finally:
                # The SDK ends the server, but not the children of one that ends on request.
                _end_processes(f"TURNWISE_SERVER={mark}")

        name = " ".join([os.path.basename(command), *args])
        source = cls(connect, name if len(name) <= 60 else f"{name[:57]}...", **settings)
        source.entry = server_entry([command, *args], {"env": env, "cwd": cwd, **settings})
        return source

    @classmethod
    def http(cls, url: str, *, headers: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """Returns a server that runs elsewhere, by its URL (streamable HTTP)."""
        import_extra("mcp", "mcp")
        transport = import_extra("mcp.client.streamable_http", "mcp")
        web = import_extra("httpx2", "mcp")

        @asynccontextmanager
        async def connect(log: IO[bytes]) -> AsyncIterator[Any]:
            # No read timeout: a tool may work for long, and has its own timeout.
            timeout = web.Timeout(30, read=None)
            async with (
                web.AsyncClient(headers=dict(headers or {}), timeout=timeout) as client,
                transport.streamable_http_client(url, http_client=client) as streams,
            ):
                yield streams

        source = cls(connect, url, **settings)
        source.entry = server_entry([url], {"headers": headers, **settings})
        return source

    @property
    def tools(self) -> list[MCPTool]:
        """The server's tools; empty until it is open."""
        return list(self._tools)

    def open(self) -> Self:
        """Connects and lists the tools; raises a `ToolError` if that fails.

        After the server was lost this reconnects, and the same tools work again.
        """
        if self._client is not None and self.status == "open":
            return self
        self.close()
        # For a program that exits without closing: a server may survive the end of its input.
        atexit.register(self.close)
        ready: Future[None] = Future()
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - `close` closes it
        self._thread = LoopThread(f"MCP {self.name}"[:50])
        self._serving = self._thread.submit(self._serve(ready))
        try:
            ready.result()  # the connection has a timeout
        except Exception as error:
            why = _reason(error) or f"it did not answer within {_START_SECONDS:g} s."
            problem = f"could not be reached: {why}{self._last_words()}"
            self.close()
            self.status = f"failed to open: {why}"
            raise ToolError(f"the MCP server {self.name!r} {problem}") from error
        return self

    def _last_words(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), _SHOWN_LOG, max(0, size - _SHOWN_LOG))
        words = " ".join(tail.decode(errors="replace").split())
        return f" It wrote: {words}" if words else ""

    def close(self) -> None:
        """Disconnects, and ends a server that was started here, with its child processes.

        May be called twice, and is called at exit.
        """
        atexit.unregister(self.close)
        if self._thread is None or self._serving is None:
            return
        if self._stop is not None:
            self._thread.call_soon(self._stop.set)
        wait([self._serving.outcome], _CLOSE_SECONDS)
        self._thread.end(_CLOSE_SECONDS)
        self._thread = None
        self._log.close()
        self.status = "closed"

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await call_with_deadline(self.open, timeout=None, waiting_for=f"MCP server {self.name}")
        return self

    async def __aexit__(self, *exception: object) -> None:
        await call_with_deadline(self.close, timeout=None, waiting_for=f"MCP server {self.name}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a connection cannot be copied; copies of a registry share it

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Calls a tool by the name that it has on the server."""
        client, loop = self._client, None if self._thread is None else self._thread.loop
        if client is None or loop is None:
            raise ConnectionError(f"the MCP server {self.name!r} is not there: {self.status}")
        work = client.call_tool(name, dict(arguments))
        try:
            # Cancelling this, as at a timeout, cancels the call at the server too.
            answer = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
        except Exception as error:
            code = getattr(error, "code", None)
            if isinstance(code, int) and code != import_extra("mcp.types", "mcp").CONNECTION_CLOSED:
                raise ToolError(_reason(error)) from error  # refused; the server is still there
            self.status = f"lost: {_reason(error)}{self._last_words()}"
            raise ConnectionError(
                f"the MCP server {self.name!r} broke down during the call: {_reason(error)}"
            ) from error
        pieces = []
        for block in answer.content:
            text = getattr(getattr(block, "resource", block), "text", None)
            what = getattr(block, "uri", None) or getattr(block, "mime_type", "")
            pieces.append(f"[{block.type} {what}, not shown]" if text is None else text)
        if answer.is_error:
            raise ToolError("\n".join(pieces) or "the tool failed and did not say why")
        return "\n".join(pieces) if pieces else answer.structured_content

    async def _serve(self, ready: Future[None]) -> None:
        """Opens, keeps and closes the connection in one task, as the SDK requires."""
        self._stop = asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(_START_SECONDS):
                    client = await stack.enter_async_context(
                        import_extra("mcp", "mcp").Client(self._connect(self._log))
                    )
                    page = await client.list_tools()
                    described = list(page.tools)
                    while page.next_cursor is not None:
                        page = await client.list_tools(cursor=page.next_cursor)
                        described += page.tools
                    self._tools = [MCPTool(self, one) for one in described]
                self._client = client
                self.status = "open"
                ready.set_result(None)
                await self._stop.wait()
                self._client = None  # no more calls while it is being closed
        except BaseException as error:  # `open` waits for this
            if not ready.done():
                ready.set_exception(error)
            self.status = f"lost: {_reason(error)}"
        finally:
            self._client = None


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = short_line(str(error))
    if not text:
        return "" if isinstance(error, TimeoutError) else type(error).__name__
    return f"{text.rstrip('.')}."
