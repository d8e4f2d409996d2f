"""Scripted players in the model's place: the expert, random actions, or a user's function."""

from __future__ import annotations

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


def player_episode(
    setup: EpisodeSetup,
    factory: EnvironmentFactory,
    player: Player,
    task: EpisodeTask,
    watcher: EpisodeWatcher | None = None,
) -> Episode:
    """Returns an episode that a player plays like a model, with the same tools, limits, rewards."""
    return _with_engine(PlayerEngine(player, setup.chat), setup, factory, task, watcher)


def chat_episode(
    setup: EpisodeSetup, factory: EnvironmentFactory, reply: Reply, task: EpisodeTask
) -> Episode:
    """Returns an episode that a function of its messages plays, such as a model behind a URL."""
    return _with_engine(ChatEngine(reply, setup.chat), setup, factory, task)


def _with_engine(
    engine: PlayerEngine,
    setup: EpisodeSetup,
    factory: EnvironmentFactory,
    task: EpisodeTask,
    watcher: EpisodeWatcher | None = None,
) -> Episode:
    own = copy.copy(setup)
    own.engine = engine
    own.reward_limit = None
    engine.episode = Episode(own, engine.making(factory), task, watcher=watcher)
    return engine.episode


class PlayerEngine(BaseInferenceEngine):
    """The engine of one episode, whose turns are the actions of a player.

    The player gets the environment that the episode created, and the last observation.
    """

    episode: Episode

    def __init__(self, player: Player, chat: ChatFormat) -> None:
        super().__init__()
        self._player = player
        self._chat = chat
        self._environment: BaseEnvironment | None = None

    @property
    def context_length(self) -> int:
        return 2**31  # unlimited

    def making(self, factory: EnvironmentFactory) -> EnvironmentFactory:
        """Returns a factory that keeps its environment for the player."""

        def make() -> BaseEnvironment:
            self._environment = factory()
            return self._environment

        return make

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        assert self._environment is not None
        action = self._player(self._environment, self.episode.observation)
        return self._result(action if isinstance(action, str) else await action)

    def _result(self, text: str, reason: FinishReason = FinishReason.STOP) -> GenerationResult:
        ids = self._chat.answer_ids(text)
        return GenerationResult(ids, [0.0] * len(ids), reason, 0)


class ChatEngine(PlayerEngine):
    """The engine of one episode, whose turns are replies to the messages of the conversation."""

    def __init__(self, reply: Reply, chat: ChatFormat) -> None:
        super().__init__(lambda environment, observation: "", chat)
        self._reply = reply

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        agent = self.episode.agent_to_move
        assert agent is not None
        assert agent.conversation is not None
        if list(request.prompt_ids) != list(agent.record.stream.path):
            raise EngineError(
                "a tool asks the model itself, in a conversation of its own, which a model behind "
                "a URL does not take part in"
            )
        text, is_cut = await self._reply(agent.conversation.history, request)
        return self._result(text, FinishReason.LENGTH if is_cut else FinishReason.STOP)
