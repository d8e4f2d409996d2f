"""Only the viewer's own page on this machine may send requests: to read, and to save notes."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.view.notes import MAX_BYTES
from turnwise.view.payloads import json_bytes

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
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_METHODS = ("GET", "HEAD")
_NOTES = re.compile("/api/runs/[^/]+/notes")
TOKEN_HEADER = "x-turnwise-token"


class Guard:
    """Checks every request before the app, and refuses those that its own page did not send.

    A page of another site may know this address, or give its own name our address; the first
    sends its Origin, the second its Host.
    """

    def __init__(self, app: ASGIApp, port: int, write_token: str | None = None) -> None:
        self._app = app
        self._write_token = write_token
        """The token that the page got with the list of runs; None: nothing can be written."""
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
        policy = EXPORT_POLICY if scope["path"].startswith("/export/") else PAGE_POLICY

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**_HEADERS, "content-security-policy": policy})
            await send(message)

        refusal = self._refusal(scope)
        app: ASGIApp = self._app
        if refusal is not None:
            status, why = refusal
            allow = {"allow": ", ".join(_METHODS)} if status == 405 else {}
            app = Response(
                json_bytes({"error": why}),
                status,
                {"connection": "close", **allow},
                media_type="application/json",
            )
        await app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        is_note = scope["method"] == "PATCH" and _NOTES.fullmatch(scope["path"]) is not None
        if scope["method"] not in _METHODS and not is_note:
            return 405, "the viewer only reads (GET and HEAD), except for a run's notes (PATCH)"
        headers = Headers(scope=scope)
        hosts = [host.lower() for host in headers.getlist("host")]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 403, "this address is not the viewer's; open the one that it printed"
        origins = {origin.lower() for origin in headers.getlist("origin")}
        site = ["none", *headers.getlist("sec-fetch-site")][-1]
        is_foreign = site not in ("same-origin", "none") and scope["path"] != "/"  # a link to it
        if is_foreign or not origins <= {f"http://{host}" for host in self._hosts}:
            return 403, "pages of other sites may not ask the viewer"
        return self._refused_write(headers) if is_note else None

    def _refused_write(self, headers: Headers) -> tuple[int, str] | None:
        """A browser says with every write where it comes from, and only a page that may read what
        the viewer answers has the token."""
        if self._write_token is None:
            return 403, "this viewer was started with --read-only: it saves no notes"
        tokens = [token.encode() for token in headers.getlist(TOKEN_HEADER)]
        is_ours = [secrets.compare_digest(one, self._write_token.encode()) for one in tokens]
        if len(headers.getlist("origin")) != 1 or is_ours != [True]:
            return 403, "notes are saved from the viewer's own page alone; load it again"
        if headers.getlist("content-type") != ["application/json"]:
            return 415, "notes are sent as application/json"
        lengths = headers.getlist("content-length")
        if len(lengths) != 1 or not lengths[0].isdecimal() or len(lengths[0]) > 9:
            return 411, "notes are sent with one Content-Length"
        if int(lengths[0]) > MAX_BYTES:
            return 413, f"notes got {lengths[0]} bytes, expected at most {MAX_BYTES:,}"
        return None
