"""Guess a hidden number in ten guesses, each answered with higher or lower."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.games.common import last_match, read_params, require

# A whole number standing alone. "3.5", "1,000" and "12th" hold none: which number is meant
# cannot be told. The limit of 18 digits keeps a runaway answer from becoming a huge integer.
_NUMBER = re.compile(r"(?<!\w)(?<!\d[.,])-?[0-9]{1,18}(?!\w|[.,]\d)")


class GuessNumberEnvironment(BaseEnvironment):
    """Find a number in ten guesses.

    Parameters: `low` and `high`, the range (0 and 1023, both included); `shaping`, a reward
    spread over the guesses by the share of the uncertainty (in bits) that each one removed
    (default 0: only the right number is rewarded, with 1); `rules`, whether the prompt has them
    (True; an untrained model cannot read them yet, and is faster without).

    The expert halves the range. Ten guesses can distinguish 2**10 - 1 = 1023 numbers, so that any
    fixed strategy misses one of the 1024; the expert misses 1023. Its success rate is 1023/1024.

    >>> env = GuessNumberEnvironment({"low": 1, "high": 7})
    >>> env.expert_action()
    '4'
    """

    quick = True

    max_steps = 10

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        params = read_params(self, low=0, high=1023, shaping=0.0, rules=True)
        self.low: int = params["low"]
        self.high: int = params["high"]
        self.shaping: float = params["shaping"]
        self.rules: bool = params["rules"]
        require(
            -(10**18) < self.low < self.high < 10**18,
            "low must be below high and both of at most 18 digits, "
            f"got low={self.low}, high={self.high}",
        )
        require(
            0 <= self.shaping < math.inf,
            f"shaping must be 0 or a positive number, got {self.shaping}",
        )
        self._begin(random.Random(0))  # playable at once; reset draws a new number

    def _begin(self, rng: random.Random) -> None:
        self._done = False
        self.step_count = 0
        self._secret = rng.randint(self.low, self.high)
        self._known_low, self._known_high = self.low, self.high

    def reset(self) -> str:
        self._begin(self.rng)
        return f"Guess a number from {self.low} to {self.high}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self.is_done():
            return "The game is over.", 0.0, True, {}
        self.step_count += 1
        match = last_match(_NUMBER, action)
        guess = int(match[0]) if match else None
        if guess is None or not self.low <= guess <= self.high:
            hint = f"Write one number from {self.low} to {self.high}."
            return self._answer(hint, 0.0, {"invalid_action": True})
        uncertainty_before = self._uncertainty()
        answer = self._compare(guess)
        reward = self.shaping * (uncertainty_before - self._uncertainty())
        if answer == "correct":
            self._done = True
            return "correct", reward + 1.0, True, {"success": True}
        return self._answer(answer, reward, {})

    def _compare(self, guess: int) -> str:
        """Compares a guess with the number, and narrows the known range."""
        if guess == self._secret:
            self._known_low = self._known_high = guess
            return "correct"
        if guess < self._secret:
            self._known_low = max(self._known_low, guess + 1)
            return "higher"
        self._known_high = min(self._known_high, guess - 1)
        return "lower"

    def _answer(
        self, text: str, reward: float, info: dict[str, Any]
    ) -> tuple[str, float, bool, dict[str, Any]]:
        if self.step_count < self.max_steps:
            return text, reward, False, info
        # The number of guesses is a rule of the game, so the episode is not truncated.
        self._done = True
        info["success"] = False
        return f"No guesses left. The number was {self._secret}.", reward, True, info

    def _uncertainty(self) -> float:
        """Returns the remaining uncertainty in bits, as a share of that at the start."""
        size = self._known_high - self._known_low + 1
        return math.log(size) / math.log(self.high - self.low + 1)

    def get_state_description(self) -> str:
        return (
            f"The number is from {self._known_low} to {self._known_high}. "
            f"Guesses left: {self.max_steps - self.step_count}."
        )

    def get_prompt_prefix(self) -> str:
        if not self.rules:
            return ""
        return (
            f"Find the hidden number from {self.low} to {self.high} "
            f"in at most {self.max_steps} guesses. "
            "After each guess you read higher, lower or correct. "
            f"Answer with one whole number, for example: {self.high}. "
            "If you write several, the last one counts."
        )

    def sample_action(self, rng: random.Random) -> str:
        return str(rng.randint(self.low, self.high))

    def expert_action(self) -> str:
        return str((self._known_low + self._known_high) // 2)
