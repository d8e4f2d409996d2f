"""Only the viewer's own page on this machine may send requests: to read, and to save notes."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.http_server import is_same_site

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
    "cache-control": "no-cache",
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

    def __init__(self, app: ASGIApp, write_token: str | None) -> None:
        self._app = app
        self._write_token = write_token
        """The token that the page got with the list of runs; None: nothing can be written."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        policy = EXPORT_POLICY if scope["path"].startswith("/export/") else PAGE_POLICY

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**_HEADERS, "content-security-policy": policy})
            await send(message)

        app, refusal = self._app, self._refusal(scope)
        if refusal is not None:
            status, why = refusal
            allow = {"allow": ", ".join(_METHODS)} if status == 405 else {}
            app = JSONResponse({"error": why}, status, {"connection": "close", **allow})
        await app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        is_note = scope["method"] == "PATCH" and _NOTES.fullmatch(scope["path"]) is not None
        if scope["method"] not in _METHODS and not is_note:
            return 405, "the viewer only reads (GET and HEAD), except for a run's notes (PATCH)"
        headers = Headers(scope=scope)
        origins = [origin.lower() for origin in headers.getlist("origin")]
        site = headers.get("sec-fetch-site", "none")
        is_foreign = site not in ("same-origin", "none") and scope["path"] != "/"  # a link to it
        if is_foreign or not is_same_site(headers.getlist("host"), origins):
            return 403, "pages of other sites may not ask the viewer"
        if not is_note:
            return None
        # A browser says with every write where it comes from, and only a page that may read what
        # the viewer answers has the token.
        if self._write_token is None:
            return 403, "this viewer was started with --read-only: it saves no notes"
        token = headers.get(TOKEN_HEADER, "").encode()
        if not origins or not secrets.compare_digest(token, self._write_token.encode()):
            return 403, "notes are saved from the viewer's own page alone; load it again"
        return None
