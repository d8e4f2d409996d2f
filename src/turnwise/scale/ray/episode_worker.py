"""`EpisodeWorker`: a process that plays episodes with its own engine and model."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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
from turnwise.scale.ray.transfer import LogLines, ModelSource, Weights, WorkerLog, from_arrays
from turnwise.trainer.assembly import make_collector, make_engine
from turnwise.trainer.components import EpisodeKind
from turnwise.trainer.state import seed_generators

Played: TypeAlias = tuple[list[tuple[int, EpisodeResult]], LogLines]
"""Episodes with their positions among the requested ones, and the log lines of that time."""


@dataclass(frozen=True)
class Sampling:
    """How episodes are sampled: with which parameters, seed and weights."""

    params: SamplingParams
    seed: int
    weights: Weights


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
        self._stream: asyncio.Task[None] | None = None
        """Plays the episodes of `play_one` as they come."""
        self._waiting = asyncio.Queue[tuple[asyncio.Future[EpisodeResult], EpisodeTask]]()
        self._loading = asyncio.Lock()
        self._newest = 0

    async def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def prepare(self, spec: EpisodeSpec) -> int:
        """Build model, engine and collector, and return the context length in tokens."""

        def build() -> int:
            config = spec.source.config
            self._log = WorkerLog(config.logging.level)
            seed_generators(derive_seed(config.training.seed, "worker", self._number))
            shares = engine_class(config.inference.backend).shares_model
            model = spec.source.load() if shares else None
            self._engine = make_engine(config, model, spec.tokenizer)
            if config.training.max_staleness:
                self._engine.in_flight = config.inference.stale_kv
            # Groups may be spread over workers: the driver, which sees all of them, drops groups.
            self._collector = make_collector(
                EpisodeCollector, self._engine, spec.origin, spec.options, spec.kinds
            )
            return self._engine.context_length

        return await asyncio.to_thread(build)

    async def play(
        self, positions: Sequence[int], tasks: Sequence[EpisodeTask], sampling: Sampling
    ) -> AsyncIterator[Played]:
        """Play these episodes with these weights; yields each soon after it ends."""
        await self._fetch(sampling.weights)
        collector = self._collector_for(sampling)
        ended = asyncio.Queue[EpisodeResult | None]()
        positions_by_task: dict[tuple[int, int, int], list[int]] = {}
        for position, task in zip(positions, tasks, strict=True):
            key = (task.seed, task.group, task.member)
            positions_by_task.setdefault(key, []).append(position)
        playing = asyncio.create_task(collector.play(tasks, on_result=ended.put_nowait))
        playing.add_done_callback(lambda _: ended.put_nowait(None))
        self._playing.add(playing)
        try:
            is_over = False
            while not is_over:
                batch = [await ended.get()]
                while not ended.empty():  # those that ended at the same time
                    batch.append(ended.get_nowait())
                is_over = batch[-1] is None
                results = [result for result in batch if result is not None]
                placed = [(positions_by_task[r.seed, r.group, r.member].pop(), r) for r in results]
                if (lines := self._log.take()) or placed:
                    yield placed, lines
            await playing
        finally:
            self._playing.discard(playing)
            playing.cancel()

    async def play_one(
        self, task: EpisodeTask, sampling: Sampling
    ) -> tuple[EpisodeResult, LogLines]:
        """Play one episode with these weights or newer ones, alongside others.

        Raises the error that ended them all, if one of them fails so that the run ends.
        """

        def set_result(future: asyncio.Future[EpisodeResult], result: EpisodeResult) -> None:
            if not future.done():
                future.set_result(result)

        await self._fetch(sampling.weights)
        if self._stream is None or self._stream.done():
            collector = self._collector_for(sampling)
            self._waiting = asyncio.Queue()
            self._stream = asyncio.create_task(
                collector.play_from(
                    self._waiting.get, set_result, num_tasks=collector.options.max_concurrency
                )
            )
        stream = self._stream
        result: asyncio.Future[EpisodeResult] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((result, task))
        awaited: list[asyncio.Future[Any]] = [result, stream]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            await stream
        return await result, self._log.take()

    async def take(self, weights: Weights) -> None:
        """Load newer weights, also in the middle of episodes."""
        await self._fetch(weights)

    async def stop(self) -> None:
        """Cancel the running episodes."""
        stream, self._stream = self._stream, None
        for playing in [*self._playing, *([] if stream is None else [stream])]:
            playing.cancel()
            with contextlib.suppress(BaseException):
                await playing

    async def sample(self, request: GenerationRequest, weights: Weights) -> GenerationResult:
        await self._fetch(weights)
        return await self._engine.sample(request)

    async def score(self, ids: Sequence[int], start: int, weights: Weights) -> list[float]:
        await self._fetch(weights)
        return await self._engine.score(ids, start)

    def _collector_for(self, sampling: Sampling) -> EpisodeCollector:
        collector = self._collector.sampling_with(sampling.params)
        collector.setup.seed = sampling.seed
        return collector

    async def _fetch(self, weights: Weights) -> None:
        async with self._loading:
            if self._engine.in_flight is not None and weights.number < self._newest:
                return  # the call was sent before the newest weights arrived
            self._newest = weights.number
            if weights.objects != self._objects:
                arrays = await asyncio.gather(*weights.objects)

                def load() -> None:
                    shards = [from_arrays(shard) for shard in arrays]
                    self._engine.load_version(join_shards(shards), weights.version)

                await asyncio.to_thread(load)
                self._objects = weights.objects
            self._engine.weight_version = weights.version
