"""`turnwise serve`: a model over HTTP outside training, and the conversations that it keeps."""

import asyncio
import re
import signal
import socket

import pytest

from agents.serve_command import CHAT, check_served, forked, say
from agents.serving import ask, make_session
from agents.test_engines import TOKENIZER, make_model, sglang
from turnwise import ConfigError
from turnwise.agents.gateway import LLM
from turnwise.agents.requests import ChatRequest
from turnwise.agents.session import AgentSession
from turnwise.chat import ChatFormat
from turnwise.cli import main
from turnwise.cli.run_paths import find_source
from turnwise.episode import CollectorOptions
from turnwise.episode.options import make_setup
from turnwise.inference.scripted import ScriptedEngine


def test_a_model_is_served_until_an_interrupt():
    with forked() as (llm, process, errors):
        _, first = say(llm, "Hello", temperature=0)
        assert (first["usage"]["completion_tokens"], llm.api_key[:3]) == (5, "sk-")
        answer = first["choices"][0]["message"]["content"]
        status, second = say(llm, "Hello", answer, "And now?", temperature=0)
        assert status == 200
        # The tokens as they were sampled, whatever their text would be encoded as.
        _, other = say(llm, "Hello", "?", "And now?", temperature=0)
        assert second["usage"]["prompt_tokens"] > first["usage"]["total_tokens"]
        assert other["usage"]["prompt_tokens"] != second["usage"]["prompt_tokens"]
        same = [say(llm, "Hi", seed=3)[1]["choices"][0]["message"] for _ in range(2)]
        assert same[0] == same[1] != say(llm, "Hi", seed=4)[1]["choices"][0]["message"]
        assert say(llm, "Hi", temperature=-1)[0] == 400
        status, refused = ask(llm, CHAT, {}, key="sk-other")
        assert status == 401
        assert "that the server printed" in refused["error"]["message"]
        assert ask(llm, "/models", None, method="GET")[1]["data"][0]["id"] == "tiny"
        doubled = LLM(llm.base_url + "/v1", llm.api_key, "tiny")
        for path in ("/messages", "/embeddings"):
            status, refused = ask(doubled, path, {})
            assert status == 404
            assert "Invalid URL" in refused["error"]["message"]
        root = LLM(llm.anthropic_url, llm.api_key, "tiny")
        assert ask(root, "/health", None, method="GET") == (200, {"status": "ok", "model": "tiny"})
        body = {"model": "tiny", "input": "Hello", "max_output_tokens": 5}
        assert ask(llm, "/responses", body)[0] == 200
        body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
        assert 1 <= ask(llm, "/messages", body)[1]["usage"]["output_tokens"] <= 5
        process.send_signal(signal.SIGINT)
        logged = errors.read()
        assert process.wait(60) == 0
        assert re.search(r"POST /v1/chat/completions  200  \d+ \+ 5 tokens  \d+ ms", logged)
        assert re.search(r"POST /v1/chat/completions  401  \d+ ms", logged)


def test_transformers_can_serve():
    with forked("--backend", "transformers") as (llm, _, _):
        check_served(llm)


def test_a_server_of_sglang_can_be_served(tmp_path):
    model = make_model()
    TOKENIZER.save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    with sglang(model, deterministic=True) as (_, server, _):  # it only has seeds so
        options = ("--backend", "sglang", "--tokenizer", str(tmp_path), "--name", "mine")
        with forked(*options, model=server.url) as (llm, _, _):
            assert llm.model == "mine"
            check_served(llm)
            assert len(server.asked("/generate")) == 9


def test_what_cannot_be_served_is_said(capsys):
    def refused(*arguments):
        with pytest.raises(SystemExit) as exit:
            main(["serve", *arguments])
        assert exit.value.code == 2
        return capsys.readouterr().err

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused("tiny", "--port", str(port))
        assert f"cannot listen at 127.0.0.1, port {port}" in message
    assert "--no-api-key" in refused("tiny", "--host", "0.0.0.0")
    assert "exclude each other" in refused("tiny", "--api-key", "a", "--no-api-key")


class Counted(ScriptedEngine):
    """A scripted engine that says which sessions are open, and may fail."""

    def __init__(self, tokenizer, policy):
        super().__init__(tokenizer, policy)
        self.opened = set()
        self.fails = False

    async def sample(self, request):
        self.opened.add(request.session)
        if self.fails:
            raise RuntimeError("no more")
        return await super().sample(request)

    def end_session(self, session):
        self.opened.discard(session)


def test_old_conversations_are_dropped_and_failed_requests_leave_nothing():
    chat = make_session()._setup.chat
    engine = Counted(chat.tokenizer, lambda prompt: "Yes.")
    setup = make_setup(engine, CollectorOptions(chat_format=chat, parser="hermes"))
    session = AgentSession(setup, honours_sampling=True, max_conversations=3)

    def asked(*texts):
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        return ChatRequest(messages)

    async def talk():
        for number in range(20):
            await session.complete(asked(f"Question {number}"))
            await session.complete(asked("The one that goes on"))
        (kept,) = await session.complete(asked("The one that goes on", "Yes.", "More?"))
        assert len(engine.opened) == len(session.engine_sessions) == 3
        assert len(session.tree.turns) == len(session.records) == 4
        last = session.tree.turns[-1]
        assert last.parent is not None
        assert kept.num_prompt_tokens > last.parent.num_tokens
        # Of a dropped conversation the text is rendered.
        await session.complete(asked("Question 0", "Yes.", "More?"))
        assert session.tree.turns[-1].parent is None
        engine.fails = True
        for number in range(5):
            with pytest.raises(Exception, match="no more"):
                await session.complete(asked(f"Other {number}"))
        assert len(engine.opened) == len(session.engine_sessions) == 3
        await session.close()
        assert not engine.opened

    asyncio.run(talk())


def test_a_checkpoint_is_named_by_its_step(tmp_path):
    saved = tmp_path / "checkpoints" / "step-00000007"
    saved.mkdir(parents=True)
    (saved / "state.json").write_text("{}")
    assert find_source(str(tmp_path), "7") == find_source(str(saved), "7") == saved
    with pytest.raises(ConfigError, match="the step of a checkpoint"):
        find_source(str(tmp_path), "8")


def test_an_end_that_is_text_is_no_part_of_the_reply():
    chat = ChatFormat(TOKENIZER, "plain")
    engine = ScriptedEngine(TOKENIZER, lambda prompt: " Yes.\nUser: and more")
    session = AgentSession(make_setup(engine, CollectorOptions(chat_format=chat)))
    request = ChatRequest([{"role": "user", "content": "Is it?"}])
    (reply,) = asyncio.run(session.complete(request))
    assert reply.content.strip() == "Yes."
