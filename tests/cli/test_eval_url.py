"""`turnwise eval --url`: a model behind any OpenAI-compatible server plays, as a baseline."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cli.conftest import figures


class Server(ThreadingHTTPServer):
    """Answers chat requests with `reply(messages)`, and keeps what it was asked."""

    def __init__(self, reply, models=("clever",)):
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply, self.models = reply, models
        self.asked, self.keys, self.failures = [], set(), []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        self.answer(200, {"data": [{"id": name} for name in self.server.models]})

    def do_POST(self):
        assert self.path == "/v1/chat/completions"
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.keys.add(self.headers.get("authorization"))
        if self.server.failures:
            self.answer(self.server.failures.pop(), {"error": {"message": "too busy"}})
            return
        self.server.asked.append(body)
        message = {"role": "assistant", "content": self.server.reply(body["messages"])}
        self.answer(200, {"choices": [{"message": message, "finish_reason": "stop"}]})

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def serve():
    servers = []

    def start(reply, **options):
        server = Server(reply, **options)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def take(messages):
    """Take as many coins as asked for, then stop; what it has taken is in the messages."""
    num_asked = int(messages[1]["content"].split()[1].strip("."))
    num_taken = sum(message["role"] == "assistant" for message in messages)
    return "take" if num_taken < num_asked else "stop"


def played(turnwise, *arguments):
    return figures(turnwise, *arguments, "--episodes", "4")


def test_it_plays_every_turn_of_an_environment(turnwise, serve, coins, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "my-key")
    server = serve(take)
    found = played(turnwise, "--url", server.url, "--env", coins, "--max-tokens", "9")
    assert found["agent"]["success"] == found["expert"]["success"] == 1.0
    assert found["agent"]["turns"] == found["expert"]["turns"] > 2
    assert found["played_by"] == f"clever at {server.url}"
    assert server.keys == {"Bearer my-key"}
    first = server.asked[0]
    assert (first["model"], first["max_tokens"]) == ("clever", 9)
    assert "temperature" not in first  # a server may refuse what the user did not ask for
    assert found["sampling"] == "the server's own"
    assert [message["role"] for message in first["messages"]] == ["system", "user"]


def test_a_busy_server_is_asked_again(turnwise, serve, coins):
    server = serve(take)
    server.failures = [429, 503]
    found = played(turnwise, "--url", server.url, "--model", "other", "--env", coins, "--greedy")
    assert found["agent"]["errors"] == 0
    assert (server.asked[0]["model"], server.asked[0]["temperature"]) == ("other", 0.0)
    assert "max_tokens" not in server.asked[0]


def test_what_cannot_play_is_said(turnwise, serve):
    server = serve(take, models=("small", "large"))
    ran = turnwise("eval", "--url", server.url, "--env", "guess-number")
    assert ran.code == 2
    assert "offers 2 models. Name one with --model: small, large" in ran.err
    ran = turnwise("eval", "--url", server.url, "--env", "guess-number", "--agent", "expert")
    assert "one of them plays" in ran.err
    ran = turnwise("eval", "--url", "localhost:8000", "--model", "m", "--env", "guess-number")
    assert "must begin with http:// or https://" in ran.err


def test_in_the_environment_of_a_run(turnwise, serve, runs):
    found = played(turnwise, "runs/script", "--url", serve(take).url)
    assert found["name"] == "runs/script"
    assert found["agent"]["success"] == 1.0


TOOL = '''
from turnwise import tool


@tool
def count(word: str) -> int:
    """Count the letters of a word."""
    return len(word)
'''


def test_tools_are_called_as_text(turnwise, serve, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(TOOL)
    rows = [{"prompt": "How long is house?", "answer": "5"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def reply(messages):
        if messages[-1]["content"].endswith("5"):
            return "5"
        assert "count(" in messages[0]["content"]  # what the prompt says of the tool
        return json.dumps({"name": "count", "arguments": {"word": "house"}})

    server = serve(reply)
    options = ["--env", "prompts", "--dataset", "rows.jsonl", "--tool", "tools.py:count"]
    found = played(turnwise, "--url", server.url, *options, "--parser", "json")
    assert found["agent"]["success"] == 1.0
    assert {message["role"] for asked in server.asked for message in asked["messages"]} == {
        "system",
        "user",
        "assistant",
    }
