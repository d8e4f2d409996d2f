"""The number game: what counts as a guess, what the state tells, and who can win."""

import pytest
from hypothesis import given, settings, strategies as st

from turnwise.env.games.guess_number import GuessNumberEnvironment


def with_secret(secret: int, **params: object) -> GuessNumberEnvironment:
    """A game that hides this very number."""
    env = GuessNumberEnvironment(params)
    env.reset()
    env._secret = secret
    return env


def guesses_of_expert(secret: int) -> list[str]:
    env = with_secret(secret)
    answers = []
    while not env.is_done():
        answers.append(env.step(env.expert_action())[0])
    return answers


def test_the_expert_finds_every_number_but_the_last() -> None:
    lost = [secret for secret in range(1024) if guesses_of_expert(secret)[-1] != "correct"]
    assert lost == [1023]


def test_the_hints_lead_to_the_number() -> None:
    env = with_secret(600)
    assert env.step("700") == ("lower", 0.0, False, {})
    assert env.step("500") == ("higher", 0.0, False, {})
    assert env.get_state_description() == "The number is from 501 to 699. Guesses left: 8."
    assert env.step("600") == ("correct", 1.0, True, {"success": True})


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1023), st.lists(st.integers(0, 1023), max_size=9))
def test_the_state_tells_only_what_the_answers_told(secret: int, guesses: list[int]) -> None:
    env = with_secret(secret)
    low, high = 0, 1023
    for guess in guesses:
        answer, *_ = env.step(str(guess))
        if answer == "correct":
            return
        low = max(low, guess + 1) if answer == "higher" else low
        high = min(high, guess - 1) if answer == "lower" else high
        left = env.max_steps - env.step_count
        expected = f"The number is from {low} to {high}. Guesses left: {left}."
        assert env.get_state_description() == expected
        assert low <= secret <= high


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("512", 512),
        ("  512\n", 512),
        ("My guess is 512.", 512),
        ("It is above 100, so I try 512!", 512),
        ("I guess...512", 512),
        ("**512**", 512),
        ("guess=512", 512),
        ("between 500-512", 512),
        ("0512", 512),
    ],
)
def test_the_last_whole_number_is_the_guess(text: str, guess: int) -> None:
    assert with_secret(guess).step(text)[0] == "correct"


@pytest.mark.parametrize(
    "text",
    ["", "higher", "3.5", "1,000", "12th", "x512", "-512", "1024", "0x10", "5e2", "9" * 5000, "五"],
)
def test_what_is_no_number_of_the_range_is_invalid(text: str) -> None:
    observation, reward, done, info = with_secret(512).step(text)
    assert observation == "Write one number from 0 to 1023."
    assert (reward, done, info) == (0.0, False, {"invalid_action": True})


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1022), st.floats(0.01, 5))
def test_shaping_adds_the_same_to_every_win(secret: int, shaping: float) -> None:
    env = with_secret(secret, shaping=shaping)
    rewards = []
    while not env.is_done():
        rewards.append(env.step(env.expert_action())[1])
    assert sum(rewards) == pytest.approx(1.0 + shaping)
    assert all(reward >= 0.0 for reward in rewards)
