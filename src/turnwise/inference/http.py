"""A small HTTP client for inference servers: JSON requests, line streams, clear errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from turnwise.errors import ConfigError, EngineError


class JsonClient:
    """A client of one server, for use in one event loop.

    It limits neither the time of a response nor the number of open requests: requests have their
    own deadlines, and the server queues them.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url got {url!r}, expected one such as 'http://localhost:30000'")
        self.url = url.rstrip("/")
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            limits=httpx2.Limits(max_connections=None),
            timeout=httpx2.Timeout(None, connect=10.0),
            verify=url.startswith("https"),  # otherwise no certificates are needed
            trust_env=False,  # no proxy between us and the server
        )

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the response: parsed if it is JSON, otherwise as text."""
        async with self._open(method, path, body) as response:
            await response.aread()
            is_json = response.headers.get("content-type", "").startswith("application/json")
            return response.json() if is_json else response.text

    async def post_lines(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[str]:
        """Yield the lines of the response as they arrive."""
        begun = b""
        async with self._open("POST", path, body) as response:
            # `aiter_lines` would also end a line at U+2028 and the like, which JSON may contain.
            async for chunk in response.aiter_bytes():
                *lines, begun = (begun + chunk).split(b"\n")
                for line in lines:
                    yield line.decode().removesuffix("\r")
            if begun:
                yield begun.decode()

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[httpx2.Response]:
        where = self.url + path
        try:
            async with self._client.stream(method, path, json=body) as response:
                if response.is_error:
                    text = _error_text((await response.aread()).decode(errors="replace"))
                    raise EngineError(f"{where} answered {response.status_code}: {text}")
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as e:
            raise EngineError(f"no server answers at {self.url}: is it up, and is that it?") from e
        except httpx2.TransportError as e:
            raise EngineError(f"{where} broke off ({e!r}): see the server's log") from e


def _error_text(body: str) -> str:
    """Return the message inside a JSON error."""
    try:
        error = json.loads(body)
    except ValueError:
        return body.strip()
    while isinstance(error, dict) and (keys := error.keys() & {"error", "message", "detail"}):
        error = error[min(keys)]
    return str(error)
