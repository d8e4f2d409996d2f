"""The token stream of one agent in one episode: it only grows, and knows what was sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.errors import ConfigError


@dataclass
class TokenStream:
    """Every token of an episode, in order, exactly as it was sampled or put in.

    >>> stream = TokenStream()
    >>> stream.add_context([5, 6])
    >>> stream.add_turn([7, 8], [-0.1, -0.2])
    >>> stream.ids, stream.mask, stream.turns
    ([5, 6, 7, 8], [False, False, True, True], [(2, 4)])
    """

    _ids: list[int] = field(default_factory=list)
    _mask: list[bool] = field(default_factory=list)
    _log_probs: list[float] = field(default_factory=list)
    _turns: list[tuple[int, int]] = field(default_factory=list)

    def add_context(self, ids: Sequence[int]) -> None:
        """Tokens that the policy did not sample: prompts, template, observations, tool results."""
        self._ids += ids
        self._mask += [False] * len(ids)
        self._log_probs += [math.nan] * len(ids)

    def add_turn(self, ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Tokens that the policy sampled in one turn, with their log-probs at that moment."""
        if len(ids) != len(log_probs):
            raise ConfigError(
                f"a turn got {len(ids)} tokens and {len(log_probs)} log-probs, expected as many"
            )
        start = len(self._ids)
        self._ids += ids
        self._mask += [True] * len(ids)
        self._log_probs += log_probs
        self._turns.append((start, len(self._ids)))

    @property
    def ids(self) -> Sequence[int]:
        """All tokens."""
        return self._ids

    @property
    def mask(self) -> Sequence[bool]:
        """Set on the tokens that the policy sampled: these and no others are trained on."""
        return self._mask

    @property
    def log_probs(self) -> Sequence[float]:
        """Log-probs at sampling; NaN on tokens that were not sampled."""
        return self._log_probs

    @property
    def turns(self) -> Sequence[tuple[int, int]]:
        """Where each turn's sampled tokens begin and end."""
        return self._turns

    def __len__(self) -> int:
        return len(self._ids)
