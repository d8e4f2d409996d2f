"""The trainer's collector and engine, where episodes are played elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from turnwise.episode import Collection, EpisodeCollector, EpisodeResult
from turnwise.episode.types import EpisodeTask
from turnwise.errors import import_extra
from turnwise.inference import BaseInferenceEngine, GenerationRequest, GenerationResult
from turnwise.scale.ray.arrays import to_arrays
from turnwise.scale.ray.episode_pool import EpisodePool
from turnwise.scale.ray.episode_worker import Weights

ray = import_extra("ray", "ray")


class RemoteEngine(BaseInferenceEngine):
    """The engines of all workers as one. New weights wait in the object store until a worker is
    asked for something: it fetches them then, if it does not have them."""

    def __init__(
        self, pool: EpisodePool, tokenizer: Any, newest: Callable[[], tuple[Any, ...]]
    ) -> None:
        super().__init__(tokenizer)
        self.pool = pool
        self._newest = newest
        self._close: Callable[[], None] = pool.close
        self._where: tuple[Any, ...] = newest()
        self._context_length = pool.context_length()

    @property
    def weights(self) -> Weights:
        """What is to be sampled from now."""
        return Weights(self.weight_version, self._where)

    @property
    def context_length(self) -> int:
        return self._context_length

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        result: GenerationResult = await self.pool.ask("sample", request, self.weights)
        return result

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        scores: list[float] = await self.pool.ask("score", list(ids), start, self.weights)
        return scores

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        """From now on these; None: the learners' newest, which never pass through this process."""
        self._where = self._newest() if weights is None else (ray.put(to_arrays(weights)),)
        self.weight_version += 1
        return self.weight_version

    def when_closed(self, close: Callable[[], None]) -> None:
        """What closing is to do: all of the cluster hangs on the engine."""
        self._close = close

    def close(self) -> None:
        self._close()


class RemoteCollector(EpisodeCollector):
    """Has its episodes played by the workers. What it is told about sampling goes with them."""

    def __init__(self, engine: RemoteEngine, *args: Any, **options: Any) -> None:
        super().__init__(engine, *args, **options)
        self._remote = engine
        self._weights: Weights | None = None

    def with_weights_of_now(self) -> RemoteCollector:
        """The same; newer weights do not reach it."""
        other = copy.copy(self)
        other._weights = self._remote.weights
        return other

    async def play(
        self,
        tasks: Iterable[EpisodeTask],
        on_result: Callable[[EpisodeResult], None] | None = None,
    ) -> Collection:
        setup, weights = self.setup, self._weights or self._remote.weights
        played = await self._remote.pool.play(
            list(tasks), setup.sampling, setup.seed, weights, on_result
        )
        return await self._finish(played)
