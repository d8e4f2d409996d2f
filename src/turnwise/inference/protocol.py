"""The protocol of all engines: token ids in, sampled ids and their log-probs out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
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
    """The token limit of the request."""
    CONTEXT = "context"
    """The model's context is full."""
    DEADLINE = "deadline"
    """The timeout; the result holds what was sampled until then."""
    ABORTED = "aborted"
    """Cancelled; the result holds what was sampled until then."""


@dataclass(slots=True)
class GenerationRequest:
    """A request to continue these tokens.

    >>> GenerationRequest([5, 6, 7], max_tokens=16, seed=3).sampling.temperature
    1.0
    """

    prompt_ids: Sequence[int]
    """The whole context, from the first token on."""
    max_tokens: int
    """Maximum number of tokens to sample."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the turn; the sampled one is part of the result."""
    stop_strings: tuple[str, ...] = ()
    """Text that ends the turn; the tokens that completed it are part of the result."""
    seed: int = 0
    """Seed of the request's own random stream, which does not depend on other requests."""
    timeout: float | None = None
    """Seconds after which the turn ends with the tokens sampled so far."""
    session: Hashable | None = None
    """Key of a conversation, whose KV cache may be kept for its next turn."""
    branch_of: tuple[Hashable, int] | None = None
    """A session, and how many of its first tokens this prompt starts with. An engine may copy their
    KV cache when it sees the new session for the first time."""
    on_tokens: Callable[[Sequence[int]], None] | None = None
    """Called in the event loop with all tokens so far while the turn is sampled. `local`,
    `transformers`, and `vllm` in this process do so; other engines may not call it."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ConfigError("a request got no prompt tokens, expected at least one")
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens got {self.max_tokens}, expected 1 or more")


@dataclass(slots=True)
class GenerationResult:
    """The sampled tokens of one request.

    >>> GenerationResult([8, 2], [-0.3, -0.1], FinishReason.STOP, weight_version=0).ids
    [8, 2]
    """

    ids: Sequence[int]
    """The sampled tokens, the stop token included."""
    log_probs: Sequence[float]
    """The log-prob of each, under the distribution that it was drawn from."""
    finish_reason: FinishReason
    weight_version: int
    """Version of the weights that sampled its first token: the number of the engine's updates."""
    later_versions: tuple[tuple[int, int], ...] = ()
    """Weight updates during the turn: the first token that the new weights sampled, and their
    version."""


class Engine(Protocol):
    """What an episode needs of an engine: concurrent requests, none of which waits for another."""

    @property
    def weight_version(self) -> int: ...

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a prompt and its turn together."""

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        """Sample one turn. Cancelling the call aborts the request."""

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        """Return the log-probs of `ids[start:]`, given all earlier tokens, at temperature 1."""

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        """Load new weights; None means that shared ones have changed. Return the new version.

        No turn is sampled with two versions, and no KV cache of the old weights is used again,
        unless the engine was made to update in flight.
        """

    def end_session(self, session: Hashable) -> None:
        """Free what is kept for a conversation that has ended."""

    def close(self) -> None:
        """Free the engine; may be called twice. Running requests end as aborted."""
