"""Scripted players in the model's place: the expert, random actions, or a user's function."""

import copy
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from turnwise.chat import ChatFormat, Message
from turnwise.env import BaseEnvironment
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


class PlayerEngine(BaseInferenceEngine):
    """The engine of one episode, whose turns are texts that a function returns, as in `Reply`."""

    def __init__(
        self, chat: ChatFormat, answer: Callable[[GenerationRequest], Awaitable[tuple[str, bool]]]
    ) -> None:
        super().__init__()
        self._chat = chat
        self._answer = answer

    @property
    def context_length(self) -> int:
        return 2**31  # unlimited

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
    environment: BaseEnvironment | None = None

    def make() -> BaseEnvironment:
        nonlocal environment
        environment = factory()
        return environment

    async def answer(request: GenerationRequest) -> tuple[str, bool]:
        assert environment is not None
        action = player(environment, episode.observation)
        return action if isinstance(action, str) else await action, False

    setup = copy.copy(setup)
    setup.engine, setup.reward_limit = PlayerEngine(setup.chat, answer), None
    episode = Episode(setup, make, task, watcher=watcher)
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

    setup = copy.copy(setup)
    setup.engine, setup.reward_limit = PlayerEngine(setup.chat, answer), None
    episode = Episode(setup, factory, task)
    return episode
