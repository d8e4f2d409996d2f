"""Bodies, event streams and disconnected clients, whichever API a request speaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from turnwise.agents.requests import ApiError

MAX_BODY_BYTES = 32 * 2**20


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
        value = json.loads(bytes(body), parse_constant=_refuse)
        if b"\\ud" in body.lower():  # half of a surrogate pair is no text that has tokens
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError):
        raise ApiError(
            "We could not parse the JSON body of your request.", code="invalid_json"
        ) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


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


def event_stream(events: Iterator[str]) -> StreamingResponse:
    return StreamingResponse(
        events, media_type="text/event-stream", headers={"cache-control": "no-cache"}
    )
