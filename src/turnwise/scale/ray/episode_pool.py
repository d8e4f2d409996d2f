"""The workers that play episodes, seen from the trainer: who dies is replaced, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

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
from turnwise.scale.ray.worker_log import log_for

ray = import_extra("ray", "ray")

OnResult = Callable[[EpisodeResult], None]


class EpisodePool:
    """Splits episodes over the workers. Which one plays an episode does not matter to it."""

    def __init__(
        self, cluster: Cluster, num_workers: int, spec: EpisodeSpec, failures: Failures
    ) -> None:
        self._cluster = cluster
        self._spec = ray.put(spec)
        self._failures = failures
        self._one_at_a_time = threading.Lock()
        self._actors: list[Any] = []
        self._prepared: list[Any] = []
        for number in range(num_workers):
            actor, prepared = self._started(number)
            self._actors.append(actor)
            self._prepared.append(prepared)

    def context_length(self) -> int:
        """Wait until the workers are there; how many tokens a context holds."""
        try:
            found: list[int] = ray.get(self._prepared, timeout=SECONDS_TO_ANSWER)
        except Exception as error:
            cause = own_error(error)
            if cause is not error:
                raise cause from None  # a user's mistake: it would fail in one process, too
            raise EngineError(f"an episode worker did not start: {brief(error)}") from error
        return min(found)

    def pids(self) -> list[int]:
        """The processes of the workers."""
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
        """Play them all. One call at a time: another may come with other weights."""
        results: dict[int, EpisodeResult] = {}

        def keep(place: int, result: EpisodeResult) -> None:
            if place not in results:
                results[place] = result
                if on_result is not None:
                    on_result(result)

        async with self._alone():
            shares = split_evenly(len(tasks), len(self._actors))
            how = (sampling, seed, weights)
            await together(
                self._play_share(number, places, tasks, how, results, keep)
                for number, places in enumerate(shares)
            )
        self._failures.wipe()
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
        """One worker's episodes, and again by its successor what it did not hand over."""
        while missing := [place for place in places if place not in results]:
            actor = self._actors[number]
            watch = asyncio.create_task(_watch(actor))
            try:
                await self._prepared[number]
                handed_over = actor.play.remote(missing, [tasks[p] for p in missing], *how)
                async for reference in handed_over:
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
                self._failures.note(f"episode worker {number}", error)
                ray.kill(actor)
                self._actors[number], self._prepared[number] = self._started(number)
            finally:
                watch.cancel()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Have the first worker answer."""
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
    async def _alone(self) -> AsyncIterator[None]:
        """Each caller has an event loop of its own, so this is a thread's lock."""
        while not self._one_at_a_time.acquire(blocking=False):
            await asyncio.sleep(0.01)
        try:
            yield
        finally:
            self._one_at_a_time.release()


async def _watch(actor: Any) -> None:
    """End a process that does not answer any more; its episodes then count as lost."""
    while True:
        try:
            await asyncio.wait_for(_answer(actor), SECONDS_TO_ANSWER)
        except TimeoutError:
            ray.kill(actor)
            return
        except Exception:  # it is dead, and whoever waits for its episodes hears of it
            return
        await asyncio.sleep(SECONDS_BETWEEN_CALLS)


async def _answer(actor: Any) -> None:
    await actor.ping.remote()


def split_evenly(number: int, num_parts: int) -> list[range]:
    """So many things in order, cut into parts that differ by one at most.

    >>> split_evenly(5, 3)
    [range(0, 1), range(1, 3), range(3, 5)]
    """
    cuts = [number * part // num_parts for part in range(num_parts + 1)]
    return [range(start, end) for start, end in itertools.pairwise(cuts)]
