"""A small HTTP client on asyncio: JSON out, JSON or lines back.

Every request has a connection of its own, which is closed as soon as nobody waits for the answer:
that is how a server learns that a request was called off.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from turnwise.errors import ConfigError, TurnwiseError


class ServerError(TurnwiseError, RuntimeError):
    """A server could not be reached, broke off, or failed at what it was asked."""


@dataclass(frozen=True)
class Response:
    """The head of an answer, and its body as it comes."""

    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self._pieces()])

    async def lines(self) -> AsyncIterator[str]:
        rest = b""
        async for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.decode().rstrip("\r")
        if rest:
            yield rest.decode()

    async def _pieces(self) -> AsyncIterator[bytes]:
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            while size := int((await self.reader.readuntil(b"\n")).split(b";")[0], 16):
                yield await self.reader.readexactly(size)
                await self.reader.readuntil(b"\n")
        elif "content-length" in self.headers:
            yield await self.reader.readexactly(int(self.headers["content-length"]))
        else:
            while piece := await self.reader.read(2**16):
                yield piece


class HttpClient:
    """Talks to one server; to be used in one event loop."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        max_connections: int = 512,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(
                f"the server's address got {url!r}, expected one like 'http://localhost:8000'"
            )
        self.url = url
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._head = f"Host: {parts.netloc.rpartition('@')[2]}\r\nConnection: close\r\n"
        if api_key is not None:
            self._head += f"Authorization: Bearer {api_key}\r\n"
        self._connect_timeout = connect_timeout
        # A process may not have many more files open than this.
        self._connections = asyncio.Semaphore(max_connections)

    @asynccontextmanager
    async def send(self, method: str, path: str, body: Any = None) -> AsyncIterator[Response]:
        """One request; the connection is closed at the end of the block, read or not."""
        async with self._connections:
            reader, writer = await self._connect()
            try:
                payload = b"" if body is None else json.dumps(body).encode()
                writer.write(
                    f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}"
                    f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
                    "".encode()
                    + payload
                )
                await writer.drain()
                yield await _read_head(reader)
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                if isinstance(error, TimeoutError | ConfigError):
                    raise
                raise ServerError(
                    f"the server at {self.url} broke off its answer to {path}: {error!r}"
                ) from error
            finally:
                writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except OSError as error:  # a timeout is one, too
            raise ServerError(f"no server answers at {self.url}: {error!r}") from error


async def _read_head(reader: asyncio.StreamReader) -> Response:
    status = (await reader.readuntil(b"\n")).decode("latin-1")
    headers: dict[str, str] = {}
    while line := (await reader.readuntil(b"\n")).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Response(int(status.split()[1]), headers, reader)
