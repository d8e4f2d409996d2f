"""Bodies, errors and disconnected clients, whichever API a request speaks."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from turnwise.agents.live import ReplyStream
from turnwise.agents.requests import ApiError
from turnwise.errors import describe_error

MAX_BODY_BYTES = 16 * 2**20
_LOG = logging.getLogger("turnwise")


class Reporter(Protocol):
    """A server that is informed of each answered request."""

    def report(self, request: Request, status: int, seconds: float) -> None: ...


Server = TypeVar("Server", bound=Reporter)
_Handler: TypeAlias = Callable[[Server, Request], Awaitable[Response]]


def answering(
    write: Callable[[ApiError], Mapping[str, Any]],
) -> Callable[[_Handler[Server]], _Handler[Server]]:
    """Turn what a handler raises into an error of the API; `write` gives its body."""

    def wrapped(handler: _Handler[Server]) -> _Handler[Server]:
        @functools.wraps(handler)
        async def answer(server: Server, request: Request) -> Response:
            started = time.monotonic()
            try:
                response = await handler(server, request)
                if not isinstance(response, EventStream):  # which reports at its end
                    server.report(request, response.status_code, time.monotonic() - started)
                return response
            except ApiError as refused:
                error = refused
            except ClientDisconnect:
                error = ApiError("the client hung up", status=499)
            except Exception as raised:
                _LOG.exception("The gateway could not serve a request.")
                error = ApiError(describe_error(raised), status=500, code="server_error")
            server.report(request, error.status, time.monotonic() - started)
            # Both SDKs try again after 429 and 500 unless this header says not to.
            return JSONResponse(write(error), error.status, {"x-should-retry": "false"})

        return answer

    return wrapped


async def read_json(request: Request) -> Any:
    """The JSON of a request, within limits."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ApiError(
                f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB",
                status=413,
                code="request_too_large",
            )
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse)
        if b"\\ud" in body.lower():  # half of a surrogate pair is no text that has tokens
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError):
        raise ApiError(
            "We could not parse the JSON body of your request.", code="invalid_json"
        ) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


async def unless_disconnected(request: Request, work: Any) -> Any:
    """Await work; cancel it when the client hangs up."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError("the client hung up", status=499)
        return task.result()
    except asyncio.CancelledError:
        raise ApiError("the episode has ended", status=401, code="invalid_api_key") from None
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """The response with a reply's events; the sampling ends with it, whatever the client does."""

    def __init__(self, stream: ReplyStream, on_end: Callable[[], None]) -> None:
        super().__init__(
            stream.events(),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )
        self._stream, self._on_end = stream, on_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
            await self._stream.close()
