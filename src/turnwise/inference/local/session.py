"""A conversation that the engine knows: its tokens, and how much of it is in the cache."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from turnwise.inference.turns import Turn


@dataclass(eq=False)
class Session:
    """Tokens of one conversation, of which the first `num_cached` are computed."""

    key: Hashable | None
    """Its name; None if it ends with its turn."""
    turn: Turn | None = None
    """The turn under way."""
    ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    region: int | None = None
    """Where in the arena its cache lies."""
    cuts: list[int] = field(default_factory=list)
    """Where each step's work on it ended. If its cache is evicted and computed again, the same
    cuts give the same bits; other cuts would give other roundings."""
    opening: bytes | None = None
    """The prompt that it was the first to compute, by which others find it."""
    last_used: int = 0

    @property
    def num_pending(self) -> int:
        return len(self.ids) - self.num_cached

    def next_chunk(self, limit: int) -> int:
        """How many tokens to compute next."""
        if self.cuts and self.cuts[-1] > self.num_cached:
            return next(cut for cut in self.cuts if cut > self.num_cached) - self.num_cached
        return min(self.num_pending, limit)

    def computed(self, num_tokens: int, *, remember: bool) -> None:
        """So many tokens more are in the cache; whether to remember that they came together."""
        self.num_cached += num_tokens
        if not remember:
            return
        if not self.cuts or self.cuts[-1] < self.num_cached:
            self.cuts.append(self.num_cached)

    def is_continued_by(self, prompt_ids: list[int]) -> bool:
        """Whether a prompt goes on from what is known, so that the cache stays of use."""
        return len(prompt_ids) > self.num_cached and prompt_ids[: len(self.ids)] == self.ids
