"""The gateway: a server through which agents call the model that is being trained.

It runs in a thread of the trainer's process with an event loop of its own, so that an agent that
blocks its thread still gets its replies. Every episode has a base URL and a secret key.
"""

import asyncio
import functools
import hmac
import json
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

from turnwise.agents import _extra as _extra  # isort: skip - its error names what to install
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from turnwise.agents import anthropic_messages, google_generate, openai_chat, openai_responses
from turnwise.agents.live import EventWriter
from turnwise.agents.requests import ApiError, ChatReply, Delta, ServedRequest
from turnwise.agents.session import AgentSession
from turnwise.deadlines import LoopCall, LoopThread
from turnwise.errors import describe_error
from turnwise.http_server import AppServer, is_same_site, listen

HOST = "127.0.0.1"
EPISODE_HEADER = "x-turnwise-episode"
"""Names an episode by its key, behind a proxy that needs the other headers for its own key."""
_LOG = logging.getLogger("turnwise")
_STOP_SECONDS = 30.0


@dataclass(frozen=True)
class LLM:
    """What an agent needs to call the model: hand these to any framework."""

    base_url: str
    """For SDKs of OpenAI; those of Anthropic take it without `/v1` (`anthropic_url`)."""
    api_key: str
    model: str

    @property
    def anthropic_url(self) -> str:
        return self.base_url.removesuffix("/v1")

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that SDKs and command-line agents read."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.api_key,
            "ANTHROPIC_AUTH_TOKEN": self.api_key,
            "ANTHROPIC_MODEL": self.model,
            "GOOGLE_GEMINI_BASE_URL": self.anthropic_url,
            "GEMINI_API_KEY": self.api_key,
            "GEMINI_MODEL": self.model,
        }


class Gateway:
    """Serves the sessions of episodes over HTTP; use it as a context manager."""

    def __init__(
        self,
        model: str = "policy",
        host: str = HOST,
        port: int = 0,
        on_request: Callable[[ServedRequest], None] | None = None,
    ) -> None:
        self.model = model
        self.address = ""
        self._host = host
        self._port = port
        self._on_request = on_request
        self._episodes: dict[str, tuple[AgentSession, str | None]] = {}
        """The session and the key of each episode; None: no key is asked for."""
        self._listener: socket.socket | None = None
        self._server: AppServer | None = None
        self._thread = LoopThread("gateway")
        self._serving: LoopCall[None] | None = None

    def listen(self) -> Self:
        """Take the port; connections wait there until `start`."""
        self._listener, self.address = listen(self._host, self._port)
        return self

    def start(self) -> Self:
        """Serve requests, in a thread of its own."""

        def log_failure(serving: Future[None]) -> None:
            if (error := serving.exception()) is not None:
                _LOG.error("The gateway has ended: %s", describe_error(error))

        if self._listener is None:
            self.listen()
        assert self._listener is not None
        self._server = AppServer(self._app(), has_lifespan=False, keep_alive=60)
        self._serving = self._thread.submit(self._server.serve([self._listener]))
        self._serving.outcome.add_done_callback(log_failure)
        return self

    def stop(self) -> None:
        """End the server and its thread; may be called twice."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            wait([self._serving.outcome], _STOP_SECONDS)
            self._thread.end(_STOP_SECONDS)
        if self._listener is not None:
            self._listener.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def open(self, session: AgentSession) -> LLM:
        """Serve a session at a URL of its own; any thread may call this."""
        name = secrets.token_hex(8)
        key = f"sk-{secrets.token_urlsafe(24)}"
        self._episodes[name] = session, key
        return LLM(f"{self.address}/{name}/v1", key, self.model)

    def open_at_root(self, session: AgentSession, key: str | None) -> LLM:
        """Serve a session at `/v1`; a key of None lets every request in."""
        self._episodes[""] = session, key
        return LLM(f"{self.address}/v1", key or "none", self.model)

    async def close(self, llm: LLM) -> None:
        """End an episode's session: afterwards nothing changes its tree, and its key is refused."""
        name = llm.base_url.removeprefix(self.address).removesuffix("/v1").strip("/")
        session, _ = self._episodes.pop(name, (None, None))
        if session is None or self._thread.loop is None:
            return
        ending = asyncio.run_coroutine_threadsafe(session.close(), self._thread.loop)
        await asyncio.wrap_future(ending)

    def _app(self) -> Starlette:
        """Return the app; a handler gets the request and the API that it speaks."""

        def route(path: str, handler: Any, api: ModuleType, method: str = "POST") -> list[Route]:
            answer = functools.partial(self._answer, handler, api)
            return [Route(at + path, answer, methods=[method]) for at in ("", "/{episode}")]

        routes = [
            Route("/health", self._health, methods=["GET"]),
            *route("/v1/models", self._models, openai_chat, "GET"),
            *route("/v1/models/{model:path}", self._models, openai_chat, "GET"),
            *route(openai_chat.PATH, self._reply, openai_chat),
            *route(openai_responses.PATH, self._reply, openai_responses),
            *route(anthropic_messages.PATH, self._reply, anthropic_messages),
            *route(
                anthropic_messages.PATH + "/count_tokens", self._count_tokens, anthropic_messages
            ),
            *route(google_generate.PATH, self._generate, google_generate),
        ]
        unknown = functools.partial(self._answer, self._unknown, None)
        anything = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        return Starlette(routes=[*routes, Route("/{path:path}", unknown, methods=anything)])

    # -- one request ------------------------------------------------------------------------------

    async def _answer(
        self,
        handler: Callable[[Request, ModuleType], Awaitable[Response]],
        api: ModuleType | None,
        request: Request,
    ) -> Response:
        """Call a handler; what it raises becomes an error of the API."""
        started = time.monotonic()
        if api is None:  # the URL does not say which
            api = anthropic_messages if "anthropic-version" in request.headers else openai_chat
        try:
            response = await handler(request, api)
            if not isinstance(response, EventStream):  # which reports at its end
                self._report(request, response.status_code, started)
            return response
        except ApiError as refused:
            error = refused
        except ClientDisconnect:
            error = ApiError("the client hung up", status=499)
        except Exception as raised:
            _LOG.exception("The gateway could not serve a request.")
            error = ApiError(describe_error(raised), status=500, code="server_error")
        self._report(request, error.status, started)
        # Both SDKs try again after 429 and 500 unless this header says not to.
        return JSONResponse(api.error_body(error), error.status, {"x-should-retry": "false"})

    def _report(self, request: Request, status: int, started: float) -> None:
        if self._on_request is not None:
            prompt, sampled = getattr(request.state, "num_tokens", (0, 0))
            path, seconds = request.url.path, time.monotonic() - started
            self._on_request(ServedRequest(request.method, path, status, prompt, sampled, seconds))

    def _session(self, request: Request) -> AgentSession:
        """Return the session of a request's episode, if its key is the episode's own."""
        name, given = request.path_params.get("episode", ""), _given_keys(request)
        if name and "" in self._episodes:  # this serves one model to everyone, at `/v1`
            raise self._unknown_url(request)
        if name or "" in self._episodes:
            found = [self._episodes[name]] if name in self._episodes else []
        else:  # the key alone says which episode it is
            found = list(self._episodes.values())
        allowed = [
            (session, key)
            for session, key in found
            if key is None or any(hmac.compare_digest(key.encode(), each) for each in given)
        ]
        if not allowed:
            raise ApiError(
                "Incorrect API key provided, or the episode has ended. An agent needs the base_url "
                "and the api_key of one llm, a client of turnwise serve the key that the server "
                "printed: 'Authorization: Bearer KEY'.",
                status=401,
                code="invalid_api_key",
            )
        session, key = allowed[0]
        hosts, origins = (request.headers.getlist(name) for name in ("host", "origin"))
        if key is None and not is_same_site(hosts, origins):
            raise ApiError(
                "Without an API key, only requests to an address or the name of this machine are "
                f"served, and no web pages of other sites: got {[*hosts, *origins]!r:.200}. Start "
                "the server with --api-key, and send the key.",
                status=403,
                code="forbidden",
            )
        return session

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self.model})

    async def _models(self, request: Request, api: ModuleType) -> Response:
        self._session(request)
        name = request.path_params.get("model")
        entry = {"id": self.model, "object": "model", "created": 0, "owned_by": "turnwise"}
        if name is not None:
            self._check_model(name)
        return JSONResponse(entry if name else {"object": "list", "data": [entry]})

    async def _generate(self, request: Request, api: ModuleType) -> Response:
        counts = request.path_params["method"] == "countTokens"
        return await (self._count_tokens if counts else self._reply)(request, api)

    async def _reply(self, request: Request, api: ModuleType) -> Response:
        """Answer with the model's replies, as a body or as events."""
        started = time.monotonic()
        session = self._session(request)
        fields, asked = api.parse(await _read_json(request), session.responses)
        self._check_model(fields.model)
        if api is anthropic_messages and fields.max_tokens is None:
            raise ApiError("max_tokens: Field required", param="max_tokens")

        async def complete(on_delta: Callable[[Delta], None] | None) -> list[ChatReply]:
            replies = await session.complete(asked, on_delta)
            num_sampled = sum(reply.num_sampled_tokens for reply in replies)
            request.state.num_tokens = (replies[0].num_prompt_tokens, num_sampled)
            return replies

        if not fields.stream:
            replies = await _unless_disconnected(request, complete(None))
            return JSONResponse(api.body(self.model, replies, fields))
        report = functools.partial(self._report, request, 200, started)
        stream = EventStream(complete, api.Events(self.model, fields), report)
        # A request that is refused is an error as any other, not an event.
        await _unless_disconnected(request, stream.begin())
        return stream

    async def _count_tokens(self, request: Request, api: ModuleType) -> Response:
        session = self._session(request)
        _, asked = api.parse(await _read_json(request), session.responses)
        return JSONResponse({api.COUNTED: await session.count_tokens(asked)})

    async def _unknown(self, request: Request, api: ModuleType) -> Response:
        raise self._unknown_url(request)

    def _unknown_url(self, request: Request) -> ApiError:
        return ApiError(
            f"Invalid URL ({request.method} {request.url.path}). Clients of OpenAI's API take a "
            "base URL that ends with /v1 (llm.base_url), those of Anthropic's and Google's the "
            "same without it (llm.anthropic_url).",
            status=404,
            code="unknown_url",
        )

    def _check_model(self, name: str) -> None:
        if name != self.model:
            raise ApiError(
                f"The model `{name}` does not exist; this server has `{self.model}`.",
                status=404,
                code="model_not_found",
                param="model",
            )


def _given_keys(request: Request) -> list[bytes]:
    """The keys that a request has, wherever clients put them."""
    names = (EPISODE_HEADER, "x-api-key", "x-goog-api-key")
    keys = [request.headers.get(name, "") for name in names]
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    keys += [token if scheme.lower() == "bearer" else "", request.query_params.get("key", "")]
    return [key.encode() for key in keys if key]


async def _read_json(request: Request) -> Any:
    """Return the body of a request; in Google's API some of its fields are in the URL."""
    body = await request.body()
    try:
        value = json.loads(body.decode("utf-8-sig"))
        if b"\\ud" in body.lower():  # half of a surrogate pair is no text that has tokens
            json.dumps(value, ensure_ascii=False).encode()
        if "method" in request.path_params and isinstance(value, dict):
            value |= {name: request.path_params[name] for name in ("model", "method")}
            value["alt"] = request.query_params.get("alt", "json")
        return value
    except (ValueError, RecursionError):
        raise ApiError("the body of the request is no JSON", code="invalid_json") from None


async def _unless_disconnected(request: Request, work: Any) -> Any:
    """Await work; cancel it when the client hangs up."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected())
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


class EventStream(StreamingResponse):
    """Samples replies and sends their events. Await `begin` first.

    The sampling ends with the response, whatever the client does.
    """

    def __init__(
        self,
        complete: Callable[[Callable[[Delta], None]], Any],
        writer: EventWriter,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(
            self._events(), media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )
        self._writer, self._on_end = writer, on_end
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._work = asyncio.ensure_future(complete(self._deltas.put_nowait))
        self._work.add_done_callback(lambda _: self._deltas.put_nowait(None))
        self._first: Delta | None = None

    async def begin(self) -> None:
        """Wait for the first text or the end; raises ApiError for a request that is refused."""
        try:
            self._first = await self._deltas.get()
            if self._first is None:
                await self._work
        finally:
            if self._first is None:  # refused or cancelled: nothing is sampled any longer
                await self._end_sampling()

    async def _events(self) -> AsyncIterator[str]:
        # Each is sent at once: asyncio logs several sends to a client that has hung up.
        delta = self._first
        while delta is not None:
            yield self._writer.delta(delta)
            delta = await self._deltas.get()
        error = None if self._work.cancelled() else self._work.exception()
        if self._work.cancelled():
            yield self._writer.failed(ApiError("the episode has ended", status=401))
        elif error is None:
            yield self._writer.end(self._work.result())
        elif isinstance(error, ApiError):
            yield self._writer.failed(error)
        else:
            text = describe_error(error)
            yield self._writer.failed(ApiError(text, status=500, code="server_error"))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
            await self._end_sampling()

    async def _end_sampling(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
