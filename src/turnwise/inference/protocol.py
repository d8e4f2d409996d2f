"""What every engine speaks: token ids in, sampled ids and their log-probs out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import torch

from turnwise.errors import ConfigError
from turnwise.inference.sampling import SamplingParams


class FinishReason(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    """A stop token or a stop string."""
    LENGTH = "length"
    """As many tokens as were allowed."""
    CONTEXT = "context"
    """The model's context is full."""
    DEADLINE = "deadline"
    """Out of time; what was sampled until then is there."""
    ABORTED = "aborted"
    """Called off; what was sampled until then is there."""


@dataclass(slots=True)
class GenerationRequest:
    """Continue these tokens.

    >>> GenerationRequest([5, 6, 7], max_tokens=16, seed=3).sampling.temperature
    1.0
    """

    prompt_ids: Sequence[int]
    """What to continue, from the very first token."""
    max_tokens: int
    """Most tokens to sample."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the turn; the one that was sampled is part of the result."""
    stop_strings: tuple[str, ...] = ()
    """Text that ends the turn; the tokens that completed it are part of the result."""
    seed: int = 0
    """Of this request's own random stream: its draws do not depend on its neighbours."""
    timeout: float | None = None
    """Seconds after which it ends with what it has."""
    session: Hashable | None = None
    """Names a conversation: what was computed for it may be kept for its next turn."""
    branch_of: tuple[Hashable, int] | None = None
    """A session and a number of its tokens with which this prompt begins. An engine may copy what
    it has computed for them, when it sees the new session for the first time."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ConfigError("a request got no prompt tokens, expected at least one")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens got {self.max_tokens}, expected 1 or more")


@dataclass(slots=True)
class GenerationResult:
    """What was sampled.

    >>> GenerationResult([8, 2], [-0.3, -0.1], FinishReason.STOP, weight_version=0).ids
    [8, 2]
    """

    ids: Sequence[int]
    """The sampled tokens, the stop token included."""
    log_probs: Sequence[float]
    """Of each, under the distribution that it was drawn from."""
    finish_reason: FinishReason
    weight_version: int
    """Which weights sampled it; counts the updates of the engine."""


class Engine(Protocol):
    """What an episode needs: many requests at once, none waiting for another's turn to end."""

    @property
    def weight_version(self) -> int: ...

    @property
    def context_length(self) -> int:
        """Most tokens that a prompt and its turn may have together."""

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        """Sample one turn. Cancelling the call aborts the request."""

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        """Log-probs of `ids[start:]`, each after all tokens before it, at temperature 1."""

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        """Take new weights, or be told that shared ones have changed (None); the new version.

        No turn is sampled by two sets of weights, and nothing computed with the old ones is used
        again.
        """

    def end_session(self, session: Hashable) -> None:
        """A conversation is over: what was kept for it can go."""

    def close(self) -> None:
        """Free the engine; may be called twice. Requests under way end as aborted."""
