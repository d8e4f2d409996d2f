"""`EpisodeWorker`: a process that plays episodes with its own engine and model."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.env.catalog import EnvironmentFactory
from turnwise.episode import CollectorOptions, EpisodeCollector, EpisodeResult
from turnwise.episode.collector import EpisodeSource
from turnwise.episode.seeds import derive_seed
from turnwise.episode.types import EpisodeTask
from turnwise.inference import GenerationRequest, GenerationResult, SamplingParams, engine_class
from turnwise.learner.sharding import join_shards
from turnwise.scale.ray.transfer import LogLines, ModelSource, Weights, WorkerLog, lazy_tensors
from turnwise.trainer.assembly import make_collector, make_engine
from turnwise.trainer.components import EpisodeKind
from turnwise.trainer.state import seed_generators


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
        self._runs: dict[int, tuple[asyncio.Queue[Any], asyncio.Task[None]]] = {}
        """By the driver's runs: their waiting tasks, and what plays them."""
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
        self, run: int, task: EpisodeTask, sampling: Sampling
    ) -> tuple[EpisodeResult, LogLines]:
        """Play an episode with these weights or newer ones, alongside others of the same run.

        Raises the error that ended them all, if one of them fails so that the run ends.
        """

        def set_result(future: asyncio.Future[EpisodeResult], result: EpisodeResult) -> None:
            if not future.done():
                future.set_result(result)

        if run not in self._runs:
            collector = self._collector.sampling_with(sampling.params)
            collector.setup.seed = sampling.seed
            tasks = asyncio.Queue[tuple[asyncio.Future[EpisodeResult], EpisodeTask]]()
            most = collector.options.max_concurrency
            playing = asyncio.create_task(collector.play_from(tasks.get, set_result, most))
            self._runs[run] = tasks, playing
        tasks, playing = self._runs[run]
        await self.take(sampling.weights)
        result: asyncio.Future[EpisodeResult] = asyncio.get_running_loop().create_future()
        tasks.put_nowait((result, task))
        awaited: list[asyncio.Future[Any]] = [result, playing]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            await playing
        return await result, self._log.take()

    async def stop(self, run: int) -> None:
        """Cancel the running episodes of a run."""
        _, playing = self._runs.pop(run, (None, None))
        if playing is not None:
            playing.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await playing

    async def sample(self, request: GenerationRequest, weights: Weights) -> GenerationResult:
        await self.take(weights)
        return await self._engine.sample(request)

    async def take(self, weights: Weights) -> None:
        """Load newer weights, also in the middle of episodes."""
        async with self._loading:
            if self._engine.in_flight is not None and weights.number < self._newest:
                return  # the call was sent before the newest weights arrived
            self._newest = weights.number
            if weights.objects != self._objects:
                arrays = await asyncio.gather(*weights.objects)

                def load() -> None:
                    shards = [dict(lazy_tensors(shard)) for shard in arrays]
                    self._engine.load_version(join_shards(shards), weights.version)

                await asyncio.to_thread(load)
                self._objects = weights.objects
            self._engine.weight_version = weights.version
