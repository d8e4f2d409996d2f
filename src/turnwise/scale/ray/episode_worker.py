"""A process that plays episodes with an engine and a model of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentFactory
from turnwise.episode import CollectorOptions, EpisodeCollector, EpisodeResult
from turnwise.episode.seeds import derive_seed
from turnwise.episode.types import EpisodeTask
from turnwise.inference import GenerationRequest, GenerationResult, SamplingParams
from turnwise.learner.sharding import join_shards
from turnwise.scale.ray.arrays import Arrays, from_arrays
from turnwise.scale.ray.worker_log import Lines, WorkerLog
from turnwise.trainer.assembly import SHARED_MODEL_BACKENDS, make_collector, make_engine
from turnwise.trainer.components import EpisodeKind
from turnwise.trainer.state import load_configured_model, seed_generators

Played: TypeAlias = tuple[list[tuple[int, EpisodeResult]], Lines]
"""Episodes with their places among those that were asked for, and what was logged meanwhile."""


@dataclass(frozen=True)
class Weights:
    """Which weights to sample from: a version, and where in the object store its parts lie.

    The references are in a tuple so that only who needs the weights fetches them.
    """

    version: int
    where: tuple[Any, ...]


@dataclass(frozen=True)
class ModelSource:
    """How a worker comes to its model: the one that a user made, or the settings'."""

    config: ConfigStore
    model: Any = None

    def load(self) -> Any:
        """A model on the device that this process has."""
        if self.model is None:
            return load_configured_model(self.config).model
        import torch

        return self.model.to("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class EpisodeSpec:
    """All that a worker needs to play."""

    config: ConfigStore
    source: ModelSource
    tokenizer: Any
    factory: EnvironmentFactory
    options: CollectorOptions
    parts: Mapping[str, EpisodeKind] = field(default_factory=dict)
    """The environments of a mix."""


class EpisodeWorker:
    """Ray runs its methods on one event loop, so that it answers while episodes are played."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._where: tuple[Any, ...] = ()
        self._playing: asyncio.Task[Any] | None = None

    async def ping(self) -> int:
        """The process's id."""
        return os.getpid()

    async def prepare(self, spec: EpisodeSpec) -> int:
        """Build model, engine and collector; how many tokens the context holds."""
        return await asyncio.to_thread(self._prepare, spec)

    def _prepare(self, spec: EpisodeSpec) -> int:
        self._log = WorkerLog(spec.config.logging.level)
        seed_generators(derive_seed(spec.config.training.seed, "worker", self._number))
        shares = spec.config.inference.backend in SHARED_MODEL_BACKENDS
        model = spec.source.load() if shares else None
        self._engine = make_engine(spec.config, model, spec.tokenizer)
        # Groups may be spread over workers: who sees all of them drops them.
        self._collector = make_collector(
            EpisodeCollector, self._engine, spec.factory, spec.options, spec.parts
        )
        return self._engine.context_length

    async def play(
        self,
        places: Sequence[int],
        tasks: Sequence[EpisodeTask],
        sampling: SamplingParams,
        seed: int,
        weights: Weights,
    ) -> AsyncIterator[Played]:
        """Play these episodes with these weights; each is handed over soon after it ends."""
        await self._take(weights)
        collector = self._collector.sampling_with(sampling)
        collector.setup.seed = seed
        ended = asyncio.Queue[EpisodeResult | None]()
        places_of: dict[tuple[int, int, int], list[int]] = {}
        for place, task in zip(places, tasks, strict=True):
            places_of.setdefault((task.seed, task.group, task.member), []).append(place)
        playing = asyncio.create_task(collector.play(tasks, on_result=ended.put_nowait))
        playing.add_done_callback(lambda _: ended.put_nowait(None))
        self._playing = playing
        try:
            is_over = False
            while not is_over:
                found = [await ended.get()]
                while not ended.empty():  # what ended meanwhile travels along
                    found.append(ended.get_nowait())
                is_over = found[-1] is None
                results = [result for result in found if result is not None]
                placed = [(places_of[r.seed, r.group, r.member].pop(), r) for r in results]
                if (lines := self._log.take()) or placed:
                    yield placed, lines
            await playing
        finally:
            playing.cancel()

    async def stop(self) -> None:
        """Call off the episodes under way."""
        if self._playing is not None:
            self._playing.cancel()
            with contextlib.suppress(BaseException):
                await self._playing

    async def sample(self, request: GenerationRequest, weights: Weights) -> GenerationResult:
        await self._take(weights)
        return await self._engine.sample(request)

    async def score(self, ids: Sequence[int], start: int, weights: Weights) -> list[float]:
        await self._take(weights)
        return await self._engine.score(ids, start)

    async def _take(self, weights: Weights) -> None:
        if weights.where != self._where:
            parts = await asyncio.gather(*weights.where)
            await asyncio.to_thread(self._put_together, parts)
            self._where = weights.where
        self._engine.weight_version = weights.version

    def _put_together(self, parts: Sequence[Arrays]) -> None:
        self._engine.update_weights(join_shards([from_arrays(part) for part in parts]))
