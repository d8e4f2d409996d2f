"""Scripted players in the model's place: the expert, random actions, or a user's function."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from turnwise.chat import ChatFormat
from turnwise.env import BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.players import Player
from turnwise.episode.episode import Episode, EpisodeWatcher
from turnwise.episode.setup import EpisodeSetup
from turnwise.episode.types import EpisodeTask
from turnwise.inference import FinishReason, GenerationRequest, GenerationResult

if TYPE_CHECKING:
    import torch


def player_episode(
    setup: EpisodeSetup,
    factory: EnvironmentFactory,
    player: Player,
    task: EpisodeTask,
    watcher: EpisodeWatcher | None = None,
) -> Episode:
    """Returns an episode that a player plays like a model, with the same tools, limits, rewards."""
    engine = PlayerEngine(player, setup.chat)
    own = copy.copy(setup)
    own.engine = engine
    own.reward_limit = None
    engine.episode = Episode(own, engine.making(factory), task, watcher=watcher)
    return engine.episode


class PlayerEngine:
    """The engine of one episode, whose turns are the actions of a player.

    The player gets the environment that the episode created, and the last observation.
    """

    weight_version = 0
    context_length = 2**31
    episode: Episode

    def __init__(self, player: Player, chat: ChatFormat) -> None:
        self._player = player
        self._chat = chat
        self._environment: BaseEnvironment | None = None

    def making(self, factory: EnvironmentFactory) -> EnvironmentFactory:
        """Returns a factory that keeps its environment for the player."""

        def make() -> BaseEnvironment:
            self._environment = factory()
            return self._environment

        return make

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        assert self._environment is not None
        action = self._player(self._environment, self.episode.observation)
        if not isinstance(action, str):
            action = await action
        ids = self._chat.answer_ids(action)
        return GenerationResult(ids, [0.0] * len(ids), FinishReason.STOP, 0)

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        return [0.0] * (len(ids) - start)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        return 0

    def end_session(self, session: Hashable) -> None:
        """Does nothing: there is no cache."""

    def close(self) -> None:
        """Does nothing: there are no resources."""
