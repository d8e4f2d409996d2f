"""Agents over HTTP: the APIs' own shapes, keys, budgets, and clients that misbehave."""

import asyncio
import json
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from agents.serving import (
    LOOK,
    QUESTION,
    TOOL,
    ask,
    joined,
    make_session,
    make_session_on,
    policy,
    serving,
)
from chat.families import make_format
from chat.zoo import zoo_format
from contention import peak_megabytes, wait_until
from turnwise.agents.gateway import Gateway
from turnwise.episode import EpisodeLimits, watchdog
from turnwise.inference import FinishReason, GenerationResult
from turnwise.inference.scripted import ScriptedEngine
from turnwise.types import EpisodeStatus

CHAT = "/chat/completions"
REQUESTS = {
    CHAT: {"model": "policy", "messages": QUESTION},
    "/responses": {"model": "policy", "input": "What is x?"},
    "/messages": {"model": "policy", "messages": QUESTION, "max_tokens": 200},
}


def chat_body(messages, **more):
    return {"model": "policy", "messages": messages, "tools": [TOOL], **more}


@pytest.mark.parametrize("streams", [False, True])
def test_a_conversation_with_tools_over_chat_completions(streams):
    with serving() as (_, session, llm):
        messages = list(QUESTION)
        for _ in range(2):
            status, found = ask(llm, CHAT, chat_body(messages, stream=streams))
            assert status == 200
            message = joined(found) if streams else found["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls", ()):
                assert json.loads(call["function"]["arguments"]) == {"key": "x"}
                result = {"role": "tool", "tool_call_id": call["id"], "content": "result 42"}
                messages.append(result)
        assert messages[1]["content"] == "Wait."
        assert messages[1]["reasoning_content"] == "Which x?"
        assert messages[-1]["content"] == "It is 42."
        stream = session.tree.stream()
        assert len(stream.turns) == 2
        assert not stream.branches, "the second request continues the first one's tokens"


def test_a_conversation_over_responses_and_over_anthropic_messages():
    with serving() as (_, session, llm):
        tools = [{"type": "function", **LOOK}]
        body = {"model": "policy", "instructions": "Help.", "tools": tools}
        _, first = ask(llm, "/responses", {**body, "input": "What is x?"})
        kinds = [item["type"] for item in first["output"]]
        assert kinds == ["reasoning", "message", "function_call"]
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"]}
        output["output"] = "result 42"
        again = [{"role": "user", "content": "What is x?"}, *first["output"], output]
        _, events = ask(llm, "/responses", {**body, "input": again, "stream": True})
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "It is 42."
        _, third = ask(
            llm, "/responses", {**body, "input": [output], "previous_response_id": first["id"]}
        )
        assert third["output"][0]["content"][0]["text"] == "It is 42."
        assert len(session.tree.stream().branches) == 1, "the third repeats the second"
    with serving() as (_, session, llm):
        tools = [{"name": "look", "input_schema": LOOK["parameters"]}]
        body = {"model": "policy", "max_tokens": 99, "system": "Help.", "tools": tools}
        _, first = ask(llm, "/messages", {**body, "messages": QUESTION})
        assert [block["type"] for block in first["content"]] == ["thinking", "text", "tool_use"]
        assert first["stop_reason"] == "tool_use"
        result = {"type": "tool_result", "tool_use_id": first["content"][-1]["id"]}
        result["content"] = [{"type": "text", "text": "result 42"}]
        again = [
            *QUESTION,
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        _, events = ask(llm, "/messages", {**body, "messages": again, "stream": True})
        texts = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
        assert "".join(texts) == "It is 42."
        assert events[-1]["type"] == "message_stop"
        assert not session.tree.stream().branches
        _, counted = ask(llm, "/messages/count_tokens", {**body, "messages": QUESTION})
        assert counted["input_tokens"] == first["usage"]["input_tokens"]


def test_what_is_refused_has_the_shape_of_the_api():
    cases = [
        (CHAT, b"{not json", 400, "invalid_json"),
        (CHAT, b"[" * 100_000, 400, "invalid_json"),
        (
            CHAT,
            chat_body([{"role": "user", "content": "half a pair: \ud83d"}]),
            400,
            "invalid_json",
        ),
        (CHAT, b"[]", 400, None),
        (CHAT, {"model": "policy"}, 400, None),
        (CHAT, chat_body([]), 400, None),
        (CHAT, chat_body([{"role": "wizard", "content": "x"}]), 400, None),
        (CHAT, chat_body([{"role": "user", "content": [{"type": "image_url"}]}]), 400, None),
        (CHAT, chat_body(QUESTION, wings=2), 400, "unknown_parameter"),
        (CHAT, chat_body(QUESTION, temperature=9), 400, None),
        (CHAT, chat_body(QUESTION, n=0), 400, None),
        (CHAT, chat_body(QUESTION, logit_bias={"5": 1}), 400, "unsupported_parameter"),
        (CHAT, {**chat_body(QUESTION), "model": "gpt"}, 404, "model_not_found"),
        (CHAT, {**chat_body(QUESTION), "tools": [{"type": "web"}]}, 400, None),
        (CHAT, chat_body([*QUESTION, {"role": "assistant", "tool_calls": [5]}]), 400, None),
        ("/embeddings", {"model": "policy", "input": "x"}, 404, "unknown_url"),
        ("/responses", {"model": "policy", "input": [{"type": "image"}]}, 400, None),
    ]
    unknown = {"model": "policy", "input": "x", "previous_response_id": "r"}
    cases.append(("/responses", unknown, 400, "previous_response_not_found"))
    with serving() as (_, session, llm):
        for path, body, status, code in cases:
            found = ask(llm, path, body)
            assert (found[0], found[1]["error"]["code"]) == (status, code), (str(body)[:80], found)
            assert found[1]["error"]["message"]
        for body in (
            {"model": "policy", "messages": QUESTION},
            {"model": "x", "messages": []},
            {"model": "policy", "messages": [{"role": "user", "content": 5}], "max_tokens": 9},
            {
                "model": "policy",
                "messages": [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}],
                "max_tokens": 9,
            },
        ):
            status, found = ask(llm, "/messages", body)
            assert status in (400, 404)
            assert found["type"] == "error"
            assert found["error"]["type"] in ("invalid_request_error", "not_found_error")
        status, found = ask(llm, "/v1/messages", {}, headers={"anthropic-version": "2023-06-01"})
        assert (status, found["error"]["type"]) == (404, "not_found_error"), "the shape of its API"
        assert "llm.anthropic_url" in found["error"]["message"]
        assert not session.tree.turns


def test_messages_that_no_template_has_a_place_for_are_served_or_refused():
    deep = '{"a": {"a": 1}}'
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": deep}}
    result = {"role": "tool", "tool_call_id": "a", "content": "x"}
    with serving() as (_, _, llm):
        _, found = ask(llm, CHAT, chat_body(QUESTION))
        reply = found["choices"][0]["message"]
        system = {"role": "system", "content": "Be brief."}
        for messages in (
            [*QUESTION, {"role": "assistant", "tool_calls": [call]}, result],
            [*QUESTION, reply],  # nothing is new
            [*QUESTION, {"role": "assistant", "content": "It"}],
            [*QUESTION, reply, system, *QUESTION],
            [*QUESTION, system, *QUESTION],
            [*QUESTION, result],  # no call before it
            [{"role": "user"}],
            [{"role": "user", "content": "a whole pair: \U0001f600"}],
            [{"role": "user", "content": "\x00"}, {"role": "assistant", "content": "\ufeff"}],
        ):
            status, found = ask(llm, CHAT, chat_body(messages))
            assert status == 200, (messages, found)
        assert (
            ask(llm, "/messages/count_tokens", {**REQUESTS["/messages"], "messages": []})[0] == 400
        )
    chat = zoo_format("llama-2")  # which writes the system message with the first of the user
    session = make_session_on(ScriptedEngine(chat.tokenizer, "Yes."))
    with serving(session) as (_, _, llm):
        status, found = ask(llm, CHAT, chat_body([system], tools=[]))
        assert (status, found["error"]["param"]) == (400, "messages"), found
        assert not session.tree.turns


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
@pytest.mark.parametrize("streams", [False, True])
def test_half_a_surrogate_pair_in_a_call_of_the_policy_can_be_sent(path, streams):
    text = '<tool_call>{"name": "look", "arguments": {"key": "\\ud83d!"}}</tool_call>'
    tools = [TOOL]
    if path != CHAT:
        tools = [{"type": "function", **LOOK}]
    if path == "/messages":
        tools = [{"name": "look", "input_schema": LOOK["parameters"]}]
    with serving(make_session(lambda _: text)) as (_, session, llm):
        body = {**REQUESTS[path], "tools": tools, "stream": streams}
        status, found = ask(llm, path, body)
        assert status == 200
        assert "\ufffd!" in json.dumps(found, ensure_ascii=False)
        assert len(session.tree.turns) == 1


def test_a_long_message_keeps_no_other_episode_waiting():
    begun, answered = threading.Event(), threading.Event()
    session = make_session()
    writer = session.tree.writer
    encode = writer.prompt_ids

    def encode_later(messages, tools):
        begun.set()
        assert answered.wait(60), "the other episode was not served"
        return encode(messages, tools)

    writer.prompt_ids = encode_later
    body = chat_body([{"role": "user", "content": "What is x? " * 1000}])
    with serving(session) as (gateway, _, llm), ThreadPoolExecutor() as pool:
        other = gateway.open(make_session())
        long = pool.submit(ask, llm, CHAT, body)
        assert begun.wait(60)
        assert ask(other, CHAT, chat_body(QUESTION))[0] == 200
        answered.set()
        assert long.result()[0] == 200
        assert session.tree.turns[0].context_ids == encode(body["messages"], [TOOL])
        asyncio.run(gateway.close(other))


def test_what_goes_wrong_inside_is_an_error_of_the_api_and_costs_no_turn(caplog):
    session = make_session(limits=EpisodeLimits(max_turns=1))
    with serving(session) as (_, _, llm):
        match = session.tree.match
        session.tree.match = None  # any error of ours
        assert ask(llm, CHAT, chat_body(QUESTION))[1]["error"]["code"] == "server_error"
        session.tree.match = match
        assert "could not serve a request" in caplog.text
        assert ask(llm, CHAT, {**chat_body(QUESTION), "tools": [{"type": "web"}]})[0] == 400
        assert ask(llm, CHAT, chat_body(QUESTION))[0] == 200
        assert ask(llm, CHAT, chat_body(QUESTION))[0] == 429


@pytest.mark.parametrize("path", REQUESTS)
def test_a_key_opens_its_own_episode_until_that_ends(path):
    body = REQUESTS[path]
    with serving() as (gateway, session, llm):
        other = gateway.open(make_session())
        assert ask(llm, "/models", None, method="GET")[0] == 200
        for key in (other.api_key, "sk-é", "sk-", llm.api_key[:-1]):
            status, found = ask(llm, path, body, key=key)
            assert status == 401
            assert "Incorrect API key provided" in found["error"]["message"]
        assert ask(llm, "/models", None, method="GET", key=other.api_key)[0] == 401
        assert not session.tree.turns
        assert ask(llm, path, body)[0] == 200
        asyncio.run(gateway.close(llm))
        for streams in (False, True):
            status, found = ask(llm, path, {**body, "stream": streams})
            assert status == 401
            assert "the episode has ended" in found["error"]["message"]
        assert len(session.tree.turns) == 1
        assert ask(other, path, body)[0] == 200
        asyncio.run(gateway.close(other))


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        ("/responses", "max_output_tokens"),
        ("/messages", "max_tokens"),
    ],
)
def test_a_request_may_ask_for_less_than_the_run_allows(path, field):
    session = make_session(limits=EpisodeLimits(max_tokens_per_turn=7))
    with serving(session) as (_, _, llm):
        for most, expected in ((3, 3), (10**6, 7)):
            _, found = ask(llm, path, {**REQUESTS[path], field: most})
            used = found["usage"]
            assert used.get("completion_tokens", used.get("output_tokens")) == expected
            if path == CHAT:
                assert found["choices"][0]["finish_reason"] == "length"
            elif path == "/responses":
                assert found["status"] == "incomplete"
                assert found["incomplete_details"] == {"reason": "max_output_tokens"}
            else:
                assert found["stop_reason"] == "max_tokens"
        assert [len(turn.ids) for turn in session.tree.turns] == [3, 7]
        assert ask(llm, path, {**REQUESTS[path], field: 0})[0] == 400


def test_budgets_end_with_the_errors_of_the_real_api():
    session = make_session(limits=EpisodeLimits(max_turns=2))
    with serving(session) as (_, _, llm):
        assert ask(llm, CHAT, chat_body(QUESTION, n=2))[0] == 200
        status, found = ask(llm, CHAT, chat_body(QUESTION))
        assert (status, found["error"]["code"]) == (429, "insufficient_quota")
        assert session.exhausted is EpisodeStatus.TRUNCATED_BY_TURNS
    session = make_session(limits=EpisodeLimits(max_tokens=20))
    with serving(session) as (_, _, llm):
        status, found = ask(llm, CHAT, chat_body(QUESTION))
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
        assert session.exhausted is EpisodeStatus.TRUNCATED_BY_TOKENS


def test_messages_that_cannot_fit_are_refused_before_they_are_encoded():
    messages = [{"role": "user", "content": "hello there, " * 800_000}]
    session = make_session(limits=EpisodeLimits(max_tokens=5000))
    with serving(session) as (_, _, llm):
        memory, start = peak_megabytes(), time.process_time()
        status, found = ask(llm, CHAT, chat_body(messages))
        assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
        assert session.exhausted is EpisodeStatus.TRUNCATED_BY_TOKENS
    assert time.process_time() - start < 10
    assert peak_megabytes() - memory < 300


def test_the_time_of_an_episode_ends_in_the_middle_of_a_turn(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Late(ScriptedEngine):
        async def sample(self, request):
            now[0] += 1800.0
            return GenerationResult([], [], FinishReason.DEADLINE, 0)

    session = make_session_on(Late(make_format("hermes").tokenizer, policy))
    with serving(session) as (_, _, llm):
        for _ in range(2):  # the second one is refused at once
            status, found = ask(llm, CHAT, chat_body(QUESTION))
            assert (status, found["error"]["code"]) == (429, "insufficient_quota")
        assert session.exhausted is EpisodeStatus.TRUNCATED_BY_TIME
        assert session.failure is None


def test_replies_stop_choose_and_report_as_asked():
    with serving() as (_, _, llm):
        _, found = ask(llm, CHAT, chat_body(QUESTION, n=3, logprobs=True))
        assert len({choice["index"] for choice in found["choices"]}) == 3
        counted = [len(choice["logprobs"]["content"]) for choice in found["choices"]]
        assert sum(counted) == found["usage"]["completion_tokens"]
        _, found = ask(llm, CHAT, chat_body(QUESTION, stop=["Wait"]))
        assert found["choices"][0]["message"]["content"] in (None, "")
        for nothing in ("", [], [""]):
            assert ask(llm, CHAT, chat_body(QUESTION, stop=nothing))[0] == 200
        body = {"model": "policy", "max_tokens": 9, "messages": QUESTION, "stop_sequences": [""]}
        assert ask(llm, "/messages", body)[0] == 200
        _, chunks = ask(
            llm, CHAT, chat_body(QUESTION, stream=True, stream_options={"include_usage": True})
        )
        assert chunks[-1]["usage"]["total_tokens"] > 0


def hang_up(llm, path, body, num_sent, num_read):
    """Send the first bytes of a request, read the first bytes of its answer, and reset."""
    address, data = urlsplit(llm.base_url), json.dumps(body).encode()
    head = (
        f"POST {address.path}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {llm.api_key}\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall((head.encode() + data)[:num_sent])
        while num_read > 0 and (read := connection.recv(num_read)):
            num_read -= len(read)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_clients_that_hang_up_at_any_point_leave_nothing_behind(caplog):
    rng = random.Random(0)

    def one(number):
        path, body = list(REQUESTS.items())[number % 3]
        body = {**body, "stream": number % 2 == 0}
        if number % 4 == 0:
            hang_up(llm, path, body, rng.randrange(1, 300), 0)
        elif number % 4 < 3:
            hang_up(llm, path, body, 10**6, rng.choice([0, 1, 50, 300, 900]))
        else:
            assert ask(llm, path, body)[0] == 200

    session = make_session()
    sample = session._setup.engine.sample

    async def slow(request):
        await asyncio.sleep(0.005)
        return await sample(request)

    session._setup.engine.sample = slow
    with serving(session) as (_, _, llm), ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(48)))
        assert wait_until(lambda: not session._tasks)
        assert ask(llm, CHAT, chat_body(QUESTION))[0] == 200
        assert session.tree._under_way == len(session._tasks) == 0
        assert len(session.engine_sessions) == len(session.tree.turns) > 12
    assert len(session.engine_sessions) == 0
    assert "socket.send" not in caplog.text


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
        assert "secret" not in repr(gateway)
        assert ask(with_key, CHAT, body, headers=headers)[0] == 200
