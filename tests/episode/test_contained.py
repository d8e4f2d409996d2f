"""Whatever user code raises, wherever: as many episodes come back as were asked for."""

import asyncio
import functools
import itertools
import signal
import threading

import pytest
from hypothesis import given, settings, strategies as st

from episode.worlds import Counting, Recording
from turnwise import EpisodeCollector, EpisodeStatus, compute_reward, tool
from turnwise.deadlines import LoopThread
from turnwise.tools import JSONActionParser, ToolCall


class Unreadable(Exception):
    def __str__(self):
        raise ValueError("in __str__")


ERRORS = (ValueError("plain"), Unreadable(), SystemExit(2), StopIteration(), GeneratorExit())
PLACES = (
    *("__init__", "reset", "step", "close", "seed", "get_state_description"),
    *("get_prompt_prefix", "get_history"),
)
STYLES = ("quick", "thread", "async")


def make_world(place, error, style, share):
    """Breaks at one place, in the episodes with that share of secrets."""

    def break_if_due(self):
        if getattr(self, "secret", 0) % 10 < share:
            raise error

    def broken_method(name):
        original = getattr(Counting, name)

        @functools.wraps(original)
        def method(self, *args, **kwargs):
            value = original(self, *args, **kwargs)
            break_if_due(self)
            return value

        @functools.wraps(original)
        async def method_async(self, *args, **kwargs):
            await asyncio.sleep(0)
            return method(self, *args, **kwargs)

        return method_async if style == "async" and name in ("reset", "step") else method

    members = {"quick": style == "quick"}
    members[place] = broken_method(place)
    if style == "async" and place not in ("reset", "step"):
        members["step"] = awaited(Counting.step)
    return type("Breaking", (Counting,), members)


def awaited(function):
    async def call(self, *args):
        await asyncio.sleep(0)
        return function(self, *args)

    return call


@settings(max_examples=25, deadline=None)
@given(
    place=st.sampled_from(PLACES),
    error=st.sampled_from([*ERRORS, asyncio.CancelledError()]),
    style=st.sampled_from(STYLES),
    share=st.integers(0, 10),
    policy=st.sampled_from(["retry", "drop_group"]),
    concurrency=st.sampled_from([1, 3, 100]),
)
def test_as_many_come_back_as_were_asked_for(place, error, style, share, policy, concurrency):
    async def main():
        collector = EpisodeCollector(
            Recording(),
            make_world(place, error, style, share),
            on_error=policy,
            num_retries=1,
            max_concurrency=concurrency,
        )
        collection = await collector.collect(6, group_size=2)
        assert len(asyncio.all_tasks()) == 1
        assert asyncio.current_task().cancelling() == 0
        return collection

    collection = asyncio.run(main())
    results = [*collection, *collection.dropped]
    assert len(results) == 12
    assert {(r.group, r.member) for r in results} == {(g, m) for g in range(6) for m in range(2)}
    for result in results:
        assert (result.error is not None) == result.status.is_error
        assert (result.reward is None) == result.status.is_error
        if result.status.is_error:
            assert result.status is EpisodeStatus.ENVIRONMENT_ERROR
    if share == 0:
        assert collection.summary.num_errors == 0
    if share == 10 and place != "close":
        assert collection.summary.num_errors == 12


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
class TestOthers:
    def test_tools(self, error, style):
        def fail():
            """Fail."""
            raise error

        async def fail_async():
            """Fail."""
            await asyncio.sleep(0)
            raise error

        function = fail_async if style == "async" else fail
        broken = tool(name="fail", inline=style == "quick")(function)
        call = JSONActionParser().render(ToolCall("fail", {}))
        words = iter([call, "go", "go", "go"] * 10)
        collector = EpisodeCollector(
            Recording(lambda text: next(words)), Counting, tools=[broken], parser="json"
        )
        collection = collector.collect_sync(4)
        assert len(collection) == 4
        assert {result.status for result in collection} == {EpisodeStatus.DONE}
        (count,) = {value for name, value in collection.summary.failures.items()} or {0}
        assert count >= 1

    def test_rewards(self, error, style):
        def reward(trajectory):
            raise error

        async def reward_async(trajectory):
            await asyncio.sleep(0)
            raise error

        function = reward_async if style == "async" else reward
        collector = EpisodeCollector(Recording(), Counting, reward_fn=function, num_retries=0)
        collection = collector.collect_sync(4)
        assert [r.status for r in collection] == [EpisodeStatus.REWARD_ERROR] * 4
        with pytest.raises(RuntimeError, match="reward"):
            compute_reward(collection[0].trajectory.__class__(actions=["a"]), reward_fn=function)


@pytest.mark.parametrize("name", ["max_steps", "done", "sees_thoughts"])
def test_properties(name):
    def fail(self):
        raise ValueError("plain")

    world = type("Breaking", (Counting,), {name: property(fail, lambda self, value: None)})
    look = tool(name="look")(lambda: "nothing")
    words = itertools.cycle([JSONActionParser().render(ToolCall("look", {})), "go"])
    engine = Recording(lambda text: next(words))
    collector = EpisodeCollector(engine, world, tools=[look], parser="json", num_retries=0)
    collection = collector.collect_sync(4)
    assert [r.status for r in collection] == [EpisodeStatus.ENVIRONMENT_ERROR] * 4


def test_engines():
    def policy(text):
        raise ValueError("plain")

    collection = EpisodeCollector(Recording(policy), Counting, num_retries=0).collect_sync(4)
    assert [r.status for r in collection] == [EpisodeStatus.ENGINE_ERROR] * 4


@pytest.mark.parametrize("style", STYLES)
def test_a_keyboard_interrupt_in_an_episode_thread_is_no_ctrl_c(style):
    world = make_world("step", KeyboardInterrupt(), style, 10)
    thread = LoopThread("episodes")
    playing = thread.submit(EpisodeCollector(Recording(), world, num_retries=0).collect(4))
    for result in playing.outcome.result(30):
        assert result.status is EpisodeStatus.ENVIRONMENT_ERROR
        assert result.error == "RuntimeError: Breaking.step() raised KeyboardInterrupt"
    thread.end()


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need it"
)
def test_the_users_own_ctrl_c_stops_the_run():
    heard, closed = [], []

    class Interrupted(Counting):
        def step(self, action):
            if not heard:
                heard.append(self)
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

        def close(self):
            closed.append(self)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            EpisodeCollector(Recording(), Interrupted).collect_sync(5)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(closed) == 5
