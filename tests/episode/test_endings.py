"""Every way in which an episode can end has its status, and the data that goes with it."""

import asyncio
import threading

import pytest

from episode.worlds import Broken, Counting, InThreads, Recording, tokenizer
from turnwise import (
    ChatFormat,
    ConfigError,
    EpisodeLimits,
    EpisodeStatus,
    ScriptedEngine,
    run_episode,
)
from turnwise.episode import run_episode_async
from virtual_time import Clock, run_in_virtual_time

LONG = type("Long", (Counting,), {"length": 1000})


def test_out_of_turns():
    result = run_episode(Recording(), LONG, limits=EpisodeLimits(max_turns=4))
    assert result.status is EpisodeStatus.TRUNCATED_BY_TURNS
    assert result.num_turns == 4
    assert result.reward.total == 1 + 2 + 3 + 4


def test_cut_by_the_environment():
    class Cut(Counting):
        def step(self, action):
            return "Enough.", 0.5, False, {"truncated": True}

    result = run_episode(Recording(), Cut)
    assert result.status is EpisodeStatus.TRUNCATED_BY_ENVIRONMENT
    assert result.trajectory.rewards == [0.5]
    assert result.trajectory.status is result.status


def test_out_of_tokens():
    engine = Recording(lambda text: "a longer answer")
    limit = 150
    result = run_episode(engine, LONG, limits=EpisodeLimits(max_tokens=limit))
    assert result.status is EpisodeStatus.TRUNCATED_BY_TOKENS
    assert all(len(r.prompt_ids) + r.max_tokens <= limit for r in engine.asked)
    assert result.stream.turns[-1][1] <= limit


def test_an_opening_that_does_not_fit_has_no_turns_and_says_so():
    result = run_episode(Recording(), Counting, limits=EpisodeLimits(max_tokens=10))
    assert result.status is EpisodeStatus.TRUNCATED_BY_TOKENS
    assert result.num_turns == 0
    assert "does not fit the context of 10" in result.error
    assert result.reward.total == 0.0


def test_out_of_time():
    class Slow(LONG):
        async def step(self, action):
            if self.heard:
                await asyncio.sleep(60)
            return super().step(action)

    result = run_in_virtual_time(
        run_episode_async(Recording(), Slow, limits=EpisodeLimits(max_seconds=1.0))
    )
    assert result.status is EpisodeStatus.TRUNCATED_BY_TIME
    assert result.num_turns == 2  # what was said last is kept
    lengths = {len(result.trajectory[n]) for n in ("states", "actions", "rewards", "infos")}
    assert lengths == {result.num_turns}
    assert result.reward is not None


def test_out_of_time_while_the_engine_speaks_keeps_what_was_said():
    class Slow(Recording):
        async def sample(self, request):
            await asyncio.sleep(request.timeout)
            return await Broken("deadline", at=0).sample(request)

    result = run_in_virtual_time(
        run_episode_async(Slow(), LONG, limits=EpisodeLimits(max_seconds=0.5))
    )
    assert result.status is EpisodeStatus.TRUNCATED_BY_TIME
    assert result.turns[-1].info == {"unanswered": True}


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("raises", "ConnectionError: the server is away"),
        ("says nothing", "without tokens"),
        ("not finite", "not finite"),
        ("too few log-probs", "2 tokens and 1 log-probs"),
        ("aborted", "cancelled the turn"),
        ("deadline", "longer than"),
    ],
)
def test_an_engine_that_fails(what, says):
    engine = Broken(what)
    result = run_episode(engine, Counting)
    assert result.status is EpisodeStatus.ENGINE_ERROR
    assert says in result.error
    assert result.reward is None
    assert result.agent.turn_rewards == []
    assert result.trajectory.status is EpisodeStatus.ENGINE_ERROR
    assert len(engine.ended) == 1


@pytest.mark.parametrize("what", ["hangs", "hangs and ignores its cancellation"])
def test_an_engine_that_hangs_is_left(what, monkeypatch):
    monkeypatch.setattr("turnwise.episode.sampling._GRACE_SECONDS", 0.05)
    monkeypatch.setattr("turnwise.episode.sampling._CANCEL_SECONDS", 0.05)
    monkeypatch.setattr("turnwise.deadlines.calls.GRACE_SECONDS", 0.05)
    limits = EpisodeLimits(generation_timeout=0.05)
    result = run_episode(Broken(what), Counting, limits=limits)
    assert result.status is EpisodeStatus.ENGINE_ERROR
    assert "longer than 0.1 s" in result.error


def broken(method, action, base=InThreads):
    def run(self, *args):
        return action()

    return type("Bad", (base,), {method: run})


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_environment_that_hangs_is_left_behind(method):
    limits = EpisodeLimits(**{f"{method}_timeout": 0.3})
    clock, forever = Clock(), threading.Event()

    def hang():
        clock.now += 1.0
        forever.wait()

    play = run_episode_async(Recording(), broken(method, hang), limits=limits)
    result = run_in_virtual_time(play, clock)
    forever.set()
    assert result.status is EpisodeStatus.ENVIRONMENT_ERROR
    assert f"Bad.{method}() took longer than 0.3 s" in result.error


def test_an_environment_that_is_made_too_late_is_closed_all_the_same():
    is_over, is_closed = threading.Event(), threading.Event()

    class Watched(Counting):
        def close(self):
            is_closed.set()

    def make():
        is_over.wait()
        return Watched()

    result = run_episode(Recording(), make, limits=EpisodeLimits(reset_timeout=0.05))
    assert result.status is EpisodeStatus.ENVIRONMENT_ERROR
    assert "making the environment" in result.error
    is_over.set()
    assert is_closed.wait(60)


def test_a_close_that_fails_is_logged_and_nothing_more(caplog):
    result = run_episode(Recording(), broken("close", lambda: 1 / 0))
    assert result.status is EpisodeStatus.DONE
    assert "Bad.close() failed" in caplog.text


def test_a_reward_sees_the_environment_before_it_is_closed():
    seen = []

    def reward(trajectory, environment):
        seen.append((environment.num_closed, environment.heard, trajectory.status))
        return 1.0

    result = run_episode(Recording(), Counting, reward_fn=reward)
    assert seen == [(0, ["go"] * 3, EpisodeStatus.DONE)]
    assert result.reward.total == 1.0


def test_a_huge_observation_is_cut():
    class Huge(Counting):
        def step(self, action):
            return "x" * 10_000_000, 0.0, True, {}

        def reset(self):
            super().reset()
            return "\ud800" + "y" * 10_000_000

    limits = EpisodeLimits(max_observation=1000)
    result = run_episode(Recording(), Huge, limits=limits)
    assert result.status is EpisodeStatus.DONE
    assert len(result.stream) < 2500
    assert "10000001 characters" in result.messages[1]["content"]
    assert len(result.turns[0].observation) < 1100


def test_a_template_that_cannot_write_the_messages_is_the_users_mistake():
    chat = ChatFormat(tokenizer(), "{{ raise_exception('roles must take turns') }}")
    with pytest.raises(ConfigError, match="does not take"):
        run_episode(ScriptedEngine(tokenizer(), str), Counting, chat_format=chat)


@pytest.mark.parametrize(
    "wrong", [{"max_turns": 0}, {"max_tokens": -1}, {"max_seconds": "1"}, {"step_timeout": -0.1}]
)
def test_limits_that_make_no_sense(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EpisodeLimits(**wrong)
