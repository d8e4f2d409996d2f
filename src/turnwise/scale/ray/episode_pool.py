"""`EpisodePool`: the workers that play episodes. A worker that dies is replaced, and its episodes
are played again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from turnwise.episode import EpisodeResult
from turnwise.episode.collector import together
from turnwise.episode.types import EpisodeTask
from turnwise.errors import EngineError, import_extra
from turnwise.inference import SamplingParams
from turnwise.scale.ray.cluster import Cluster
from turnwise.scale.ray.episode_worker import EpisodeSpec, EpisodeWorker, Weights
from turnwise.scale.ray.failures import (
    SECONDS_BETWEEN_CALLS,
    SECONDS_TO_ANSWER,
    Failures,
    brief,
    is_loss,
    own_error,
)
from turnwise.scale.ray.worker_log import Lines, log_for

ray = import_extra("ray", "ray")

T = TypeVar("T")
OnResult = Callable[[EpisodeResult], None]


class EpisodePool:
    """Splits episodes over the workers. An episode is the same on any of them."""

    def __init__(
        self, cluster: Cluster, num_workers: int, spec: EpisodeSpec, failures: Failures
    ) -> None:
        self._cluster = cluster
        self._spec = ray.put(spec)
        self.failures = failures
        self._lock = threading.Lock()
        self._actors: list[Any] = []
        self._prepared: list[Any] = []
        for number in range(num_workers):
            actor, prepared = self._started(number)
            self._actors.append(actor)
            self._prepared.append(prepared)

    def context_length(self) -> int:
        """Wait until the workers are ready, and return their context length in tokens."""
        try:
            found: list[int] = ray.get(self._prepared, timeout=SECONDS_TO_ANSWER)
        except Exception as error:
            cause = own_error(error)
            if cause is not error:
                raise cause from None  # a user's mistake, which would fail in one process too
            raise EngineError(f"an episode worker did not start: {brief(error)}") from error
        return min(found)

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        found: list[int] = ray.get(
            [actor.ping.remote() for actor in self._actors], timeout=SECONDS_TO_ANSWER
        )
        return found

    async def play(
        self,
        tasks: Sequence[EpisodeTask],
        sampling: SamplingParams,
        seed: int,
        weights: Weights,
        on_result: OnResult | None = None,
    ) -> list[EpisodeResult]:
        """Play all tasks, in their order. Calls are serialized: another may have other weights."""
        results: dict[int, EpisodeResult] = {}

        def keep(place: int, result: EpisodeResult) -> None:
            if place not in results:
                results[place] = result
                if on_result is not None:
                    on_result(result)

        async with self._exclusive():
            shares = split_evenly(len(tasks), len(self._actors))
            how = (sampling, seed, weights)
            await together(
                self._play_share(number, places, tasks, how, results, keep)
                for number, places in enumerate(shares)
            )
        return [results[place] for place in range(len(tasks))]

    async def _play_share(
        self,
        number: int,
        places: Sequence[int],
        tasks: Sequence[EpisodeTask],
        how: tuple[SamplingParams, int, Weights],
        results: dict[int, EpisodeResult],
        keep: Callable[[int, EpisodeResult], None],
    ) -> None:
        """Play one worker's share; if the worker is lost, its successor plays what is missing."""
        while missing := [place for place in places if place not in results]:
            actor = self._actors[number]
            watch = asyncio.create_task(_check_liveness(actor))
            try:
                await self._prepared[number]
                episodes = actor.play.remote(missing, [tasks[p] for p in missing], *how)
                async for reference in episodes:
                    played, lines = await reference
                    log_for(f"episode worker {number}", lines)
                    for place, result in played:
                        keep(place, result)
            except asyncio.CancelledError:
                actor.stop.remote()
                raise
            except Exception as error:
                if not is_loss(error):
                    raise own_error(error) from None
                self._replace(number, error)
            finally:
                watch.cancel()

    @property
    def num_workers(self) -> int:
        return len(self._actors)

    def push(self, weights: Weights) -> None:
        """Send newer weights to all workers, without waiting for them."""
        for actor in self._actors:
            actor.take.remote(weights)

    async def play_from(
        self,
        next_task: Callable[[], Awaitable[tuple[T, EpisodeTask] | None]],
        on_result: Callable[[T, EpisodeResult], None],
        num_slots: int,
        how: tuple[SamplingParams, int],
        newest: Callable[[], Weights],
    ) -> None:
        """Play tasks as they come, `num_slots` at once on each worker, until there are no more.

        Each episode starts with the newest weights of that moment.
        """

        async def work(number: int) -> None:
            while (found := await next_task()) is not None:
                key, task = found
                on_result(key, await self._play_one(number, task, how, newest))

        watches = [asyncio.create_task(self._watch(number)) for number in range(self.num_workers)]
        try:
            await together(
                work(number) for _ in range(num_slots) for number in range(self.num_workers)
            )
        finally:
            for watch in watches:
                watch.cancel()
            for actor in self._actors:
                actor.stop.remote()

    async def _play_one(
        self,
        number: int,
        task: EpisodeTask,
        how: tuple[SamplingParams, int],
        newest: Callable[[], Weights],
    ) -> EpisodeResult:
        """Play one episode; if its worker is lost, the worker's successor plays it again."""
        while True:
            actor = self._actors[number]
            try:
                await self._prepared[number]
                played: tuple[EpisodeResult, Lines] = await actor.play_one.remote(
                    task, *how, newest()
                )
            except asyncio.CancelledError:
                raise
            except Exception as error:
                if not is_loss(error):
                    raise own_error(error) from None
                if self._actors[number] is actor:  # the first of its episodes to notice
                    self._replace(number, error)
                continue
            result, lines = played
            log_for(f"episode worker {number}", lines)
            return result

    async def _watch(self, number: int) -> None:
        while True:
            await _check_liveness(self._actors[number])
            await asyncio.sleep(SECONDS_BETWEEN_CALLS)

    def _replace(self, number: int, error: Exception) -> None:
        """Start a successor of a worker that was lost."""
        self.failures.record(f"episode worker {number}", error)
        ray.kill(self._actors[number])
        self._actors[number], self._prepared[number] = self._started(number)

    async def call_first(self, method: str, *arguments: Any) -> Any:
        """Call a method of the first worker."""
        await self._prepared[0]
        return await getattr(self._actors[0], method).remote(*arguments)

    def close(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self._actors.clear()

    def _started(self, number: int) -> tuple[Any, Any]:
        make = ray.remote(EpisodeWorker).options(**self._cluster.options(number))
        actor = make.remote(number)
        return actor, actor.prepare.remote(self._spec)

    @contextlib.asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Hold a thread lock: each caller has its own event loop."""
        while not self._lock.acquire(blocking=False):
            await asyncio.sleep(0.01)
        try:
            yield
        finally:
            self._lock.release()


async def _check_liveness(actor: Any) -> None:
    """Kill a worker that no longer answers, so that its episodes count as lost."""
    while True:
        try:
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                await actor.ping.remote()
        except TimeoutError:
            ray.kill(actor)
            return
        except Exception:  # it is dead, which raises where its episodes are awaited
            return
        await asyncio.sleep(SECONDS_BETWEEN_CALLS)


def split_evenly(number: int, num_ranges: int) -> list[range]:
    """Split a number of items, in order, into ranges whose lengths differ by at most one.

    >>> split_evenly(5, 3)
    [range(0, 1), range(1, 3), range(3, 5)]
    """
    cuts = [number * i // num_ranges for i in range(num_ranges + 1)]
    return [range(start, end) for start, end in itertools.pairwise(cuts)]
