"""One episode of a client: what it sent, what the engine was given, and how they must agree.

`TURNWISE_RECORD_CLIENTS=1 make test-agents` keeps what the clients send in tests/agents/fixtures,
which a test without any SDK replays. Long texts, such as the prompts of frameworks, are shortened.
"""

import json
import os
import re
from collections import Counter
from pathlib import Path

from beside_agents.expert import NOTES
from turnwise.agents.gateway import Gateway
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions, EpisodeLimits
from turnwise.episode.options import make_setup
from turnwise.inference import SamplingParams

FIXTURES = Path(__file__).resolve().parents[1] / "agents" / "fixtures"


class RecordingGateway(Gateway):
    """Keeps the paths and bodies of the requests to each episode."""

    def __init__(self):
        super().__init__()
        self.requests = {}

    def _app(self):
        app = super()._app()

        async def recording(scope, receive, send):
            body = bytearray()

            async def receive_and_keep():
                message = await receive()
                if message["type"] == "http.request":
                    body.extend(message.get("body", b""))
                    if not message.get("more_body") and body:
                        episode, _, path = scope["path"].removeprefix("/").partition("/v1")
                        kept = {"path": path, "body": json.loads(body)}
                        self.requests.setdefault(episode, []).append(kept)
                return message

            await app(scope, receive_and_keep, send)

        return recording


class RecordingEngine:
    """A real engine, and every request and result of it."""

    def __init__(self, engine):
        self._engine = engine
        self.sampled = []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def sample(self, request):
        result = await self._engine.sample(request)
        self.sampled.append((list(request.prompt_ids), list(result.ids), list(result.log_probs)))
        return result


class Episode:
    """A session behind the gateway, and a tool for its agent."""

    def __init__(self, engine, gateway, limits, thoughts="as_sent"):
        self.engine = RecordingEngine(engine)
        options = CollectorOptions(
            parser="hermes",
            sampling=SamplingParams(temperature=0.1),
            limits=EpisodeLimits(**{"max_tokens_per_turn": 200, **limits}),
        )
        self.session = AgentSession(make_setup(self.engine, options), thoughts=thoughts)
        self.llm = gateway.open(self.session)
        self._requests = gateway.requests.setdefault(self.llm.base_url.split("/")[-2], [])
        self.looked = []
        """Keys that the tool was called with."""

    def look(self, key: str) -> str:
        """Look up a note.

        Args:
            key: Name of the note.
        """
        self.looked.append(key)
        return NOTES[key]

    @property
    def usage(self):
        """Tokens of each prompt and of each turn, in the order of sampling."""
        return [(len(prompt), len(ids)) for prompt, ids, _ in self.engine.sampled]

    def check_grown(self, num_turns=3):
        """One conversation that only grew, in which the tool was called."""
        stream = self.session.tree.stream()
        assert not stream.branches, "an agent that only appends has one stream"
        assert len(stream.turns) == num_turns
        assert self.looked == ["x", "y"]

    def keep(self, name):
        """Keep what the client sent, if that is asked for."""
        keep_requests(name, self.session.tree.stream(), self._requests)


def check_tokens(stream, sampled):
    """Each sampled token is trained on once, in the context that the engine was given."""
    trained = Counter()
    for begin, end in stream.turns:
        start = stream.mask.index(True, begin)  # after the opening of a call that was asked for
        context = [i for a, b in stream.context(start) for i in stream.ids[a:b]]
        log_probs = list(stream.log_probs[start:end])
        trained[str((context, list(stream.ids[start:end]), log_probs))] += 1
    assert trained == Counter(map(str, sampled))
    assert sum(stream.mask) == sum(len(ids) for _, ids, _ in sampled)


def keep_requests(name, stream, requests, replaced=()):
    """Write a fixture, if that is asked for; ids become numbers, and patterns are replaced."""
    if not os.environ.get("TURNWISE_RECORD_CLIENTS"):
        return
    kept = {"num_branches": len(stream.branches), "requests": _shortened(requests)}
    numbers = {}

    def number(found):
        return f"{found[1]}_{numbers.setdefault(found[0], len(numbers) + 1)}"

    text = json.dumps(kept, indent=1, ensure_ascii=False)
    text = re.sub(r"\b(call|resp|msg|fc|rs)_[0-9a-f]{24}", number, text)
    for pattern, new in replaced:
        text = re.sub(pattern, new, text)
    FIXTURES.mkdir(exist_ok=True)
    (FIXTURES / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _shortened(value, most=400):
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    if isinstance(value, str) and len(value) > most:
        return value[: most // 2] + " ... " + value[-most // 4 :]
    return value
