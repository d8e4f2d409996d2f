"""One conversation with tools that every engine plays through the gateway, and what must hold."""

import asyncio
import contextlib
import http.client
import json
import threading
from urllib.parse import urlsplit

import torch

from agents.serving import QUESTION, TOOL, ask, joined, serving
from contention import wait_until
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions, EpisodeLimits
from turnwise.episode.options import make_setup
from turnwise.learner import Learner, PolicyValueModel, PPOBatch
from turnwise.tools import ActionParser, ToolCall
from turnwise.tools.parsers.base import ParseResult

CHAT = "/chat/completions"
SECONDS = 60


class EveryTurnCalls(ActionParser):
    """Reads every turn as a call, so that a model with random weights calls tools."""

    def parse(self, text):
        return ParseResult([ToolCall("look", {"key": text})])

    def render(self, call):
        return str(call.arguments)


class Recorded:
    """An engine that remembers its requests and results, and which requests were cancelled."""

    def __init__(self, engine):
        self._engine, self.turns = engine, []
        self.cancelled = threading.Event()

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def sample(self, request):
        try:
            result = await self._engine.sample(request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.turns.append((request, result))
        return result


class Held:
    """A method that waits for `release`, and counts its calls."""

    def __init__(self, owner, name):
        self.called, self.release, self.num_calls = threading.Event(), threading.Event(), 0
        self._method = getattr(owner, name)
        setattr(owner, name, self)

    def __call__(self, *args, **kwargs):
        self.num_calls += 1
        self.called.set()
        assert self.release.wait(SECONDS)
        return self._method(*args, **kwargs)


@contextlib.contextmanager
def recorded(engine, max_tokens=12):
    """The gateway on an engine: what it recorded, the session, and the agent's access."""
    engine = Recorded(engine)
    limits = EpisodeLimits(max_tokens_per_turn=max_tokens)
    options = CollectorOptions(parser=EveryTurnCalls(), limits=limits)
    with serving(AgentSession(make_setup(engine, options))) as (_, session, llm):
        yield engine, session, llm


def body(messages, **more):
    return {"model": "policy", "messages": messages, "tools": [TOOL], **more}


def converse(llm):
    """Call tools for three turns, then retry, fork, and change an answer."""
    messages = list(QUESTION)

    def reply(asked, **more):
        status, found = ask(llm, CHAT, body(asked, **more))
        assert status == 200, found
        if more.get("stream"):
            return joined(found)
        return found["choices"][0]["message"]

    for number in range(3):
        message = reply(messages, stream=number == 1)
        messages += [message, *results_of(message, number)]
    reply(messages)
    reply(messages, n=2)  # retries
    fork = messages[: 1 + next(i for i, m in enumerate(messages) if m["role"] == "assistant")]
    message = reply([*fork, {"role": "user", "content": "Look elsewhere."}])
    assert message["role"] == "assistant"
    edited = [*messages[:1], {"role": "assistant", "content": "I know."}, *messages[-1:]]
    reply(edited)


def results_of(message, number):
    calls = message.get("tool_calls", ())
    if not calls:
        return [{"role": "user", "content": f"Call a tool, please ({number})."}]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result {number}"}
        for call in calls
    ]


def check_exact(engine, session, model, tolerance=2e-4):
    """Every turn has the ids that the engine was given, and log-probs that the learner computes."""
    given = sorted([*request.prompt_ids, *result.ids] for request, result in engine.turns)
    turns = session.tree.turns
    assert len(turns) == 8
    assert sorted(turn.conversation_ids() for turn in turns) == given
    sampled = sorted(list(result.log_probs) for _, result in engine.turns)
    assert sorted(list(turn.log_probs) for turn in turns) == sampled
    stream = session.tree.stream()
    assert len(stream.branches) == 4, "two retries of the last turn, a fork, an edited answer"
    assert sum(stream.mask) == sum(len(result.ids) for _, result in engine.turns)
    batch = PPOBatch.from_streams([stream])
    ours = Learner(PolicyValueModel(model, None)).score(batch).log_probs[batch.response_mask]
    theirs = batch.sampler_log_probs[batch.response_mask]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def hang_up(llm, is_sampling):
    """Send a request, and close the connection once the engine samples."""
    address = urlsplit(llm.base_url)
    connection = http.client.HTTPConnection(address.netloc, timeout=SECONDS)
    headers = {"authorization": f"Bearer {llm.api_key}"}
    text = json.dumps(body(QUESTION, stream=True))
    connection.request("POST", address.path + CHAT, text, headers)
    assert is_sampling.wait(SECONDS)
    connection.close()


def check_hang_up(engine, session, llm, held, is_aborted=lambda: True):
    """A request whose client hung up is aborted in the engine, and leaves nothing behind."""
    hang_up(llm, held.called)
    assert engine.cancelled.wait(SECONDS)
    assert wait_until(is_aborted)
    held.release.set()
    assert ask(llm, CHAT, body(QUESTION, max_tokens=3))[0] == 200
    assert held.num_calls < 100, "the engine sampled on for a client that was gone"
    assert len(session.tree.turns) == len(session.engine_sessions) == 1
