"""The gateway: a server through which agents call the model that is being trained.

It runs in a thread of the trainer's process with an event loop of its own, so that an agent that
blocks its thread still gets its replies. Every episode has a base URL and a secret key.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from turnwise.agents import _extra as _extra  # isort: skip - its error names what to install
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from turnwise.agents import anthropic_messages, openai_chat, openai_responses
from turnwise.agents.live import EventWriter, ReplyStream
from turnwise.agents.requests import ApiError, ChatReply, ChatRequest, Delta, ServedRequest
from turnwise.agents.session import AgentSession
from turnwise.agents.wire import EventStream, answering, read_json, unless_disconnected
from turnwise.errors import ConfigError
from turnwise.http_server import BoundedServer, is_same_site, open_listener

HOST = "127.0.0.1"
_LOG = logging.getLogger("turnwise")
_START_SECONDS = 30.0


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
        }


@dataclass(frozen=True)
class _Episode:
    session: AgentSession
    key: str | None
    """None: no key is asked for."""


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
        self._on_request = on_request
        self._host = host
        self._port = port
        self._episodes: dict[str, _Episode] = {}
        self._listener: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: BoundedServer | None = None
        self._thread: threading.Thread | None = None
        self.address = ""

    def listen(self) -> Gateway:
        """Take the port; connections wait there until `start`."""
        try:
            listener = open_listener(self._host, [self._port])
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {self._host}, port {self._port}: {error.strerror or error}. "
                "Choose another port, or 0 for a free one."
            ) from error
        host, port = listener.getsockname()[:2]
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._listener = listener
        return self

    def start(self) -> Gateway:
        """Serve requests, in a thread of its own."""
        if self._listener is None:
            self.listen()
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(self._listener, started), name="turnwise-gateway", daemon=True
        )
        self._thread.start()
        started.result(_START_SECONDS)
        return self

    def stop(self) -> None:
        """End the server and its thread; may be called twice."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_START_SECONDS)
        elif self._listener is not None:
            self._listener.close()

    def __enter__(self) -> Gateway:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def open(self, session: AgentSession, key: str | None = None) -> LLM:
        """Serve a session at a URL of its own; any thread may call this."""
        name = secrets.token_hex(8)
        key = key or f"sk-{secrets.token_urlsafe(24)}"
        self._episodes[name] = _Episode(session, key)
        return LLM(f"{self.address}/{name}/v1", key, self.model)

    def open_at_root(self, session: AgentSession, key: str | None) -> LLM:
        """Serve a session at `/v1`; a key of None lets every request in."""
        self._episodes[""] = _Episode(session, key)
        return LLM(f"{self.address}/v1", key or "none", self.model)

    def report(self, request: Request, status: int, seconds: float) -> None:
        """Hand an answered request to `on_request`, if there is one."""
        if self._on_request is not None:
            prompt, sampled = getattr(request.state, "num_tokens", (0, 0))
            path = request.url.path
            self._on_request(ServedRequest(request.method, path, status, prompt, sampled, seconds))

    async def close(self, llm: LLM) -> None:
        """End an episode's session: afterwards nothing changes its tree, and its key is refused."""
        name = llm.base_url.removeprefix(self.address).removesuffix("/v1").strip("/")
        episode = self._episodes.pop(name, None)
        if episode is None or self._loop is None:
            return
        ending = asyncio.run_coroutine_threadsafe(episode.session.close(), self._loop)
        await asyncio.wrap_future(ending)

    def _run(self, listener: socket.socket, started: Future[None]) -> None:
        """The thread of the server."""

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            server = self._server = BoundedServer(self._app(), has_lifespan=False, keep_alive=60)
            self._loop.call_soon(started.set_result, None)
            await server.serve([listener])

        try:
            asyncio.run(serve())
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            else:
                _LOG.exception("The gateway's thread has ended.")
        finally:
            listener.close()

    def _app(self) -> Starlette:
        count_tokens = anthropic_messages.PATH + "/count_tokens"
        routes = [Route("/health", self._health, methods=["GET"])]
        for at in ("/v1", "/{episode}/v1"):
            routes += [
                Route(at + "/models", self._models, methods=["GET"]),
                Route(at + "/models/{model:path}", self._models, methods=["GET"]),
                Route(at + openai_chat.PATH, self._chat, methods=["POST"]),
                Route(at + openai_responses.PATH, self._responses, methods=["POST"]),
                Route(at + anthropic_messages.PATH, self._messages, methods=["POST"]),
                Route(at + count_tokens, self._count_tokens, methods=["POST"]),
            ]
        anything = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        routes.append(Route("/{path:path}", self._unknown, methods=anything))
        return Starlette(routes=routes)

    # -- one request ------------------------------------------------------------------------------

    def _session_of(self, request: Request) -> AgentSession:
        """The episode of a request, if its key is the episode's own."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = request.headers.get("x-api-key") or (token if scheme.lower() == "bearer" else "")
        name = request.path_params.get("episode", "")
        if name and self._is_at_root:
            raise self._unknown_url(request)
        episode = self._episodes.get(name)
        is_allowed = episode is not None and (
            episode.key is None or hmac.compare_digest(given.encode(), episode.key.encode())
        )
        if episode is None or not is_allowed:
            hint = (
                ", or the episode has ended. An agent's client needs the llm.base_url and "
                "llm.api_key of the same episode."
            )
            if self._is_at_root:  # a served model, which has one key
                hint = ". Send the one that the server printed: 'Authorization: Bearer KEY'."
            raise ApiError(f"Incorrect API key provided{hint}", status=401, code="invalid_api_key")
        hosts, origins = (request.headers.getlist(name) for name in ("host", "origin"))
        if episode.key is None and not is_same_site(hosts, origins):
            raise ApiError(
                "Without an API key, only requests to an address or the name of this machine are "
                f"served, and no web pages of other sites: got {[*hosts, *origins]!r:.200}. Start "
                "the server with --api-key, and send the key.",
                status=403,
                code="forbidden",
            )
        return episode.session

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self.model})

    async def _replies(
        self, request: Request, session: AgentSession, asked: ChatRequest
    ) -> list[ChatReply]:
        work = self._complete(request, session, asked, None)
        replies: list[ChatReply] = await unless_disconnected(request, work)
        return replies

    async def _stream(
        self, request: Request, session: AgentSession, asked: ChatRequest, writer: EventWriter
    ) -> Response:
        """Answer with events; a request that is refused is an error as any other."""
        started = time.monotonic()
        complete = functools.partial(self._complete, request, session, asked)
        stream = ReplyStream(complete, writer)
        await unless_disconnected(request, stream.begin())
        return EventStream(stream, lambda: self.report(request, 200, time.monotonic() - started))

    async def _complete(
        self,
        request: Request,
        session: AgentSession,
        asked: ChatRequest,
        on_delta: Callable[[Delta], None] | None,
    ) -> list[ChatReply]:
        replies = await session.complete(asked, on_delta)
        num_sampled = sum(reply.num_sampled_tokens for reply in replies)
        request.state.num_tokens = (replies[0].num_prompt_tokens, num_sampled)
        return replies

    @answering(openai_chat.error_body)
    async def _models(self, request: Request) -> Response:
        self._session_of(request)
        asked = request.path_params.get("model")
        entry = {"id": self.model, "object": "model", "created": 0, "owned_by": "turnwise"}
        if asked is not None:
            self._check_model(asked)
        return JSONResponse(entry if asked else {"object": "list", "data": [entry]})

    @answering(openai_chat.error_body)
    async def _chat(self, request: Request) -> Response:
        session = self._session_of(request)
        fields, asked = openai_chat.parse(await read_json(request))
        self._check_model(fields.model)
        if fields.stream:
            writer = openai_chat.Events(self.model, fields)
            return await self._stream(request, session, asked, writer)
        replies = await self._replies(request, session, asked)
        return JSONResponse(openai_chat.completion(self.model, replies))

    @answering(openai_chat.error_body)
    async def _responses(self, request: Request) -> Response:
        session = self._session_of(request)
        fields, asked = openai_responses.parse(await read_json(request), session.responses)
        self._check_model(fields.model)

        def remember(name: str, reply: ChatReply) -> None:
            before = asked.messages[1:] if fields.instructions else asked.messages
            session.remember_response(name, [*before, reply.message])

        if fields.stream:
            writer = openai_responses.Events(self.model, fields, remember)
            return await self._stream(request, session, asked, writer)
        replies = await self._replies(request, session, asked)
        whole = openai_responses.response(self.model, replies, fields)
        remember(whole["id"], replies[0])
        return JSONResponse(whole)

    @answering(anthropic_messages.error_body)
    async def _messages(self, request: Request) -> Response:
        session = self._session_of(request)
        fields, asked = anthropic_messages.parse(await read_json(request))
        self._check_model(fields.model)
        if fields.max_tokens is None:
            raise ApiError("max_tokens: Field required", param="max_tokens")
        if fields.stream:
            writer = anthropic_messages.Events(self.model)
            return await self._stream(request, session, asked, writer)
        replies = await self._replies(request, session, asked)
        return JSONResponse(anthropic_messages.message(self.model, replies))

    @answering(anthropic_messages.error_body)
    async def _count_tokens(self, request: Request) -> Response:
        session = self._session_of(request)
        _, asked = anthropic_messages.parse(await read_json(request))
        return JSONResponse({"input_tokens": await session.count_tokens(asked)})

    async def _unknown(self, request: Request) -> Response:
        is_anthropic = "anthropic-version" in request.headers
        write = anthropic_messages.error_body if is_anthropic else openai_chat.error_body
        return await answering(write)(Gateway._refuse_url)(self, request)

    async def _refuse_url(self, request: Request) -> Response:
        raise self._unknown_url(request)

    def _unknown_url(self, request: Request) -> ApiError:
        of_openai, of_anthropic = " (llm.base_url)", " (llm.anthropic_url)"
        if self._is_at_root:
            of_openai = of_anthropic = ""
        return ApiError(
            f"Invalid URL ({request.method} {request.url.path}). Clients of OpenAI's API take a "
            f"base URL that ends with /v1{of_openai}, those of Anthropic's the same without "
            f"it{of_anthropic}.",
            status=404,
            code="unknown_url",
        )

    @property
    def _is_at_root(self) -> bool:
        """Whether this serves one model to everyone, at `/v1`."""
        return "" in self._episodes

    def _check_model(self, name: str) -> None:
        if name != self.model:
            hint = "." if self._is_at_root else ": pass llm.model to the agent's client."
            raise ApiError(
                f"The model `{name}` does not exist; this server has `{self.model}`{hint}",
                status=404,
                code="model_not_found",
                param="model",
            )
