"""Async user code that never obeys its cancellation costs an episode its time, and nothing else."""

import asyncio
import contextlib
import logging

import pytest

from episode.worlds import Counting, Recording
from turnwise import EpisodeCollector, EpisodeLimits, EpisodeStatus, tool
from turnwise.deadlines import calls
from turnwise.episode.collector import EpisodeFailed
from turnwise.tools import ToolCall, ToolFailure, get_parser
from turnwise.trainer.episode_metrics import episode_metrics

CALL = get_parser("json").render(ToolCall("search", {}))
SHORT = EpisodeLimits(
    reset_timeout=0.05, step_timeout=0.05, reward_timeout=0.05, close_timeout=0.05, max_turns=3
)


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(calls, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(calls, "_logged", set())


async def ignore_cancellation():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


def make_world(place):
    """Hangs at a place, in every other episode of a group."""

    class Stubborn(Counting):
        num_made = 0

        def __init__(self):
            Stubborn.num_made += 1
            self.hangs = Stubborn.num_made % 2 == 1

        async def reset(self):
            if place == "reset" and self.hangs:
                await ignore_cancellation()
            return super().reset()

        async def step(self, action):
            if place == "step" and self.hangs:
                await ignore_cancellation()
            return super().step(action)

        async def close(self):
            if place == "close" and self.hangs:
                await ignore_cancellation()

    return Stubborn


async def score(trajectory, environment):
    if environment.hangs:
        await ignore_cancellation()
    return 1.0


@tool(timeout=0.05)
async def search() -> str:
    """Search."""
    await ignore_cancellation()
    return ""


@pytest.mark.parametrize("place", ["reset", "step", "close", "reward", "tool"])
def test_the_others_go_on(place, caplog):
    """Half of the episodes hang; each has its status, and the collector plays on afterwards."""
    collector = EpisodeCollector(
        Recording(lambda text: CALL if place == "tool" else "go"),
        make_world(place),
        limits=SHORT,
        reward_fn=score if place == "reward" else None,
        tools=[search] if place == "tool" else None,
        parser="json",
        num_retries=0,
        environment_calls="inline",  # no thread has to be quick
    )
    failed = {
        "reset": EpisodeStatus.ENVIRONMENT_ERROR,
        "step": EpisodeStatus.ENVIRONMENT_ERROR,
        "reward": EpisodeStatus.REWARD_ERROR,
        "close": EpisodeStatus.DONE,
        "tool": EpisodeStatus.TRUNCATED_BY_TURNS,
    }[place]
    for _ in range(2):
        with caplog.at_level(logging.WARNING, "turnwise"):
            collection = collector.collect_sync(4)
        hung = [result for result in collection if result.abandoned_calls]
        assert {result.status for result in hung} == {failed}
        if place == "tool":  # the model is told, and goes on
            assert [result.abandoned_calls for result in hung] == [3, 3, 3, 3]
            calls = [r for result in hung for t in result.turns for r in t.tool_results]
            assert {r.failure for r in calls} == {ToolFailure.TIMED_OUT}
        else:
            assert [result.abandoned_calls for result in hung] == [1, 1]
            others = [result for result in collection if not result.abandoned_calls]
            assert [result.status for result in others] == [EpisodeStatus.DONE] * 2
        expected = 12 if place == "tool" else 2
        assert episode_metrics(collection)["abandoned_calls"] == expected
    said = [r.getMessage() for r in caplog.records if "was abandoned after" in r.getMessage()]
    assert len(said) == 1


def test_an_end_of_all_episodes_does_not_wait_for_one_that_ignores_it():
    """Without any deadline of its own."""
    no_limits = EpisodeLimits(step_timeout=None, max_seconds=None)

    class World(Counting):
        async def step(self, action):
            if self.secret % 2:
                await ignore_cancellation()
            await asyncio.sleep(0.02)
            raise RuntimeError("broken")

    seeds = range(8)
    collector = EpisodeCollector(Recording(), World, limits=no_limits, on_error="fail")
    with pytest.raises(EpisodeFailed, match="broken"):
        collector.collect_sync(seeds)
