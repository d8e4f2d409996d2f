"""`openai_complete` against a local server that speaks the chat interface."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from turnwise.errors import ConfigError, RewardError
from turnwise.reward import LLMJudge, openai_complete, score_trajectories
from turnwise.types import Trajectory


def answer(text):
    return 200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}


class ChatServer:
    """Gives the replies in turn, the last one for ever, and keeps the requests."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.requests = []
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                chat.requests.append((self.path, dict(self.headers), body))
                status, reply = chat.replies.pop(0) if len(chat.replies) > 1 else chat.replies[0]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(
                    reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
                )

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def test_a_judge_over_http(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    with ChatServer(answer("Good.\nScore: 8")) as chat:
        complete = openai_complete(f"{chat.url}/", "judge-1", api_key_env="JUDGE_KEY")
        batch = [Trajectory(actions=[name], rewards=[0.0]) for name in ("one", "two")]
        outcomes = score_trajectories(batch, LLMJudge(complete))
    assert [outcome.total for outcome in outcomes] == [0.8, 0.8]
    for path, headers, body in chat.requests:
        assert path == "/v1/chat/completions"
        assert headers["Authorization"] == "Bearer secret"
        assert body["model"] == "judge-1"
        assert body["temperature"] == 0.0
        assert [message["role"] for message in body["messages"]] == ["user"]
    asked = {body["messages"][0]["content"] for _, _, body in chat.requests}
    assert len(asked) == 2


def test_a_busy_server_is_asked_again():
    with ChatServer((503, "busy"), answer("hi")) as chat:
        assert openai_complete(chat.url, "m")("hello") == "hi"
    assert len(chat.requests) == 2


def test_a_refusal_is_an_error_at_once_and_does_not_show_the_key(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    with ChatServer((401, "who are you?")) as chat:
        complete = openai_complete(chat.url, "m", api_key_env="JUDGE_KEY")
        with pytest.raises(RewardError, match=r"HTTP 401: who are you\?") as caught:
            complete("hello")
    assert "secret" not in str(caught.value)
    assert len(chat.requests) == 1


@pytest.mark.parametrize("reply", ["not json", {"error": "x"}, {"choices": []}, [1]])
def test_an_answer_in_another_form_is_an_error(reply):
    expected = r"expected (choices\[0\]\.message\.content|JSON)"
    with ChatServer((200, reply)) as chat, pytest.raises(RewardError, match=expected):
        openai_complete(chat.url, "m")("hello")


def test_a_server_that_is_gone_is_an_error(monkeypatch):
    monkeypatch.setattr("turnwise.reward.judge.NUM_ATTEMPTS", 1)
    with ChatServer(answer("hi")) as chat:
        pass
    with pytest.raises(RewardError, match="gave no answer"):
        openai_complete(chat.url, "m")("hello")


def test_settings_that_cannot_work_are_refused(monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ConfigError, match="JUDGE_KEY"):
        openai_complete("http://localhost/v1", "m", api_key_env="JUDGE_KEY")
    with pytest.raises(ConfigError, match="http://"):
        openai_complete("file:///etc/passwd", "m")
