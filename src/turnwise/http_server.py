"""The HTTP server of the viewer, of the gateway for agents, and of `turnwise serve`.

Whoever reaches its port may open connections. They are bounded in number and in the time that a
request may take to arrive, so that the process always has file descriptors for its own files.
"""

import asyncio
import ipaddress
import resource
import socket
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 20.0
"""For a request to arrive whole, from the start of the connection or its first byte."""
_MAX_CONNECTIONS = 10_000
_ACCEPTED_AT_ONCE = 32
"""Connections that are accepted before any of them is looked at."""
_BACKLOG = 1024


def max_connections() -> int:
    """Return the limit of connections: half of the descriptors that this process may open."""
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, _MAX_CONNECTIONS)


def open_listener(host: str, ports: Iterable[int]) -> socket.socket:
    """Listen at the first of these ports that is free; raises `OSError` if none is."""
    error: Exception = OSError("there is no port to try")
    for port in ports:
        # With the protocol named, asyncio sends small packets at once (TCP_NODELAY); otherwise each
        # response waits 40 ms for an acknowledgement.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except (OSError, OverflowError) as failure:
            listener.close()
            error = failure
        else:
            return listener
    raise error if isinstance(error, OSError) else OSError(str(error))


def is_same_site(hosts: Sequence[str], origins: Sequence[str]) -> bool:
    """Return whether a request with these `Host` and `Origin` headers is from no other web site.

    A page of another site can let a browser send requests here. Its `Origin` has that site's name,
    and so has the `Host` if the site's name server answers with our address (DNS rebinding). An
    address, this machine's name and a name without a dot are no site's.

    >>> is_same_site(["127.0.0.1:8000"], []), is_same_site(["evil.example"], [])
    (True, False)
    >>> is_same_site(["localhost"], ["http://[::1]:3000"]), is_same_site(["localhost"], ["null"])
    (True, False)
    """
    try:
        (host,) = (urlsplit(f"//{name}").hostname or "." for name in hosts)
        senders = {urlsplit(origin).hostname for origin in origins}
    except ValueError:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if "." in host and host != socket.gethostname().lower():
            return False
    return senders <= {host, "localhost", "127.0.0.1", "::1"}


class BoundedServer(uvicorn.Server):
    """A server of one app whose connections are bounded, and which ends within a second."""

    def __init__(self, app: object, *, has_lifespan: bool, keep_alive: int = 5) -> None:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type] # uvicorn has its own type for an app
            loop="asyncio",
            http=BoundedProtocol,
            ws="none",
            lifespan="on" if has_lifespan else "off",
            log_level="error",  # a warning for each broken request would fill the log
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_ACCEPTED_AT_ONCE,
            timeout_keep_alive=keep_alive,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_BACKLOG)  # asyncio has set the backlog to what it accepts at once


class BoundedProtocol(H11Protocol):
    """HTTP that drops a connection on which no whole request arrives in time.

    uvicorn itself waits for ever. With too many connections, the one that has waited longest for a
    request is dropped: a client that sends its request at once is served, however many are idle.
    """

    _deadline: asyncio.TimerHandle | None = None
    _is_dropped = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._watch()
        if len(self.connections) > max_connections():
            idle = [
                connection
                for connection in self.connections
                if isinstance(connection, BoundedProtocol)
                and connection._awaits_request
                and not connection._is_dropped
            ]
            min(idle, key=lambda connection: connection._since, default=self)._drop()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    @property
    def _awaits_request(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _watch(self) -> None:
        """Wait for the rest of a request, and no longer from its last byte than from its first."""
        if not self._awaits_request:
            self._stop_waiting()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._drop)

    def _drop(self) -> None:
        self._is_dropped = True
        self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
