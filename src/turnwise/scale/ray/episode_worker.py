"""`EpisodeWorker`: a process that plays episodes with its own engine and model."""

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
from turnwise.episode.collector import EpisodeSource
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
"""Episodes with their positions among the requested ones, and the log lines of that time."""


@dataclass(frozen=True)
class Weights:
    """A version of the weights, and the object references of its shards.

    The references are in a tuple so that Ray does not fetch them with every call.
    """

    version: int
    objects: tuple[Any, ...]


@dataclass(frozen=True)
class ModelSource:
    """The model that a worker loads: a user's own, or that of the settings."""

    config: ConfigStore
    model: Any = None

    def load(self) -> Any:
        """Return the model on the device of this process."""
        if self.model is None:
            return load_configured_model(self.config).model
        import torch

        return self.model.to("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class EpisodeSpec:
    """What a worker needs to play episodes."""

    source: ModelSource
    tokenizer: Any
    origin: EnvironmentFactory | EpisodeSource
    options: CollectorOptions
    kinds: Mapping[str, EpisodeKind] = field(default_factory=dict)
    """The environments of a mix."""


class EpisodeWorker:
    """A Ray actor whose methods share one event loop: it answers while episodes are played."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._objects: tuple[Any, ...] = ()
        self._playing: asyncio.Task[Any] | None = None

    async def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def prepare(self, spec: EpisodeSpec) -> int:
        """Build model, engine and collector, and return the context length in tokens."""
        return await asyncio.to_thread(self._prepare, spec)

    def _prepare(self, spec: EpisodeSpec) -> int:
        self._log = WorkerLog(spec.source.config.logging.level)
        seed_generators(derive_seed(spec.source.config.training.seed, "worker", self._number))
        shares = spec.source.config.inference.backend in SHARED_MODEL_BACKENDS
        model = spec.source.load() if shares else None
        self._engine = make_engine(spec.source.config, model, spec.tokenizer)
        # Groups may be spread over workers: the driver, which sees all of them, drops groups.
        self._collector = make_collector(
            EpisodeCollector, self._engine, spec.origin, spec.options, spec.kinds
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
        """Play these episodes with these weights; yields each soon after it ends."""
        await self._fetch(weights)
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
                while not ended.empty():  # those that ended at the same time
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
        """Cancel the running episodes."""
        if self._playing is not None:
            self._playing.cancel()
            with contextlib.suppress(BaseException):
                await self._playing

    async def sample(self, request: GenerationRequest, weights: Weights) -> GenerationResult:
        await self._fetch(weights)
        return await self._engine.sample(request)

    async def score(self, ids: Sequence[int], start: int, weights: Weights) -> list[float]:
        await self._fetch(weights)
        return await self._engine.score(ids, start)

    async def _fetch(self, weights: Weights) -> None:
        if weights.objects != self._objects:
            shards = await asyncio.gather(*weights.objects)
            await asyncio.to_thread(self._load, shards)
            self._objects = weights.objects
        self._engine.weight_version = weights.version

    def _load(self, shards: Sequence[Arrays]) -> None:
        self._engine.update_weights(join_shards([from_arrays(shard) for shard in shards]))
