"""Clients without a key cannot take file descriptors or answers from a run."""

import contextlib
import http.client
import resource
import socket
from urllib.parse import urlsplit

import pytest

from agents.serving import QUESTION, ask, make_session, serving
from forked import fork_server
from turnwise import http_server
from turnwise.agents import Gateway

MAX_FILES = 320
CHAT = "/chat/completions"


def serve_with_few_files(pipe, folder):
    """A gateway in a process that may open few files; it opens some of its own when told to."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_FILES, MAX_FILES))
    with Gateway() as gateway:
        pipe.send(gateway.open(make_session()))
        while pipe.recv() == "open":
            with contextlib.ExitStack() as stack:
                try:
                    for number in range(20):
                        stack.enter_context(open(f"{folder}/{number}", "w"))
                    pipe.send("opened")
                except OSError as error:
                    pipe.send(str(error))


@pytest.fixture
def gateway(tmp_path):
    context = fork_server()
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_with_few_files, args=(theirs, tmp_path), daemon=True)
    process.start()
    yield ours.recv(), ours
    ours.send("end")
    process.join(60)
    process.kill()


def connect(llm):
    address = urlsplit(llm.base_url)
    return socket.create_connection((address.hostname, address.port), 60)


def test_idle_connections_leave_files_and_answers(gateway):
    llm, process = gateway
    with contextlib.ExitStack() as stack:
        for number in range(5 * MAX_FILES // 2):
            connection = stack.enter_context(connect(llm))
            if number % 3 == 0:
                connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
            if number % 50 == 0:
                process.send("open")
                assert process.recv() == "opened"
                body = {"model": llm.model, "messages": QUESTION}
                assert ask(llm, CHAT, body)[0] == 200


def test_a_body_that_never_arrives_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.2)
    with serving() as (_, _, llm), connect(llm) as connection:
        path = urlsplit(llm.base_url).path + CHAT
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {llm.api_key}\r\n"
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        with contextlib.suppress(ConnectionError):
            while connection.recv(4096):
                pass


def test_a_connection_stays_open_between_two_requests(monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.2)
    with serving() as (gateway, _, _):
        connection = http.client.HTTPConnection(urlsplit(gateway.address).netloc, timeout=60)
        for _ in range(3):
            connection.request("GET", "/health")
            assert connection.getresponse().read()
            local = connection.sock.getsockname()
            with contextlib.suppress(TimeoutError):
                connection.sock.settimeout(0.5)
                assert connection.sock.recv(1) is None, "it was closed"
            connection.sock.settimeout(60)
            assert connection.sock.getsockname() == local
        connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8000"}, 200),
        ({"host": "rebound.example:8000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://203.0.113.5"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
    ],
)
def test_pages_of_other_sites_cannot_use_a_model_without_a_key(headers, status):
    with Gateway() as gateway:
        llm = gateway.open_at_root(make_session(), None)
        body = {"model": llm.model, "messages": QUESTION}
        assert ask(llm, CHAT, body, headers=headers)[0] == status
        with_key = gateway.open_at_root(make_session(), "secret")
        assert ask(with_key, CHAT, body, headers=headers)[0] == 200
