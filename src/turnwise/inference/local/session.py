"""The state that the engine keeps for a conversation: its tokens, and how many are cached."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from turnwise.inference.worker import EngineTurn

MAX_GRAPH_STEPS = 16
"""Decode steps in the longest burst on a GPU."""


@dataclass(eq=False)
class Session:
    """Tokens of one conversation, of which the first `num_cached` are computed."""

    key: Hashable | None
    """The caller's key; None for an anonymous session, which ends with its turn."""
    turn: EngineTurn | None = None
    """The turn under way."""
    ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    region: int | None = None
    """Start of its region in the KV cache."""
    chunk_ends: list[int] = field(default_factory=list)
    """Where each prefill chunk and decode step ended. If the cache is evicted and computed again,
    the same chunks give the same bits; others would round differently."""
    prompt_key: bytes | None = None
    """Key in the prompt cache of the prompt that this session was the first to compute."""
    last_used: int = 0

    @property
    def num_pending(self) -> int:
        return len(self.ids) - self.num_cached

    def next_chunk(self, limit: int) -> int:
        """Return how many tokens to compute next."""
        if self.chunk_ends and self.chunk_ends[-1] > self.num_cached:
            return next(cut for cut in self.chunk_ends if cut > self.num_cached) - self.num_cached
        return min(self.num_pending, limit)

    def computed(self, num_tokens: int, *, remember: bool) -> None:
        """Count tokens that are now in the cache; `remember` records where the chunk ended."""
        self.num_cached += num_tokens
        if not remember:
            return
        if not self.chunk_ends or self.chunk_ends[-1] < self.num_cached:
            self.chunk_ends.append(self.num_cached)

    def is_continued_by(self, prompt_ids: list[int]) -> bool:
        """Return whether a prompt extends these tokens, so that the cached part can be used."""
        return len(prompt_ids) > self.num_cached and prompt_ids[: len(self.ids)] == self.ids


@dataclass(frozen=True)
class DecodeRow:
    """A turn that samples one token a step, as captured graphs take it."""

    session: Session
    turn: EngineTurn
    token: int
    """Its last token, not yet in the cache."""
    past: int
    """Tokens before it, all in the cache."""
    region: int
