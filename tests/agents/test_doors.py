"""What clients of other servers send and expect: fields, tools, token ids, Google's API, keys."""

import asyncio
import dataclasses
import json
import math
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from agents.serving import CALL, LOOK, QUESTION, TOOL, ask, make_session, serving
from chat.families import make_format
from turnwise.agents.gateway import EPISODE_HEADER, Gateway
from turnwise.agents.requests import log_once
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions, EpisodeLimits
from turnwise.episode.options import make_setup
from turnwise.inference.scripted import ScriptedEngine

CHAT = "/chat/completions"
GOOGLE = "beta/models/policy"  # behind /v1
CONTENTS = [{"role": "user", "parts": [{"text": "What is x?"}]}]
SCHEMA = {"type": "OBJECT", "properties": {"key": {"type": "STRING"}, "type": {"type": "STRING"}}}
DECLARED = [{"functionDeclarations": [{**LOOK, "parameters": SCHEMA}]}]


def test_fields_that_nobody_knows_are_logged_once(caplog):
    log_once.cache_clear()
    with serving() as (_, _, llm):
        for path, body in (
            (CHAT, {"messages": QUESTION, "wings": 2, "metadata": {"a": "b"}}),
            ("/responses", {"input": "What is x?", "wings": 2, "client_metadata": {"id": "x"}}),
            ("/messages", {"messages": QUESTION, "max_tokens": 9, "wings": 2, "thinking": {}}),
            (f"{GOOGLE}:generateContent", {"contents": CONTENTS, "wings": 2}),
        ):
            assert ask(llm, path, {"model": "policy", **body})[0] == 200
    (line,) = caplog.messages
    assert "'wings'" in line
    assert "ignored" in line


def test_tools_in_namespaces_are_called_by_their_whole_name():
    call = CALL.replace("look", "mcp__notes__look")
    member = {"type": "function", **LOOK}
    tools = [
        {"type": "namespace", "name": "mcp__notes", "tools": [member]},
        {"type": "namespace", "name": "empty"},
        {"type": "web_search", "external_web_access": True},
    ]
    prompts = []

    def policy(prompt):
        prompts.append(prompt)
        return "Done." if "result 42" in prompt else call

    with serving(make_session(policy)) as (_, session, llm):
        body = {"model": "policy", "tools": tools, "input": [*QUESTION]}
        for streams in (False, True):
            _, found = ask(llm, "/responses", {**body, "stream": streams})
            response = found[-1]["response"] if streams else found
            (item,) = response["output"]
            assert (item["namespace"], item["name"]) == ("mcp__notes", "look")
        assert "mcp__notes__look" in prompts[0]
        assert "web_search" not in prompts[0]
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "result 42"}
        ask(llm, "/responses", {**body, "input": [*QUESTION, item, output]})
        assert session.tree.turns[-1].parent is session.tree.turns[-2], "the names are the same"
        bad = [{"type": "namespace", "name": "x", "tools": [5]}]
        status, found = ask(llm, "/responses", {**body, "tools": bad})
        assert status == 400
        assert "in a namespace" in found["error"]["message"]


@pytest.mark.parametrize(
    ("path", "tools", "expected"),
    [
        (CHAT, [TOOL, {"type": "web_search_preview"}], "web_search_preview"),
        ("/responses", [{"type": "function", **LOOK}, {"type": "image_generation"}], "image_gen"),
        (
            "/messages",
            [
                {"name": "look", "input_schema": LOOK["parameters"]},
                {"type": "web_search_20260901", "name": "web_search"},
            ],
            "web_search_20260901",
        ),
        (f"{GOOGLE}:generateContent", [*DECLARED, {"googleSearch": {}}], "googleSearch"),
    ],
)
def test_tools_of_servers_are_dropped_and_logged(path, tools, expected, caplog):
    log_once.cache_clear()
    prompts = []
    with serving(make_session(lambda prompt: prompts.append(prompt) or CALL)) as (_, _, llm):
        body = {"model": "policy", "tools": tools, "max_tokens": 200}
        body |= {"/responses": {"input": "Hi"}, f"{GOOGLE}:generateContent": {}}.get(
            path, {"messages": QUESTION}
        )
        body = {"contents": CONTENTS, "tools": tools} if "Content" in path else body
        for _ in range(2):
            status, found = ask(llm, path, body)
            assert status == 200, found
            assert '"look"' in json.dumps(found)
    assert expected not in prompts[0]
    assert len([line for line in caplog.messages if expected in line]) == 1


# -- ids of tokens ---------------------------------------------------------------------------------


class Counting(ScriptedEngine):
    """Has a log-prob of its own for every token."""

    async def score(self, ids, start):
        return [-0.001 * (i % 997) for i in ids[start:]]


def make_counting(policy, **limits):
    chat = make_format("hermes")
    options = CollectorOptions(chat_format=chat, parser="hermes", limits=EpisodeLimits(**limits))
    return AgentSession(make_setup(Counting(chat.tokenizer, policy), options))


EVERYTHING = (
    "return_token_ids", "return_meta_info", "return_input_ids_in_sglext",
    "return_output_ids_in_sglext", "logprobs", "return_tokens_as_token_ids",
)  # fmt: skip


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("num_replies", [1, 3])
def test_the_ids_of_a_reply_are_those_that_are_trained_on(streams, num_replies):
    session = make_counting(lambda _: f"<think>Hm.</think>Wait ☃. {CALL}")
    body = {"model": "policy", "messages": QUESTION, "tools": [TOOL], "n": num_replies}
    wanted = {**body, "stream": streams, **dict.fromkeys(EVERYTHING, True)}
    with serving(session) as (_, _, llm):
        _, found = ask(llm, CHAT, wanted)
        chunks = found if streams else [found]
        choices = [
            choice for chunk in chunks for choice in chunk["choices"] if "token_ids" in choice
        ]
        assert len(choices) == len(session.tree.turns) == num_replies
        prompt = session.tree.turns[0].context_ids
        for choice, turn in zip(choices, session.tree.turns, strict=True):
            assert choice["token_ids"] == choice["response_token_ids"] == turn.ids
            assert choice["prompt_token_ids"] == prompt
            content = choice["logprobs"]["content"]
            assert [each["token"] for each in content] == [f"token_id:{i}" for i in turn.ids]
            assert [each["logprob"] for each in content] == turn.log_probs
            triples = choice["meta_info"]["output_token_logprobs"]
            assert [triple[:2] for triple in triples] == [
                list(pair) for pair in zip(turn.log_probs, turn.ids, strict=True)
            ]
            assert "token_mask" not in choice
        assert chunks[0]["prompt_token_ids"] == prompt, "with the first chunk"
        ids = [turn.ids for turn in session.tree.turns]
        assert [chunk["sglext"] for chunk in chunks if "sglext" in chunk] == [
            {"input_ids": prompt, "output_ids": ids}
        ]
        _, plain = ask(llm, CHAT, {**body, "stream": streams})
        text = json.dumps(plain)
        assert not any(name in text for name in ("token_ids", "sglext", "meta_info"))


def test_tokens_that_were_not_sampled_are_in_the_prompt_or_marked():
    session = make_counting(CALL.removeprefix('<tool_call>\n{"name": "look", '))
    body = {"model": "policy", "messages": QUESTION, "tools": [TOOL], "return_token_ids": True}
    with serving(session) as (_, _, llm):
        _, found = ask(llm, CHAT, {**body, "tool_choice": "required", "logprobs": True})
        (turn,), (choice,) = session.tree.turns, found["choices"]
        assert turn.inserted[0] == 0 < turn.inserted[1]
        assert found["prompt_token_ids"] == [*turn.context_ids, *turn.ids[: turn.inserted[1]]]
        assert choice["token_ids"] == turn.ids[turn.inserted[1] :]
        assert [each["logprob"] for each in choice["logprobs"]["content"]] == turn.log_probs
    session = make_counting(
        lambda prompt: "so." if "</think>" in prompt else "<think>" + 90 * "m",
        max_thinking_tokens=20,
    )
    with serving(session) as (_, _, llm):
        _, found = ask(llm, CHAT, {**body, "logprobs": True})
        (turn,), (choice,) = session.tree.turns, found["choices"]
        first, last = turn.inserted
        assert 0 < first < last < len(turn.ids)
        assert found["prompt_token_ids"] == turn.context_ids
        assert choice["token_ids"] == turn.ids
        stream = session.tree.stream()
        assert choice["token_mask"] == stream.mask[stream.turns[0][0] :]
        log_probs = [each["logprob"] for each in choice["logprobs"]["content"]]
        assert log_probs[first:last] == [0.0] * (last - first)
        assert log_probs == [0 if math.isnan(x) else x for x in stream.log_probs[-len(turn.ids) :]]


# -- Google's API ----------------------------------------------------------------------------------


def parts_of(found):
    chunks = found if isinstance(found, list) else [found]
    parts = [p for chunk in chunks for c in chunk["candidates"] for p in c["content"]["parts"]]
    return [part for part in parts if part.get("text") != ""], chunks[-1]


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent?alt=sse"])
@pytest.mark.parametrize("has_ids", [True, False])
def test_a_conversation_with_tools_over_googles_api(method, has_ids):
    with serving() as (_, session, llm):
        contents = list(CONTENTS)
        body = {"systemInstruction": {"parts": [{"text": "Help."}]}, "tools": DECLARED}
        found, last = [], {}
        for _ in range(2):
            status, answer = ask(llm, f"{GOOGLE}:{method}", {**body, "contents": contents})
            assert status == 200, answer
            assert isinstance(answer, list) is ("alt" in method)
            found, last = parts_of(answer)
            calls = [part["functionCall"] for part in found if "functionCall" in part]
            if calls:
                assert calls[0]["args"] == {"key": "x"}
                sent_id = {"id": calls[0]["id"]} if has_ids else {}
                if not has_ids:
                    del calls[0]["id"]
                result = {**sent_id, "name": "look", "response": {"output": "result 42"}}
                contents += [
                    {"role": "model", "parts": found},
                    {"role": "user", "parts": [{"functionResponse": result}]},
                ]
        assert [part["text"] for part in found] == ["It is 42."]
        assert last["candidates"][0]["finishReason"] == "STOP"
        assert last["usageMetadata"]["totalTokenCount"] > 0
        first = contents[1]["parts"]
        assert first[0] == {"text": "Which x?", "thought": True}
        assert first[1] == {"text": "Wait."}
        stream = session.tree.stream()
        assert len(stream.turns) == 2
        assert not stream.branches, "the second request continues the first one's tokens"
        counted = ask(llm, f"{GOOGLE}:countTokens", {**body, "contents": CONTENTS})[1]
        assert counted == {"totalTokens": len(session.tree.turns[0].context_ids)}


def test_googles_settings_and_schemas():
    prompts = []

    def policy(prompt):
        prompts.append(prompt)
        return CALL.partition('"arguments":')[2] if prompt.endswith('"arguments":') else CALL

    session = make_session(policy)
    path = f"{GOOGLE}:generateContent"
    with serving(session) as (_, _, llm):
        for config, code in (
            ({"maxOutputTokens": 3, "candidateCount": 2, "topK": 64, "topP": 0.9}, 200),
            ({"maxOutputTokens": 3, "temperature": 1, "thinkingConfig": {}}, 200),
            ({"responseMimeType": "application/json"}, 400),
            ({"temperature": 9}, 400),
        ):
            body = {"contents": CONTENTS, "tools": DECLARED, "generationConfig": config}
            status, found = ask(llm, path, body)
            assert status == code, found
            if code == 200:
                assert len(found["candidates"]) == config.get("candidateCount", 1)
                assert found["candidates"][0]["finishReason"] == "MAX_TOKENS"
            else:
                assert found["error"]["status"] == "INVALID_ARGUMENT"
        assert '"OBJECT"' not in prompts[0], "types are lower case, as the model knows them"
        assert '"type": {"type": "string"}' in prompts[0], "a property may have that name"
        for mode, reply in (("NONE", "text"), ("AUTO", "functionCall"), ("ANY", "functionCall")):
            config = {"mode": mode}
            if mode == "ANY":
                config["allowedFunctionNames"] = ["look"]
            body = {"contents": CONTENTS, "tools": DECLARED}
            body["toolConfig"] = {"functionCallingConfig": config}
            _, found = ask(llm, path, body)
            assert reply in found["candidates"][0]["content"]["parts"][-1]


def test_what_googles_api_refuses_has_its_shape():
    image = [{"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": ""}}]}]
    cases = [
        (f"{GOOGLE}:generateContent", {}, 400, "INVALID_ARGUMENT"),
        (f"{GOOGLE}:generateContent", {"contents": image}, 400, "INVALID_ARGUMENT"),
        (f"{GOOGLE}:generateContent", {"contents": [{"parts": [5]}]}, 400, "INVALID_ARGUMENT"),
        (f"{GOOGLE}:generateContent", {"contents": [{"parts": 5}]}, 400, "INVALID_ARGUMENT"),
        (f"{GOOGLE}:generateContent", {"contents": [], "tools": []}, 400, "INVALID_ARGUMENT"),
        (f"{GOOGLE}:streamGenerateContent", {"contents": CONTENTS}, 400, "INVALID_ARGUMENT"),
        (f"{GOOGLE}:embedContent", {"contents": CONTENTS}, 400, "INVALID_ARGUMENT"),
        ("beta/models/gpt:generateContent", {"contents": CONTENTS}, 404, "NOT_FOUND"),
        (f"{GOOGLE}:generateContent", b"{no", 400, "INVALID_ARGUMENT"),
    ]
    for bad in (
        {"tools": [{"functionDeclarations": [5]}]},
        {"tools": [{"functionDeclarations": 5}]},
        {"tools": [{"functionDeclarations": [{"name": 5}]}]},
        {"cachedContent": "x"},
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}}},
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": 5}}},
        {"systemInstruction": {"parts": [{"fileData": {}}]}},
        {"systemInstruction": "Help."},
    ):
        tools = {"contents": CONTENTS, "tools": DECLARED, **bad}
        cases.append((f"{GOOGLE}:streamGenerateContent?alt=sse", tools, 400, "INVALID_ARGUMENT"))
    with serving(make_session(limits=EpisodeLimits(max_turns=1))) as (_, session, llm):
        for path, body, status, name in cases:
            found = ask(llm, path, body)
            assert found[0] == status, (path, body, found)
            assert found[1]["error"]["status"] == name
            assert found[1]["error"]["message"]
        assert ask(llm, f"{GOOGLE}:generateContent", {"contents": CONTENTS}, key="x")[0] == 401
        assert not session.tree.turns
        assert ask(llm, f"{GOOGLE}:generateContent", {"contents": CONTENTS})[0] == 200
        status, found = ask(llm, f"{GOOGLE}:generateContent", {"contents": CONTENTS})
        assert (status, found["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")


def test_many_episodes_at_one_url_get_their_own_tokens():
    def ask_of(session, llm):
        shared = dataclasses.replace(llm, base_url=f"{gateway.address}/v1")
        body = {"model": "policy", "messages": QUESTION, "return_token_ids": True}
        _, found = ask(shared, CHAT, body)
        (turn,) = session.tree.turns
        assert found["prompt_token_ids"] == turn.context_ids
        assert found["choices"][0]["token_ids"] == turn.ids
        return found["choices"][0]["message"]["content"]

    with Gateway() as gateway, ThreadPoolExecutor(16) as pool:
        sessions = [make_session(f"I am {number}.") for number in range(64)]
        llms = [gateway.open(session) for session in sessions]
        assert [*pool.map(ask_of, sessions, llms)] == [f"I am {n}." for n in range(64)]
        for llm in llms:
            asyncio.run(gateway.close(llm))


# -- which episode ---------------------------------------------------------------------------------


def post(url, headers):
    body = {"model": "policy", "messages": QUESTION, "contents": CONTENTS}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_an_episode_is_named_by_its_key_a_header_or_its_path():
    with Gateway() as gateway:
        sessions = [make_session() for _ in range(3)]
        llms = [gateway.open(session) for session in sessions]
        shared = f"{gateway.address}/v1{CHAT}"
        google = f"{gateway.address}/v1beta/models/policy:generateContent"
        for number, llm in enumerate(llms):
            before = len(sessions[number].tree.turns)
            ways = [
                (shared, {"authorization": f"Bearer {llm.api_key}"}),
                (shared, {"x-api-key": llm.api_key}),
                (shared, {"authorization": "Bearer of-a-proxy", EPISODE_HEADER: llm.api_key}),
                (llm.base_url + CHAT, {EPISODE_HEADER: llm.api_key}),
                (google, {"x-goog-api-key": llm.api_key}),
                (f"{google}?key={llm.api_key}", {}),
            ]
            assert [post(*way) for way in ways] == [200] * len(ways)
            assert len(sessions[number].tree.turns) == before + len(ways)
        other = {"authorization": f"Bearer {llms[1].api_key}"}
        assert post(llms[0].base_url + CHAT, other) == 401, "the path and the key disagree"
        for headers in ({}, {"authorization": "Bearer x"}, {EPISODE_HEADER: ""}):
            assert post(shared, headers) == 401
        asyncio.run(gateway.close(llms[0]))
        assert post(shared, {"x-api-key": llms[0].api_key}) == 401
        assert post(shared, {"x-api-key": llms[1].api_key}) == 200
        for llm in llms[1:]:
            asyncio.run(gateway.close(llm))
