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
from turnwise.inference import (
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    engine_class,
)
from turnwise.learner.sharding import join_shards
from turnwise.scale.ray.arrays import Arrays, from_arrays
from turnwise.scale.ray.worker_log import Lines, WorkerLog
from turnwise.trainer.assembly import make_collector, make_engine
from turnwise.trainer.components import EpisodeKind
from turnwise.trainer.state import (
    load_configured_model,
    load_configured_model_in_parts,
    seed_generators,
)

Played: TypeAlias = tuple[list[tuple[int, EpisodeResult]], Lines]
"""Episodes with their positions among the requested ones, and the log lines of that time."""


@dataclass(frozen=True)
class Weights:
    """A version of the weights, and the object references of its shards.

    The references are in a tuple so that Ray does not fetch them with every call.
    """

    version: int
    objects: tuple[Any, ...]
    number: int = 0
    """Which ones are newer: versions start again from a checkpoint's."""


@dataclass(frozen=True)
class ModelSource:
    """The model that a worker loads: a user's own, or that of the settings."""

    config: ConfigStore
    model: Any = None

    def load(self, *, in_parts: bool = False) -> Any:
        """Return the model on the device of this process; `in_parts` for one that is sharded."""
        if self.model is None and in_parts:
            return load_configured_model_in_parts(self.config)
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
        self._playing: set[asyncio.Task[Any]] = set()
        self._stream: EpisodeStream | None = None
        self._loading = asyncio.Lock()
        self._newest = 0

    async def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def prepare(self, spec: EpisodeSpec) -> int:
        """Build model, engine and collector, and return the context length in tokens."""
        return await asyncio.to_thread(self._prepare, spec)

    def _prepare(self, spec: EpisodeSpec) -> int:
        self._log = WorkerLog(spec.source.config.logging.level)
        seed_generators(derive_seed(spec.source.config.training.seed, "worker", self._number))
        shares = engine_class(spec.source.config.inference.backend).shares_model
        model = spec.source.load() if shares else None
        self._engine = make_engine(spec.source.config, model, spec.tokenizer)
        if spec.source.config.training.max_staleness:
            self._engine.in_flight = spec.source.config.inference.stale_kv
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
        self._playing.add(playing)
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
            self._playing.discard(playing)
            playing.cancel()

    async def play_one(
        self, task: EpisodeTask, sampling: SamplingParams, seed: int, weights: Weights
    ) -> tuple[EpisodeResult, Lines]:
        """Play one episode with these weights or newer ones, alongside others."""
        await self._fetch(weights)
        if self._stream is None or self._stream.is_over:
            collector = self._collector.sampling_with(sampling)
            collector.setup.seed = seed
            self._stream = EpisodeStream(collector)
        return await self._stream.play(task), self._log.take()

    async def take(self, weights: Weights) -> None:
        """Load newer weights, also in the middle of episodes."""
        await self._fetch(weights)

    async def stop(self) -> None:
        """Cancel the running episodes."""
        stream, self._stream = self._stream, None
        for playing in [*self._playing, *([] if stream is None else [stream.playing])]:
            playing.cancel()
            with contextlib.suppress(BaseException):
                await playing

    async def sample(self, request: GenerationRequest, weights: Weights) -> GenerationResult:
        await self._fetch(weights)
        return await self._engine.sample(request)

    async def score(self, ids: Sequence[int], start: int, weights: Weights) -> list[float]:
        await self._fetch(weights)
        return await self._engine.score(ids, start)

    async def _fetch(self, weights: Weights) -> None:
        async with self._loading:
            if self._engine.in_flight is not None and weights.number < self._newest:
                return  # the call was sent before the newest weights arrived
            self._newest = weights.number
            if weights.objects != self._objects:
                shards = await asyncio.gather(*weights.objects)
                await asyncio.to_thread(self._load, shards, weights.version)
                self._objects = weights.objects
            self._engine.weight_version = weights.version

    def _load(self, shards: Sequence[Arrays], version: int) -> None:
        self._engine.load_version(join_shards([from_arrays(shard) for shard in shards]), version)


class EpisodeStream:
    """Plays episodes as they come, at most as many at once as the collector allows."""

    def __init__(self, collector: EpisodeCollector) -> None:
        self._tasks = asyncio.Queue[tuple[asyncio.Future[EpisodeResult], EpisodeTask]]()
        most = collector.options.max_concurrency
        self.playing = asyncio.create_task(
            collector.play_from(self._tasks.get, _set_result, num_tasks=most)
        )

    @property
    def is_over(self) -> bool:
        """Whether it was cancelled, or has failed with one of its episodes."""
        return self.playing.done()

    async def play(self, task: EpisodeTask) -> EpisodeResult:
        """Play an episode; raises the error that ended the stream, if it fails."""
        future: asyncio.Future[EpisodeResult] = asyncio.get_running_loop().create_future()
        self._tasks.put_nowait((future, task))
        awaited: list[asyncio.Future[Any]] = [future, self.playing]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            await self.playing
        return await future


def _set_result(future: asyncio.Future[EpisodeResult], result: EpisodeResult) -> None:
    if not future.done():
        future.set_result(result)
