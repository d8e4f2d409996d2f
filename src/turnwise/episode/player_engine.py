"""Scripted players in the model's place: the expert, random actions, or a user's function."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from turnwise.chat import ChatFormat, Message
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.players import Player
from turnwise.episode.episode import Episode, EpisodeWatcher
from turnwise.episode.options import EpisodeSetup
from turnwise.episode.types import EpisodeTask
from turnwise.errors import EngineError
from turnwise.inference import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
)

Reply: TypeAlias = Callable[[Sequence[Message], GenerationRequest], Awaitable[tuple[str, bool]]]
"""Returns the next message of the conversation, and whether the limit of tokens ended it."""

Answer: TypeAlias = Callable[[GenerationRequest], Awaitable[tuple[str, bool]]]
"""The same for an episode that has the messages itself."""


class PlayerEngine(BaseInferenceEngine):
    """The engine of one episode, whose turns are texts that a function returns."""

    context_length = 2**31  # unlimited

    def __init__(self, chat: ChatFormat, answer: Answer) -> None:
        super().__init__()
        self._chat = chat
        self._answer = answer

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        text, is_cut = await self._answer(request)
        ids = self._chat.answer_ids(text)
        reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
        return GenerationResult(ids, [0.0] * len(ids), reason, 0)


def player_episode(
    setup: EpisodeSetup,
    factory: EnvironmentFactory,
    player: Player,
    task: EpisodeTask,
    watcher: EpisodeWatcher | None = None,
) -> Episode:
    """Returns an episode that a player plays like a model, with the same tools, limits, rewards.

    The player gets the environment that the episode created, and the last observation.
    """

    async def answer(_: GenerationRequest) -> tuple[str, bool]:
        environment = episode.environment
        assert environment is not None
        action = player(environment, episode.observation)
        return action if isinstance(action, str) else await action, False

    episode = Episode(_with_player(setup, answer), factory, task, watcher=watcher)
    return episode


def chat_episode(
    setup: EpisodeSetup, factory: EnvironmentFactory, reply: Reply, task: EpisodeTask
) -> Episode:
    """Returns an episode that a function of its messages plays, such as a model behind a URL."""

    async def answer(request: GenerationRequest) -> tuple[str, bool]:
        agent = episode.agent_to_move
        assert agent is not None
        assert agent.conversation is not None
        if list(request.prompt_ids) != list(agent.record.stream.path):
            raise EngineError(
                "a tool asks the model itself, in a conversation of its own, which a model behind "
                "a URL does not take part in"
            )
        return await reply(agent.conversation.history, request)

    episode = Episode(_with_player(setup, answer), factory, task)
    return episode


def _with_player(setup: EpisodeSetup, answer: Answer) -> EpisodeSetup:
    engine = PlayerEngine(setup.chat, answer)
    return setup.replaced(engine=engine, reward_slots=contextlib.nullcontext())
