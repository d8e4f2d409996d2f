"""Replies that are sent while they are sampled: the same message, piece by piece."""

import http.client
import json
from urllib.parse import urlsplit

import pytest

from agents.serving import CALL, QUESTION, TOOL, ask, joined, read_events, serving
from beside_agents.live_engine import ANSWER, THOUGHT, live
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions
from turnwise.episode.options import make_setup
from turnwise.inference import create_inference_engine

CHAT, RESPONSES, MESSAGES = "/chat/completions", "/responses", "/messages"


def asked(**more):
    return {"model": "policy", "messages": QUESTION, **more}


def deltas(events):
    return [event["choices"][0]["delta"] for event in events if event.get("choices")]


@pytest.mark.parametrize("text", [ANSWER, THOUGHT + ANSWER, "  \n" + ANSWER, THOUGHT, "<thin"])
def test_the_pieces_are_the_message(text):
    with live(text) as (_, session, llm):
        _, whole = ask(llm, CHAT, asked())
        status, events = ask(llm, CHAT, asked(stream=True))
        message, expected = joined(events), whole["choices"][0]["message"]
        assert status == 200
        assert message["content"] == (expected["content"] or "")
        assert message.get("reasoning_content") == expected.get("reasoning_content")
        assert not any("\ufffd" in str(delta) for delta in deltas(events))
        if len(text) > 10:
            assert len(deltas(events)) > 10
        assert len(session.tree.turns) == 2


def test_a_text_that_may_be_a_call_comes_at_its_end_and_thoughts_at_once():
    with live(THOUGHT + "Wait. " + CALL) as (_, _, llm):
        _, events = ask(llm, CHAT, asked(stream=True, tools=[TOOL]))
        found = deltas(events)
        assert sum("reasoning_content" in delta for delta in found) > 3
        assert [delta["content"] for delta in found if delta.get("content")] == ["Wait."]
        assert joined(events)["tool_calls"][0]["function"]["name"] == "look"
        _, events = ask(llm, CHAT, asked(stream=True, tools=[TOOL], tool_choice="none"))
        assert joined(events)["content"] == "Wait. " + CALL


def test_the_local_engine_reports_its_tokens_and_samples_the_same():
    with create_inference_engine("tiny", "local") as engine:
        session = AgentSession(make_setup(engine, CollectorOptions()), honours_sampling=True)
        with serving(session) as (_, _, llm):
            body = asked(seed=7, max_tokens=40, logprobs=True)
            _, whole = ask(llm, CHAT, body)
            _, events = ask(llm, CHAT, {**body, "logprobs": False, "stream": True})
            assert joined(events)["content"] == whole["choices"][0]["message"]["content"]
            assert len(deltas(events)) > 5
            first, second = session.tree.turns
            assert first.log_probs == second.log_probs
            assert first.conversation_ids() == second.conversation_ids()


def test_stop_strings_are_not_sent():
    with live("One, two, three.") as (_, _, llm):
        _, events = ask(llm, CHAT, asked(stream=True, stop=[", th"]))
        assert joined(events)["content"] == "One, two"


def test_the_events_of_responses_and_messages():
    with live(THOUGHT + ANSWER) as (_, _, llm):
        body = {"model": "policy", "input": "What is x?", "stream": True}
        _, events = ask(llm, RESPONSES, body)
        completed = events[-1]["response"]
        for index, kind in enumerate(("reasoning_text", "output_text")):
            pieces = [e["delta"] for e in events if e["type"] == f"response.{kind}.delta"]
            done = next(e for e in events if e["type"] == f"response.{kind}.done")
            item = completed["output"][index]
            assert len(pieces) > 3
            assert "".join(pieces) == done["text"] == item["content"][0]["text"]
            assert (done["item_id"], done["output_index"]) == (item["id"], index)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        later = {"previous_response_id": completed["id"], "input": "And y?"}
        assert ask(llm, RESPONSES, {"model": "policy", **later})[0] == 200

        _, events = ask(llm, MESSAGES, asked(stream=True, max_tokens=100))
        _, whole = ask(llm, MESSAGES, asked(max_tokens=100))
        for index, block in enumerate(whole["content"]):
            pieces = [
                event["delta"][block["type"]]
                for event in events
                if event["type"] == "content_block_delta" and event["index"] == index
            ]
            assert len(pieces) > 3
            assert "".join(pieces) == block[block["type"]]
        assert events[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        ended = [event["index"] for event in events if event["type"] == "content_block_stop"]
        assert ended == [0, 1]


def open_stream(llm, body, path=CHAT):
    """A connection whose answer has begun."""
    address = urlsplit(llm.base_url)
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    headers = {"authorization": f"Bearer {llm.api_key}"}
    connection.request("POST", address.path + path, json.dumps(body), headers)
    answer = connection.getresponse()
    assert answer.status == 200
    return connection, answer


def test_the_first_words_come_before_the_last_are_sampled():
    with live(ANSWER) as (engine, session, llm):
        engine.release.clear()
        connection, answer = open_stream(llm, asked(stream=True))
        assert b"assistant" in answer.readline()
        assert not session.tree.turns
        engine.release.set()
        assert b"[DONE]" in answer.read()
        connection.close()
        assert len(session.tree.turns) == 1


def test_a_client_that_hangs_up_in_mid_stream_aborts_the_turn():
    with live(ANSWER) as (engine, session, llm):
        engine.release.clear()
        connection, answer = open_stream(llm, asked(stream=True))
        answer.readline()
        answer.close()
        connection.close()
        assert engine.was_cancelled.wait(60)
        engine.release.set()
        assert ask(llm, CHAT, asked(stream=True))[0] == 200
        assert len(session.tree.turns) == len(session.engine_sessions) == 1


def test_an_episode_that_ends_in_mid_stream_is_an_error_of_the_api():
    with live(ANSWER) as (engine, session, llm):
        engine.release.clear()
        connection, answer = open_stream(llm, asked(stream=True))
        answer.readline()
        engine.end_episode()
        last = read_events(answer.read().decode())[-1]
        assert last["error"]["message"] == "the episode has ended"
        connection.close()
        assert engine.was_cancelled.is_set()
        assert not session.tree.turns


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_an_engine_that_fails_in_mid_stream_is_an_error_of_the_api(path):
    with live(ANSWER) as (engine, session, llm):
        engine.error = RuntimeError("the GPU is gone")
        body = {"model": "policy", "input": "Hi"} if path == RESPONSES else asked(max_tokens=99)
        status, events = ask(llm, path, {**body, "stream": True})
        assert status == 200
        last = events[-1]
        assert "the GPU is gone" in (last.get("response") or last)["error"]["message"]
        assert not session.tree.turns
        assert not len(session.engine_sessions)


def test_in_training_a_reply_is_sampled_whole():
    with live(ANSWER, honours_sampling=False, max_conversations=None) as (_, _, llm):
        _, events = ask(llm, CHAT, asked(stream=True))
        assert joined(events)["content"] == ANSWER
        assert len(deltas(events)) == 3
