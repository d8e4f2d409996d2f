"""`EpisodePool`: the workers that play episodes, as many as the cluster has room for.

A worker that is lost is requested again, and the others play its episodes. `RemoteEngine` and
`RemoteCollector` are the proxies through which the trainer uses the pool.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future, as_completed
from typing import Any, TypeVar

import torch

from turnwise.episode import Collection, EpisodeCollector, EpisodeResult
from turnwise.episode.collector import TaskGroup
from turnwise.episode.types import EpisodeTask
from turnwise.errors import EngineError, TrainingStopped, import_extra
from turnwise.inference import BaseInferenceEngine, GenerationRequest, GenerationResult
from turnwise.scale.ray.cluster import (
    SECONDS_BETWEEN_CALLS,
    SECONDS_TO_ANSWER,
    Cluster,
    Failures,
    brief,
    is_loss,
    own_error,
    put_for_workers,
)
from turnwise.scale.ray.episode_worker import EpisodeSpec, EpisodeWorker, Sampling
from turnwise.scale.ray.transfer import Weights, log_for, to_arrays

ray = import_extra("ray", "ray")

T = TypeVar("T")
_LOG = logging.getLogger("turnwise")


class _Worker:
    """A worker process, from the request for it until it is lost."""

    def __init__(self, number: int, actor: Any, spec: Any) -> None:
        self.number = number
        self.actor = actor
        self.requested = time.monotonic()
        self.prepared: Future[int] = actor.prepare.remote(spec).future()
        """Its context length, as soon as it can play; that may take as long as the run."""
        self.is_ready = False
        self.num_playing = 0
        """Episodes that it has under way."""
        self.called: tuple[float, Future[int]] | None = None
        """The liveness check that it has not answered, and when it was sent."""
        self.taking: Future[None] | None = None
        """The last weights that were sent to it."""


class EpisodePool:
    """Splits episodes over the workers. An episode is the same on any of them.

    Workers join when the cluster has room for them, and leave with their machines.
    """

    def __init__(
        self, cluster: Cluster, num_workers: int, spec: EpisodeSpec, failures: Failures
    ) -> None:
        self._cluster = cluster
        self._spec = put_for_workers(spec)
        self.failures = failures
        self._runs = itertools.count()
        self._workers = [self._request(number) for number in range(num_workers)]

    def _request(self, number: int) -> _Worker:
        """Request a worker. Ray starts it as soon as the cluster has room for it."""
        options = self._cluster.actor_options(self._cluster.num_learners + number)
        make = ray.remote(EpisodeWorker).options(**options, max_concurrency=10_000)
        return _Worker(number, make.remote(number), self._spec)

    def context_length(self) -> int:
        """Wait until the workers with which a run starts are ready; return their context length."""
        starting = [worker.prepared for worker in self._workers]
        try:
            ready = as_completed(starting, timeout=SECONDS_TO_ANSWER)
            first = itertools.islice(ready, self._cluster.num_reserved)
            return min(prepared.result() for prepared in first)
        except Exception as error:
            cause = own_error(error)
            if cause is not error:
                raise cause from None  # a user's mistake, which would fail in one process too
            raise EngineError(f"an episode worker did not start: {brief(error)}") from error

    def pids(self) -> list[int]:
        pings = [worker.actor.ping.remote() for worker in self._workers]
        pids: list[int] = ray.get(pings, timeout=SECONDS_TO_ANSWER)
        return pids

    @property
    def num_workers(self) -> int:
        return len(self._ready())

    def push(self, weights: Weights) -> None:
        """Send newer weights to all workers, without waiting for them.

        One that still loads the last ones, or hangs, gets the newest with its next episode: else
        the object store would keep a version for each call that waits.
        """
        for worker in self._workers:
            if worker.is_ready and (worker.taking is None or worker.taking.done()):
                worker.taking = worker.actor.take.remote(weights).future()

    async def play_from(
        self,
        next_task: Callable[[], Awaitable[tuple[T, EpisodeTask] | None]],
        on_result: Callable[[T, EpisodeResult], None],
        num_slots: int,
        newest: Callable[[], Sampling],
        *,
        in_shares: bool,
    ) -> None:
        """Play tasks as they come, `num_slots` at once on all workers, until there are no more.

        Each episode starts with the newest weights of that moment. If its worker is lost, another
        one plays it again. With `in_shares` there are as many tasks as slots, and each worker plays
        a share of them that follow each other: the members of a group share a prompt cache.
        """
        run = next(self._runs)

        async def play(task: EpisodeTask) -> EpisodeResult:
            while True:
                async with self._picked(num_slots if in_shares else 1) as worker:
                    result, lines = await worker.actor.play.remote(run, task, newest())
                    log_for(f"episode worker {worker.number}", lines)
                    played: EpisodeResult = result
                    return played

        async def work() -> None:
            while (next_one := await next_task()) is not None:
                key, task = next_one
                on_result(key, await play(task))

        watching = asyncio.create_task(self._watch())
        try:
            async with TaskGroup() as group:
                for _ in range(num_slots):
                    group.create_task(work())
        finally:
            watching.cancel()
            for worker in self._workers:
                if worker.is_ready:
                    worker.actor.stop.remote(run)

    async def sample(self, request: GenerationRequest, weights: Weights) -> GenerationResult:
        while True:
            async with self._picked() as worker:
                result: GenerationResult = await worker.actor.sample.remote(request, weights)
                return result

    def close(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(Exception):
                ray.kill(worker.actor)
        self._workers.clear()

    @contextlib.asynccontextmanager
    async def _picked(self, num_slots: int = 1) -> AsyncIterator[_Worker]:
        """Pick the first worker with less than its share, or else the one with the fewest episodes.

        If it is lost, the block ends.
        """
        deadline = time.monotonic() + SECONDS_TO_ANSWER
        while not (ready := self._ready()):
            if time.monotonic() > deadline:
                raise TrainingStopped(
                    f"no episode worker has started for {SECONDS_TO_ANSWER:g} s. The same command "
                    "resumes the run from its last checkpoint when the cluster has room for one."
                )
            await asyncio.sleep(0.05)
        share = -(-num_slots // len(ready))
        worker = min(ready, key=lambda worker: max(worker.num_playing, share - 1))
        worker.num_playing += 1
        try:
            yield worker
        except Exception as error:
            if not is_loss(error):
                raise own_error(error) from None
            self._replace(worker, error)
        finally:
            worker.num_playing -= 1

    def _ready(self) -> list[_Worker]:
        """Return the workers that can play; those that were requested join when they can."""
        for worker in list(self._workers):
            if not worker.is_ready and worker.prepared.done():
                error = worker.prepared.exception()
                if error is not None:
                    self._replace(worker, own_error(error))
                    continue
                worker.is_ready = True
                _LOG.info("episode worker %d is ready", worker.number)
        return [worker for worker in self._workers if worker.is_ready]

    def _replace(self, worker: _Worker, error: BaseException) -> None:
        """Request a successor of a worker that was lost; its first episode to notice does so."""
        if worker not in self._workers:
            return
        self.failures.record(f"episode worker {worker.number}", error, worker.requested)
        ray.kill(worker.actor)
        self._workers[worker.number] = self._request(worker.number)

    async def _watch(self) -> None:
        while True:
            for worker in self._workers:
                if not worker.is_ready:
                    continue
                if worker.called is None or worker.called[1].done():
                    worker.called = time.monotonic(), worker.actor.ping.remote().future()
                elif time.monotonic() - worker.called[0] > SECONDS_TO_ANSWER:
                    ray.kill(worker.actor)
            await asyncio.sleep(SECONDS_BETWEEN_CALLS)


class RemoteEngine(BaseInferenceEngine):
    """The engines of all workers. They have loaded the first weights, or get them as `first`.

    New weights stay in the object store until a worker is called: it fetches them then.
    """

    shares_model = True  # by the object store: this process copies no weights

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
        self._objects = first
        self._context_length = pool.context_length()
        self._num_updates = 0

    @property
    def weights(self) -> Weights:
        return Weights(self.weight_version, self._objects, self._num_updates)

    @property
    def context_length(self) -> int:
        return self._context_length

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        return await self.pool.sample(request, self.weights)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        """Sample from these weights; None: from the learners' newest, which skip this process."""
        self._objects = self._newest() if weights is None else (ray.put(to_arrays(weights)),)
        self.weight_version += 1
        self._num_updates += 1
        if self.in_flight is not None:
            self.pool.push(self.weights)
        return self.weight_version

    def close(self) -> None:
        self.pool.close()


class RemoteCollector(EpisodeCollector):
    """Lets the workers play its episodes, with its sampling parameters and seed."""

    def __init__(self, engine: RemoteEngine, *args: Any, **options: Any) -> None:
        super().__init__(engine, *args, **options)
        self._remote = engine

    async def play_from(
        self,
        next_task: Callable[[], Awaitable[tuple[T, EpisodeTask] | None]],
        on_result: Callable[[T, EpisodeResult], None],
        num_tasks: int,
    ) -> None:
        def newest() -> Sampling:
            return Sampling(self.setup.sampling, self.setup.seed, self._remote.weights)

        await self._remote.pool.play_from(
            next_task,
            on_result,
            num_tasks,
            newest,
            # In asynchronous training tasks come one by one.
            in_shares=self._remote.in_flight is None,
        )

    async def finish(self, played: list[EpisodeResult]) -> Collection:
        self._remote.pool.failures.reset()
        return await super().finish(played)
