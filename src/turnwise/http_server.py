"""The HTTP server of the viewer, of the gateway for agents, and of `turnwise serve`."""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import uvicorn

from turnwise.errors import ConfigError

_BACKLOG = 1024


def open_listener(host: str, ports: Iterable[int]) -> socket.socket:
    """Listen at the first of these ports that is free; raises `OSError` if none is."""
    error = OSError("there is no port to try")
    for port in ports:
        # With the protocol named, asyncio sends small packets at once (TCP_NODELAY); otherwise each
        # response waits 40 ms for an acknowledgement.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
            return listener
        except (OSError, OverflowError) as failure:  # a number that is no port overflows
            listener.close()
            error = OSError(str(failure))
    raise error


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Listen at a port (0: a free one); return the listener and its URL."""
    try:
        listener = open_listener(host, [port])
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}. "
            "Choose another port, or 0 for a free one."
        ) from error
    host, port = listener.getsockname()[:2]
    return listener, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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


class AppServer(uvicorn.Server):
    """A server of one app, which ends within a second."""

    def __init__(
        self, app: object, *, has_lifespan: bool, keep_alive: int = 5, has_sockets: bool = False
    ) -> None:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type] # uvicorn has its own type for an app
            loop="asyncio",
            http="h11",
            ws="websockets-sansio" if has_sockets else "none",
            lifespan="on" if has_lifespan else "off",
            log_level="error",  # a warning for each broken request would fill the log
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=keep_alive,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)
