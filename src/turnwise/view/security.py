"""Who may ask, and what may be asked: only this machine's own page, and only to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from turnwise.view.payloads import json_bytes

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Nothing from elsewhere, and no script or style inside the page: what a model wrote could not run
# even if it were taken for a part of the page.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
EXPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
_METHODS = ("GET", "HEAD")


class Guard:
    """Stands before the app and turns away what does not come from its own page.

    A page of another site may know this address, or give its own name our address; the first
    sends its Origin, the second its Host.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        names = ("127.0.0.1", "localhost", "[::1]")
        self._hosts = {f"{name}:{port}" for name in names}
        if port == 80:
            self._hosts |= set(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        guarded = _with_headers(send, scope["path"])
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, guarded)
        else:
            await _refuse(guarded, *refusal)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        if scope["method"] not in _METHODS:
            return 405, "the viewer only reads: GET and HEAD"
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = [host.lower() for host in headers.get("host", ())]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 403, "this address is not the viewer's; open the one that it printed"
        origins = headers.get("origin", [])
        if any(origin.lower() not in self._origins() for origin in origins):
            return 403, "pages of other sites may not ask the viewer"
        if self._is_foreign(scope["path"], headers):
            return 403, "pages of other sites may not ask the viewer"
        return None

    def _origins(self) -> set[str]:
        return {f"http://{host}" for host in self._hosts}

    def _is_foreign(self, path: str, headers: Mapping[str, list[str]]) -> bool:
        """Whether a browser says that another site asks; a link to the page itself is fine."""
        site = headers.get("sec-fetch-site", ["none"])[-1]
        return site not in ("same-origin", "none") and path != "/"


def _with_headers(send: Send, path: str) -> Send:
    policy = EXPORT_POLICY if path.startswith("/export/") else PAGE_POLICY

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = (*_HEADERS, (b"content-security-policy", policy.encode()))
            names = {name for name, _ in own}
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in names]
            message["headers"] = [*kept, *own]
        await send(message)

    return guarded


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json_bytes({"error": why})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if status == 405:
        headers.append((b"allow", ", ".join(_METHODS).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
