"""A fifth of everything breaks in some way: the run ends, every episode has a status, and
nothing is left behind."""

import asyncio
import gc
import os
import random
import sys
import threading
from collections import Counter

import pytest

from contention import child_processes, wait_until
from episode.worlds import Counting, Recording
from turnwise import EpisodeCollector, EpisodeLimits, EpisodeStatus, tool
from turnwise.tools import JSONActionParser, ToolCall
from virtual_time import Clock, QuickClock, run_in_virtual_time

NUM_EPISODES = 150
SHARE = 0.2
RELEASE = threading.Event()
hanging = set()
HUGE = 2_000_000
LIMITS = EpisodeLimits(
    reset_timeout=0.7,
    step_timeout=0.7,
    reward_timeout=0.7,
    close_timeout=0.7,
    max_turns=8,
    max_observation=1000,
)


class HangClock(Clock):
    """Time passes only while every call that is under way hangs, up to the next limit."""

    def select(self, timeout=None):
        calls = {t for t in threading.enumerate() if t.name.startswith("turnwise")}
        is_idle = all(t in hanging or "watchdog" in t.name for t in calls)
        events = super().select(timeout if timeout == 0 or not is_idle else 0)
        if is_idle and not events:
            self.now += timeout or 0.0
        return events


def raises():
    raise ValueError("injected")


def hangs():
    hanging.add(threading.current_thread())
    RELEASE.wait(60)


def exits():
    sys.exit(3)


def wrong_type():
    return object()


def huge():
    return "x" * HUGE


FAULTS = (raises, hangs, exits, wrong_type, huge)


class Faults:
    """Which calls break, and how: decided by what is called, not by when."""

    def __init__(self, seed):
        self.seed = seed
        self.lock = threading.Lock()
        self.injected = Counter()

    def at(self, *place):
        """The fault that is due here, or None."""
        rng = random.Random(f"{self.seed} {place}")
        if rng.random() >= SHARE:
            return None
        fault = rng.choice(FAULTS)
        with self.lock:
            self.injected[place[0], fault.__name__] += 1
        return fault


def make_world(faults, base):
    class Faulty(base):
        quick = False
        length = 4

        def reset(self):
            text = super().reset()
            fault = faults.at("reset", self.secret)
            return text if fault is None else fault()

        def step(self, action):
            number = len(self.heard)
            outcome = super().step(action)
            fault = faults.at("step", self.secret, number)
            if fault is None:
                return outcome
            value = fault()
            return (value, *outcome[1:]) if fault is huge else value

    return Faulty


def make_tools(faults):
    @tool(timeout=0.3, max_output=1000)
    def look(place: str) -> object:
        """Look somewhere."""
        fault = faults.at("tool", place)
        return "a lamp" if fault is None else fault()

    return [look]


def make_reward(faults):
    def reward(trajectory):
        fault = faults.at("reward", trajectory.seed, tuple(trajectory.actions))
        return 1.0 if fault is None else fault()

    return reward


def make_engine():
    parser = JSONActionParser()

    def policy(text):
        rng = random.Random(text)
        if rng.random() < 0.4:
            return parser.render(ToolCall("look", {"place": str(rng.randint(0, 10**6))}))
        return rng.choice(["go", '{"tool": "look", "argu', "stay"])

    return Recording(policy)


def left_over():
    """Live threads, open files, children that nobody collected."""
    return threading.active_count(), len(os.listdir("/proc/self/fd")), child_processes()


def has_no_more_than(before):
    # Fewer is no fault: what tests before this one left behind may be collected meanwhile.
    gc.collect()
    threads, files, children = left_over()
    return threads <= before[0] and files <= before[1] and children <= before[2]


@pytest.mark.parametrize("policy", ["retry", "drop_group"])
def test_the_run_ends_and_nothing_is_left(policy):
    RELEASE.clear()
    hanging.clear()
    faults = Faults(policy)
    engine = make_engine()
    wait_until(lambda: not any(t.name.startswith("turnwise") for t in threading.enumerate()))
    before = left_over()

    async def main():
        collector = EpisodeCollector(
            engine,
            make_world(faults, Counting),
            tools=make_tools(faults),
            parser="json",
            reward_fn=make_reward(faults),
            reward_concurrency=20,
            limits=LIMITS,
            on_error=policy,
            num_retries=1,
        )
        collection = await collector.collect(NUM_EPISODES // 3, group_size=3)
        assert len(asyncio.all_tasks()) == 1
        return collection

    collection = run_in_virtual_time(main(), HangClock())
    RELEASE.set()
    summary = collection.summary
    assert len(collection) + len(collection.dropped) == NUM_EPISODES == summary.num_episodes
    assert summary.statuses.total() == NUM_EPISODES
    kinds = {kind for kind, _ in faults.injected}
    assert kinds == {"reset", "step", "tool", "reward"}
    assert {fault for _, fault in faults.injected} == {fault.__name__ for fault in FAULTS}
    for result in [*collection, *collection.dropped]:
        assert isinstance(result.status, EpisodeStatus)
        # An episode that was cut by a limit may say which.
        assert result.error is not None or not result.status.is_error
        assert (result.reward is None) == result.status.is_error
        assert sum(result.stream.mask) == sum(turn.num_tokens for turn in result.turns)
        assert len(result.stream) < 20_000 * LIMITS.max_turns
    for status in (EpisodeStatus.DONE, EpisodeStatus.ENVIRONMENT_ERROR, EpisodeStatus.REWARD_ERROR):
        assert summary.statuses[status] > 0
    assert summary.failures["malformed_call"] > 0
    assert {"raised", "timed_out"} & set(summary.failures)
    if policy == "drop_group":
        assert not any(result.status.is_error for result in collection)
    # Every conversation that was begun is ended.
    assert set(engine.ended) == {request.session for request in engine.asked}
    wait_until(lambda: has_no_more_than(before))
    assert has_no_more_than(before), f"{left_over()}, and before it were {before}"


class AwaitedFaults(Counting):
    """Async environments: faults on the event loop itself."""

    async def reset(self):
        return super().reset()

    async def step(self, action):
        kind = self.secret % 4
        if kind == 0:
            await asyncio.Event().wait()
        if kind == 1:
            sys.exit(1)
        if kind == 2:
            raise asyncio.CancelledError  # of something that it waited for
        return super().step(action)


def test_async_environments_cannot_end_the_loop():
    async def main():
        limits = EpisodeLimits(step_timeout=0.2)
        collector = EpisodeCollector(Recording(), AwaitedFaults, limits=limits, num_retries=0)
        collection = await collector.collect(40)
        assert len(asyncio.all_tasks()) == 1
        return collection.summary

    summary = run_in_virtual_time(main(), QuickClock())
    statuses = {EpisodeStatus.DONE, EpisodeStatus.ENVIRONMENT_ERROR}
    assert set(summary.statuses) == statuses
    assert summary.statuses.total() == 40
    assert len(summary.errors) == 3
