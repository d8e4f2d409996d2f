"""Proxies of the engine and the collector: the workers sample and play the episodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from turnwise.episode import Collection, EpisodeCollector, EpisodeResult
from turnwise.episode.types import EpisodeTask
from turnwise.errors import import_extra
from turnwise.inference import BaseInferenceEngine, GenerationRequest, GenerationResult
from turnwise.scale.ray.episode_pool import EpisodePool
from turnwise.scale.ray.episode_worker import Sampling
from turnwise.scale.ray.transfer import Weights, to_arrays

ray = import_extra("ray", "ray")
T = TypeVar("T")


class RemoteEngine(BaseInferenceEngine):
    """The engines of all workers. They have loaded the first weights, or get them as `first`.

    New weights stay in the object store until a worker is called: it fetches them then.
    """

    def __init__(
        self,
        pool: EpisodePool,
        tokenizer: Any,
        newest: Callable[[], tuple[Any, ...]],
        first: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(tokenizer)
        self.pool = pool
        self._newest = newest
        self.on_close: Callable[[], None] = pool.close
        """What `close` does: the engine owns the cluster."""
        self._objects = first
        self._context_length = pool.context_length()
        self._num_updates = 0

    @property
    def weights(self) -> Weights:
        """The weights to sample from."""
        return Weights(self.weight_version, self._objects, self._num_updates)

    @property
    def context_length(self) -> int:
        return self._context_length

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        result: GenerationResult = await self.pool.call_any("sample", request, self.weights)
        return result

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        scores: list[float] = await self.pool.call_any("score", list(ids), start, self.weights)
        return scores

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        """Sample from these weights; None: from the learners' newest, which skip this process."""
        self._objects = self._newest() if weights is None else (ray.put(to_arrays(weights)),)
        self.weight_version += 1
        self._num_updates += 1
        if self.in_flight is not None:
            self.pool.push(self.weights)
        return self.weight_version

    def close(self) -> None:
        self.on_close()


class RemoteCollector(EpisodeCollector):
    """Lets the workers play its episodes, with its sampling parameters and seed."""

    def __init__(self, engine: RemoteEngine, *args: Any, **options: Any) -> None:
        super().__init__(engine, *args, **options)
        self._remote = engine

    async def play(
        self,
        tasks: Iterable[EpisodeTask],
        on_result: Callable[[EpisodeResult], None] | None = None,
    ) -> Collection:
        played = await self._remote.pool.play(list(tasks), self._sampling(), on_result)
        return await self.finish(played)

    async def play_from(
        self,
        next_task: Callable[[], Awaitable[tuple[T, EpisodeTask] | None]],
        on_result: Callable[[T, EpisodeResult], None],
        num_tasks: int,
    ) -> None:
        await self._remote.pool.play_from(next_task, on_result, num_tasks, self._sampling)

    def _sampling(self) -> Sampling:
        return Sampling(self.setup.sampling, self.setup.seed, self._remote.weights)

    async def finish(self, played: list[EpisodeResult]) -> Collection:
        self._remote.pool.failures.reset()
        return await super().finish(played)
