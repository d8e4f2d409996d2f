"""Every form in which a reward function may be written, and how its arguments are found."""

import asyncio
import functools

import pytest

from turnwise.errors import ConfigError, RewardError
from turnwise.reward import compute_reward, compute_reward_async
from turnwise.types import Trajectory

EPISODE = Trajectory(actions=["a"], rewards=[1.0])
ENVIRONMENT = object()


def one(trajectory):
    return describe(trajectory)


def two(trajectory, environment):
    return describe(trajectory, environment)


def describe(*args):
    """1 for the trajectory alone, 2 for the trajectory and the right environment."""
    assert args[0] is EPISODE
    assert args[1:] in ((), (ENVIRONMENT,))
    return float(len(args))


async def async_one(trajectory):
    await asyncio.sleep(0)
    return describe(trajectory)


async def async_two(trajectory, environment):
    await asyncio.sleep(0)
    return describe(trajectory, environment)


def gives_a_coroutine(trajectory):
    return async_one(trajectory)


def two_by_another_name(episode, world):
    return describe(episode, world)


def optional_env(trajectory, env=None):
    return describe(trajectory, env)


def by_keyword(trajectory, *, environment):
    return describe(trajectory, environment)


def optional_by_keyword(trajectory, scale=1.0, *, environment=None):
    assert scale == 1.0
    return describe(trajectory, environment)


def own_setting(trajectory, scale=1.0):
    assert scale == 1.0
    return describe(trajectory)


def scaled(trajectory, environment, scale):
    assert scale == 3.0
    return describe(trajectory, environment)


def passes_on(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Rewards:
    def __call__(self, trajectory):
        return describe(trajectory)

    def method(self, trajectory, environment):
        return describe(trajectory, environment)


class AsyncRewards:
    async def __call__(self, trajectory, environment):
        return describe(trajectory, environment)


FORMS = [
    (one, 1),
    (two, 2),
    (async_one, 1),
    (async_two, 2),
    (two_by_another_name, 2),
    (optional_env, 2),
    (by_keyword, 2),
    (optional_by_keyword, 2),
    (own_setting, 1),
    (describe, 2),
    (lambda t, *rest: 0 + describe(t, *rest), 2),
    (gives_a_coroutine, 1),
    (functools.partial(scaled, scale=3.0), 2),
    (functools.partial(two, environment=ENVIRONMENT), 2),
    (passes_on(two), 2),
    (Rewards().method, 2),
    (AsyncRewards(), 2),
]


@pytest.mark.parametrize(("function", "num_arguments"), FORMS)
def test_each_form_gets_the_arguments_that_it_asks_for(function, num_arguments):
    reward = compute_reward(EPISODE, ENVIRONMENT, function, timeout=5.0)
    assert reward.total == num_arguments


def test_both_calls_work_inside_a_running_loop():
    async def main():
        inside = compute_reward(EPISODE, ENVIRONMENT, async_two)
        awaited = await compute_reward_async(EPISODE, ENVIRONMENT, two)
        return inside.total, awaited.total

    assert asyncio.run(main()) == (2.0, 2.0)


def test_a_type_error_inside_the_function_is_not_taken_for_a_wrong_signature():
    calls = []

    def broken(trajectory, environment):
        calls.append(1)
        return len(5)

    with pytest.raises(RewardError, match="'broken': raised TypeError: object of type 'int'"):
        compute_reward(EPISODE, ENVIRONMENT, broken)
    assert calls == [1]


def no_arguments():
    return 0.0


def three(trajectory, environment, tokenizer):
    return 0.0


def required_keyword(trajectory, *, tokenizer):
    return 0.0


@pytest.mark.parametrize("function", [no_arguments, three, required_keyword])
def test_a_signature_that_cannot_work_is_refused_before_any_call(function):
    expected = rf"'{function.__name__}' takes \(.*expected \(trajectory\) or \(trajectory, env"
    with pytest.raises(ConfigError, match=expected):
        compute_reward(EPISODE, ENVIRONMENT, function)


def test_what_is_no_function_is_refused():
    with pytest.raises(ConfigError, match=r"got 1\.0"):
        compute_reward(EPISODE, reward_fn=1.0)
    with pytest.raises(ConfigError, match=r"class .*Rewards.* an object that is called like one"):
        compute_reward(EPISODE, reward_fn=Rewards)
