"""A gateway over a scripted engine, and plain HTTP to talk to it."""

import asyncio
import contextlib
import http.client
import json
from urllib.parse import urlsplit

from chat.families import make_format
from turnwise.agents.gateway import Gateway
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions
from turnwise.episode.options import make_setup
from turnwise.inference.scripted import ScriptedEngine

LOOK = {
    "name": "look",
    "description": "Look something up.",
    "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
}
TOOL = {"type": "function", "function": LOOK}
CALL = '<tool_call>\n{"name": "look", "arguments": {"key": "x"}}\n</tool_call>'
QUESTION = [{"role": "user", "content": "What is x?"}]


def policy(prompt):
    """Look x up, then say it."""
    return "It is 42." if "result 42" in prompt else f"<think>Which x?</think>Wait. {CALL}"


def make_session(policy=policy, **options):
    chat = make_format("hermes")
    options = CollectorOptions(chat_format=chat, parser="hermes", **options)
    return AgentSession(make_setup(ScriptedEngine(chat.tokenizer, policy), options))


def make_session_on(engine, seed=0):
    """A session on any engine, with the chat format of its tokenizer."""
    return AgentSession(make_setup(engine, CollectorOptions()), seeds=(seed,))


@contextlib.contextmanager
def serving(session=None):
    """A session behind a gateway, which ends with it."""
    with Gateway() as gateway:
        session = session or make_session()
        llm = gateway.open(session)
        yield gateway, session, llm
        asyncio.run(gateway.close(llm))


def ask(llm, path, body, *, method="POST", key=None, headers=()):
    """Send a request; the status and the JSON or the events of the answer."""
    address = urlsplit(llm.base_url)
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {"authorization": f"Bearer {key or llm.api_key}", "content-type": "application/json"}
    sent |= dict(headers)
    try:
        connection.request(method, address.path + path, data, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.headers["content-type"].startswith("text/event-stream"):
            return answer.status, read_events(text)
        return answer.status, json.loads(text)
    finally:
        connection.close()


def read_events(text):
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(data) for data in found if data != "[DONE]"]


def joined(chunks):
    """The message of streamed chunks, as a client puts it together."""
    message = {"role": "assistant", "content": ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            if delta.get("reasoning_content"):
                thought = message.get("reasoning_content", "")
                message["reasoning_content"] = thought + delta["reasoning_content"]
            for call in delta.get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    calls.append({key: call[key] for key in ("id", "type", "function")})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message
