"""A gateway that sends replies while they are sampled, over a script that reports every token."""

import asyncio
import contextlib
import threading

from chat.families import make_format
from turnwise.agents.gateway import Gateway
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions
from turnwise.episode.options import make_setup
from turnwise.inference.scripted import ScriptedEngine

THOUGHT = "<think>\nWater or wait? Wait.\n</think>\n\n"
ANSWER = "Wait 🌧️ for the rain, naïvely.  "


class TokenByToken(ScriptedEngine):
    """Reports every token of its script; after the first few it may wait or fail."""

    def __init__(self, tokenizer, policy):
        super().__init__(tokenizer, policy)
        self.release, self.error = threading.Event(), None
        self.release.set()
        self.was_cancelled = threading.Event()

    async def sample(self, request):
        try:
            return await self._sample(request)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise

    async def _sample(self, request):
        result = await super().sample(request)
        for number in range(1, len(result.ids)):
            if request.on_tokens is not None:
                request.on_tokens(result.ids[:number])
            await asyncio.sleep(0)
            if number == len(result.ids) // 2:
                await self._half_way()
        return result

    async def _half_way(self):
        if self.error is not None:
            raise self.error
        while not self.release.is_set():
            await asyncio.sleep(0.001)


@contextlib.contextmanager
def live(text, **options):
    """A session that serves a script: the engine, the session, and the client's access."""
    chat = make_format("hermes")
    engine = TokenByToken(chat.tokenizer, text)
    setup = make_setup(engine, CollectorOptions(chat_format=chat, parser="hermes"))
    session = AgentSession(setup, **{"honours_sampling": True, "max_conversations": 8, **options})
    with Gateway() as gateway:
        llm = gateway.open(session)
        engine.end_episode = lambda: asyncio.run(gateway.close(llm))
        yield engine, session, llm
        engine.end_episode()
