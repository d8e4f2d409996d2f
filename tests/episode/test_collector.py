"""Many episodes at once: in order, in groups, the same whatever the timing, and by policy."""

import asyncio
import random
import threading
import time

import pytest

from contention import logged
from episode.worlds import Awaited, Counting, InThreads, Recording, model, tokenizer
from turnwise import (
    ConfigError,
    EpisodeCollector,
    EpisodeFailed,
    EpisodeLimits,
    EpisodeStatus,
    LocalEngine,
    ScriptedEngine,
    collect,
)
from turnwise.episode import make_setup

SHORT = EpisodeLimits(max_tokens_per_turn=8)


def contents(collection):
    """Everything that must not depend on timing."""
    return [
        (
            *(r.seed, r.group, r.member, r.status, r.messages),
            *(list(r.stream.ids), list(r.stream.mask), repr(r.stream.log_probs)),
            r.agent.token_rewards,
        )
        for r in collection
    ]


def test_results_come_in_the_order_asked():
    class Uneven(Counting):
        async def step(self, action):
            await asyncio.sleep(random.random() * 0.01)
            return super().step(action)

    collection = collect(Recording(), Uneven, range(40), group_size=3, max_concurrency=50)
    places = [(result.group, result.member, result.seed) for result in collection]
    assert places == [(group, member, group) for group in range(40) for member in range(3)]
    assert len(collection.rollout) == 120
    assert collection.summary.num_turns == 360


def test_an_attribute_that_a_setup_does_not_have_is_an_error():
    setup = make_setup(Recording(), seed=3)
    assert setup.replaced(seed=4).seed == 4
    with pytest.raises(AttributeError, match="'sede'"):
        setup.replaced(sede=4)


def test_members_of_a_group_share_the_opening_and_not_the_sampling():
    engine = ScriptedEngine(tokenizer())
    collection = collect(engine, Counting, 3, group_size=4, limits=SHORT)
    for group in range(3):
        members = [result for result in collection if result.group == group]
        openings = {str(result.messages[:2]) for result in members}
        assert len(openings) == 1
        assert len({result.seed for result in members}) == 1
        assert len({str(result.stream.ids) for result in members}) == 4
    assert len({result.seed for result in collection}) == 3
    assert len({str(result.messages[1]) for result in collection}) == 3


def test_groups_without_seeds_are_new_in_each_call_and_the_same_in_each_run():
    def seeds():
        collector = EpisodeCollector(Recording(), Counting, seed=5)
        return [[r.seed for r in collector.collect_sync(2)] for _ in range(2)]

    first, second = seeds()
    assert not set(first) & set(second)
    assert seeds() == [first, second]


def test_the_local_engine_gives_the_same_bytes_whatever_the_timing():
    runs = []
    for world, concurrency in ((Counting, 2), (Awaited, 64), (InThreads, 5)):
        with LocalEngine(model(), tokenizer(), max_batch_size=8) as engine:
            collection = collect(
                engine, world, 3, group_size=2, limits=SHORT, max_concurrency=concurrency
            )
            runs.append(contents(collection))
    assert runs[0] == runs[1] == runs[2]


def test_no_more_run_at_once_than_may():
    running = [0, 0]

    class Watched(Counting):
        async def step(self, action):
            running[0] += 1
            running[1] = max(running)
            await asyncio.sleep(0.001)
            running[0] -= 1
            return super().step(action)

    collect(Recording(), Watched, 20, max_concurrency=3)
    assert running[1] == 3


class Flaky(Counting):
    """Fails in the environments that are made while `failing` lasts."""

    failing = 0
    made = 0

    def __init__(self, config=None):
        super().__init__(config)
        type(self).made += 1
        self.is_bad = type(self).made <= self.failing

    def step(self, action):
        if self.is_bad:
            raise RuntimeError("flaky")
        return super().step(action)


def flaky(num_failing):
    return type("Flaky", (Flaky,), {"failing": num_failing, "made": 0})


def test_retry_plays_again_with_a_fresh_environment():
    world = flaky(2)
    (result,) = collect(Recording(), world, [7], num_retries=2)
    assert result.status is EpisodeStatus.DONE
    assert (result.attempt, world.made) == (3, 3)
    # What is sampled does not depend on how often it was tried.
    engine = ScriptedEngine(tokenizer())
    retried, plain = (
        contents(collect(engine, world, [3], limits=SHORT)) for world in (flaky(1), Counting)
    )
    assert retried == plain


def test_retries_come_to_an_end():
    world = flaky(100)
    collection = collect(Recording(), world, [7, 8], num_retries=1)
    assert [result.status for result in collection] == [EpisodeStatus.ENVIRONMENT_ERROR] * 2
    assert world.made == 4
    assert collection.summary.errors == {"RuntimeError: flaky": 2}
    assert collection.summary.num_errors == 2


def test_drop_group_leaves_out_all_of_a_group():
    collection = collect(
        Recording(), flaky(1), range(4), group_size=3, on_error="drop_group", max_concurrency=1
    )
    assert [result.group for result in collection] == [1] * 3 + [2] * 3 + [3] * 3
    assert [result.group for result in collection.dropped] == [0] * 3
    statuses = collection.summary.statuses
    assert statuses == {EpisodeStatus.ENVIRONMENT_ERROR: 1, EpisodeStatus.DONE: 11}


def test_fail_stops_at_the_first_and_cleans_up():
    closed = []

    class Watched(flaky(1)):
        async def reset(self):
            text = super().reset()
            if not self.is_bad:
                await asyncio.sleep(60)
            return text

        def close(self):
            closed.append(self)

    async def main():
        with pytest.raises(EpisodeFailed, match="environment_error: RuntimeError: flaky"):
            await EpisodeCollector(Recording(), Watched, on_error="fail").collect(10)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert len(closed) == 10


def test_a_cancelled_collection_leaves_nothing():
    closed = []

    class Slow(Counting):
        async def step(self, action):
            await asyncio.sleep(60)

        def close(self):
            closed.append(self)

    engine = Recording()

    async def main():
        task = asyncio.create_task(EpisodeCollector(engine, Slow).collect(30))
        while len(engine.given) < 30:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert len(closed) == len(engine.ended) == 30


def test_it_says_what_it_waits_for():
    with logged("Waiting: 5 for an environment.") as report:

        class Slow(Counting):
            length = 1

            async def step(self, action):
                while not report.is_set():  # until the time limit of a step
                    await asyncio.sleep(0.01)
                return super().step(action)

        collection = collect(Recording(), Slow, 5, report_after=0.1)
    assert collection.summary.statuses == {EpisodeStatus.DONE: 5}


def test_rewards_are_computed_one_at_a_time_unless_told_otherwise():
    running = [0, 0]
    meeting = threading.Barrier(6, timeout=60)

    def reward(trajectory):
        running[0] += 1
        running[1] = max(running)
        time.sleep(0.005)
        running[0] -= 1
        return 1.0

    def reward_at_once(trajectory):
        meeting.wait()
        return 1.0

    assert collect(Recording(), Counting, 6, reward_fn=reward).summary.mean_reward == 1.0
    assert running[1] == 1
    together = collect(
        Recording(), Counting, 6, reward_fn=reward_at_once, reward_concurrency=6, num_retries=0
    )
    assert together.summary.mean_reward == 1.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_error": "ignore"}, "on_error"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"environment_calls": "fork"}, "environment_calls"),
    ],
)
def test_settings_that_make_no_sense(options, says):
    with pytest.raises(ConfigError, match=says):
        EpisodeCollector(Recording(), Counting, **options)
