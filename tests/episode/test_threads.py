"""Collectors, rewards and deadlines from several threads at once; and an engine that is silent."""

import asyncio
import logging
import threading

import pytest

from contention import hasty_threads, logged, no_tasks_left, nothing_left, run_together
from episode.worlds import Awaited, Counting, InThreads, Recording, model, tokenizer
from turnwise import EpisodeCollector, EpisodeLimits, LocalEngine
from turnwise.episode import watchdog
from turnwise.errors import EngineStalled

SHORT = EpisodeLimits(max_tokens_per_turn=4)


class TestSeveralThreads:
    @pytest.mark.parametrize("world", [Counting, InThreads, Awaited])
    def test_one_collector_plays_in_all_of_them(self, world):
        seeds = []

        def reward(trajectory):
            return 1.0

        collector = EpisodeCollector(Recording(), world, reward_fn=reward, max_concurrency=5)

        async def play():
            collection = await collector.collect(6)
            assert [r.reward.total for r in collection] == [1.0] * 6
            seeds.extend(result.seed for result in collection)
            assert no_tasks_left()

        with nothing_left(), hasty_threads():
            run_together(*[lambda: [asyncio.run(play()) for _ in range(2)]] * 3)
        assert len(seeds) == len(set(seeds)) == 3 * 2 * 6  # each call has seeds of its own

    def test_the_local_engine_serves_all_of_them(self):
        with LocalEngine(model(), tokenizer(), max_batch_size=8) as engine:
            collector = EpisodeCollector(engine, Counting, limits=SHORT)
            expected = [list(r.stream.ids) for r in collector.collect_sync(range(4))]

            async def play():
                collection = await asyncio.wait_for(collector.collect(range(4)), 50)
                assert [list(r.stream.ids) for r in collection] == expected
                assert no_tasks_left()

            with nothing_left():  # in haste, torch takes half a minute for it
                run_together(*[lambda: [asyncio.run(play()) for _ in range(3)]] * 3)


class Silent(Recording):
    """Answers a number of turns, and then nobody any more."""

    def __init__(self, num_answers, on_silence=lambda num_waiting: None):
        super().__init__()
        self.num_answers = num_answers
        self.num_waiting = 0
        self.on_silence = on_silence

    async def sample(self, request):
        if len(self.given) >= self.num_answers:
            self.num_waiting += 1
            self.on_silence(self.num_waiting)
            await asyncio.Event().wait()
        return await super().sample(request)


class WatchdogClock:
    """Stands in for `time` in the watchdog: its time passes only when a test says so."""

    def __init__(self):
        self.now = 0.0
        self.num_looks = 0

    def monotonic(self):
        self.num_looks += threading.current_thread().name == "turnwise: watchdog"
        return self.now

    async def wait(self, seconds):
        """Time passes, and the watchdog, which reads the clock twice, sees all of it."""
        self.now += seconds
        num_before = self.num_looks
        while self.num_looks < num_before + 4:
            await asyncio.sleep(0.001)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(watchdog, "time", WatchdogClock())
    return watchdog.time


class TestSilentEngine:
    def test_it_is_told_and_the_collection_ends(self, caplog, clock):
        closed = []

        def pass_time(num_waiting):
            clock.now += 101.0 * (num_waiting == 16)  # all of them wait for the engine

        class Watched(Counting):
            length = 50  # none ends before the silence

            def close(self):
                closed.append(self)

        collector = EpisodeCollector(
            Silent(20, pass_time), Watched, stall_timeout=100, report_after=0.01
        )

        async def main():
            with pytest.raises(EngineStalled, match=r"Waiting: \d+ for the engine"):
                await collector.collect(16)
            assert no_tasks_left()
            assert asyncio.current_task().cancelling() == 0

        with nothing_left(), caplog.at_level(logging.WARNING, "turnwise"):
            asyncio.run(main())
        assert len(closed) == 16
        assert "MainThread: " in caplog.text

    def test_a_request_that_is_tried_again_does_not_begin_anew(self, monkeypatch):
        monkeypatch.setattr("turnwise.episode.sampling._GRACE_SECONDS", 0.0)
        collector = EpisodeCollector(
            Silent(0),
            Counting,
            stall_timeout=0.3,
            limits=EpisodeLimits(generation_timeout=0.1),
            num_retries=9,
        )
        with pytest.raises(EngineStalled):
            collector.collect_sync(2)

    def test_slow_environments_are_none_of_its_business(self, clock):
        class Slow(Counting):
            async def step(self, action):
                await clock.wait(150)
                return super().step(action)

        collector = EpisodeCollector(
            Recording(), Slow, stall_timeout=100, report_after=0.01, max_concurrency=1
        )
        assert len(collector.collect_sync(3)) == 3

    def test_a_blocked_loop_is_told(self, monkeypatch):
        monkeypatch.setattr(watchdog, "_BEAT_SECONDS", 0.05)
        told = []

        class Blocking(Counting):
            length = 1

            def step(self, action):
                told.append(report.wait(60))
                return super().step(action)

        with logged("The event loop is blocked", " step (") as report:
            EpisodeCollector(Recording(), Blocking, report_after=0.1).collect_sync(1)
        assert told == [True]
