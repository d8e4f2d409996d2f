"""Scoring a batch: order, concurrency, deadlines, and failures that stay apart."""

import asyncio
import threading

import pytest
from hypothesis import given, settings, strategies as st

from turnwise.errors import ConfigError
from turnwise.reward import Reward, RewardFailure, score_trajectories
from turnwise.types import EpisodeStatus, RolloutData, Trajectory


def episodes(num_episodes):
    return [Trajectory(actions=["x"], rewards=[float(i)], seed=i) for i in range(num_episodes)]


class Meter:
    """Counts how many calls are in flight at once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.num_now = self.num_most = 0

    def __enter__(self):
        with self.lock:
            self.num_now += 1
            self.num_most = max(self.num_most, self.num_now)

    def __exit__(self, *exc):
        with self.lock:
            self.num_now -= 1


def metered_async(meter, num_at_once):
    meeting = asyncio.Barrier(num_at_once)

    async def reward(trajectory):
        with meter:
            await meeting.wait()
        return trajectory.seed

    return reward


def metered_plain(meter, num_at_once):
    meeting = threading.Barrier(num_at_once, timeout=60)

    def reward(trajectory):
        with meter:
            meeting.wait()
        return trajectory.seed

    return reward


def test_by_default_async_calls_run_together_and_plain_ones_in_turn():
    together, in_turn = Meter(), Meter()
    score_trajectories(episodes(8), metered_async(together, 8))
    score_trajectories(episodes(8), metered_plain(in_turn, 1))
    assert together.num_most == 8
    assert in_turn.num_most == 1


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 5), min_size=0, max_size=12), st.integers(1, 5))
def test_order_is_kept_whatever_ends_first(pauses, limit):
    async def reward(trajectory):
        await asyncio.sleep(pauses[trajectory.seed] / 2000)
        return trajectory.seed

    outcomes = score_trajectories(episodes(len(pauses)), reward, max_concurrency=limit)
    assert [outcome.total for outcome in outcomes] == list(range(len(pauses)))


def test_a_failure_is_an_outcome_and_the_others_keep_their_rewards():
    async def reward(trajectory):
        if trajectory.seed == 1:
            raise ValueError("no verdict")
        if trajectory.seed == 2:
            return float("nan")
        if trajectory.seed == 3:
            return [1.0, 2.0]
        return 7.0

    first, raised, nan, wrong_length, last = score_trajectories(episodes(5), reward)
    assert first == last == Reward(7.0)
    for failure, words in [
        (raised, "reward function 'reward': raised ValueError: no verdict"),
        (nan, "reward function 'reward': the reward is nan"),
        (wrong_length, "reward function 'reward': got 2 rewards for an episode of 1 turns"),
    ]:
        assert isinstance(failure, RewardFailure)
        assert failure.status is EpisodeStatus.REWARD_ERROR
        assert failure.error.startswith(words)


def hang_plain(trajectory):
    if trajectory.seed == 1:
        threading.Event().wait(5)
    return 1.0


async def hang_async(trajectory):
    if trajectory.seed == 1:
        await asyncio.Event().wait()
    return 1.0


@pytest.mark.parametrize("reward_fn", [hang_plain, hang_async])
def test_a_call_that_hangs_is_cut_and_the_rest_goes_on(reward_fn):
    first, hung, last = score_trajectories(episodes(3), reward_fn, timeout=1.0)
    assert first == last == Reward(1.0)
    assert isinstance(hung, RewardFailure)
    assert hung.status is EpisodeStatus.REWARD_ERROR
    assert f"reward function '{reward_fn.__name__}' took longer than 1 s" in hung.error


def test_an_episode_that_failed_is_not_scored_and_keeps_its_status():
    scored = []

    def reward(trajectory):
        scored.append(trajectory.seed)
        return 1.0

    batch = episodes(3)
    batch[1].status = EpisodeStatus.TOOL_ERROR
    batch[1].error = "the tool broke"
    outcomes = score_trajectories(RolloutData(batch), reward)
    assert scored == [0, 2]
    assert outcomes[1] == RewardFailure(EpisodeStatus.TOOL_ERROR, "tool_error: the tool broke")


def test_environments_come_one_each_or_one_for_all():
    def reward(trajectory, environment):
        return environment["bonus"]

    batch = episodes(2)
    each = score_trajectories(batch, reward, [{"bonus": 1.0}, {"bonus": 2.0}])
    shared = score_trajectories(batch, reward, {"bonus": 3.0})
    assert [outcome.total for outcome in each] == [1.0, 2.0]
    assert [outcome.total for outcome in shared] == [3.0, 3.0]
    with pytest.raises(ConfigError, match="got 1 environments for 2 trajectories"):
        score_trajectories(batch, reward, [{"bonus": 1.0}])


@pytest.mark.parametrize("batch", [Trajectory(), {"rewards": [1.0]}, "episodes", 3])
def test_what_is_no_batch_is_refused(batch):
    with pytest.raises(ConfigError, match="expected a list of trajectories"):
        score_trajectories(batch)
