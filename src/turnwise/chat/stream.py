"""The token stream of one agent in one episode: append-only, with a mask of sampled tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Self

from turnwise.errors import ConfigError


@dataclass
class TokenStream:
    """Every token of an episode in order, exactly as it was sampled or added.

    >>> stream = TokenStream()
    >>> stream.add_context([5, 6])
    >>> stream.add_turn([7, 8], [-0.1, -0.2])
    >>> stream.ids, stream.mask, stream.turns
    ([5, 6, 7, 8], [False, False, True, True], [(2, 4)])
    """

    _ids: list[int] = field(default_factory=list)
    _turns: list[tuple[int, int]] = field(default_factory=list)
    _branches: list[tuple[int, int]] = field(default_factory=list)
    _inserted: list[tuple[int, int]] = field(default_factory=list)
    """Spans inside of turns that the policy did not sample."""
    _sampled: list[float] = field(default_factory=list)
    """Log-probs of all turns, concatenated. Mask and full log-probs are computed on demand: objects
    per token would slow Python's garbage collector with many episodes at once."""

    @classmethod
    def restored(
        cls,
        ids: Sequence[int],
        mask: Sequence[bool],
        log_probs: Sequence[float],
        turns: Sequence[tuple[int, int]],
        branches: Sequence[tuple[int, int]] = (),
    ) -> Self:
        """Return the stream that recorded these; `log_probs` are those of the sampled tokens.

        >>> TokenStream.restored([5, 6, 7], [False, True, True], [-0.1, -0.2], [(1, 3)]).log_probs
        [nan, -0.1, -0.2]
        """
        inserted = [(i, i + 1) for start, end in turns for i in range(start, end) if not mask[i]]
        return cls(list(ids), list(turns), list(branches), inserted, list(log_probs))

    def add_context(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample: prompts, observations, tool results."""
        self._ids += ids

    def add_turn(
        self,
        ids: Sequence[int],
        log_probs: Sequence[float],
        inserted: tuple[int, int] | None = None,
    ) -> None:
        """Append tokens that the policy sampled in one turn, with their log-probs.

        `inserted` is a span of `ids` that was put between sampled ones, such as the end of a
        thought that was cut. These tokens have no log-probs and are not trained on.

        >>> stream = TokenStream()
        >>> stream.add_turn([5, 6, 7], [-0.1, -0.2], inserted=(1, 2))
        >>> stream.mask, stream.log_probs
        ([True, False, True], [-0.1, nan, -0.2])
        """
        first, last = inserted or (0, 0)
        num_sampled = len(ids) - (last - first)
        if num_sampled != len(log_probs):
            raise ConfigError(
                f"a turn got {num_sampled} tokens and {len(log_probs)} log-probs, expected one for "
                "each token"
            )
        start = len(self._ids)
        self._ids += ids
        self._sampled += log_probs
        self._turns.append((start, len(self._ids)))
        if first < last:
            self._inserted.append((start + first, start + last))

    def begin_branch(self, after: int) -> None:
        """Let the tokens that are added next follow the first `after` tokens, not all of them.

        0 begins a new conversation. What was added so far stays, and is not seen by the branch
        unless it stands on the path to `after`.

        >>> stream = TokenStream()
        >>> stream.add_context([5, 6, 7])
        >>> stream.begin_branch(2)
        >>> stream.add_context([8, 9])
        >>> stream.context(4), stream.context(2)
        ([(0, 2), (3, 4)], [(0, 2)])
        """
        if not 0 <= after <= len(self._ids):
            raise ConfigError(f"begin_branch got {after}, expected 0 to {len(self._ids)} tokens")
        self._branches = list(self.branches)  # one that got no tokens never was
        if after < len(self._ids):
            self._branches.append((len(self._ids), after))

    def continue_from(self, ids: Sequence[int]) -> int:
        """Let these tokens be all that comes before the next turn.

        A branch begins after the beginning that they have in common with the present context.
        Returns how many tokens that is.

        >>> stream = TokenStream()
        >>> stream.add_context([5, 6, 7])
        >>> stream.continue_from([5, 6, 8, 9]), stream.path, stream.ids
        (2, [5, 6, 8, 9], [5, 6, 7, 8, 9])
        """
        positions = [at for start, end in self.context(len(self)) for at in range(start, end)]
        num_shared = common_length(self.path, ids)
        self.begin_branch(positions[num_shared - 1] + 1 if num_shared else 0)
        self.add_context(ids[num_shared:])
        return num_shared

    @property
    def path(self) -> Sequence[int]:
        """The tokens before the next one in its conversation: all, if there are no branches."""
        if not self._branches:
            return self._ids
        return [i for start, end in self.context(len(self)) for i in self._ids[start:end]]

    @property
    def path_length(self) -> int:
        return sum(end - start for start, end in self.context(len(self)))

    @property
    def last_turn(self) -> tuple[int, int]:
        """Start and end of the turn that the present context ends with."""
        if not self._branches:
            return self._turns[-1]
        _, end = self.context(len(self))[-1]
        return next(turn for turn in reversed(self._turns) if turn[1] == end)

    @property
    def branches(self) -> Sequence[tuple[int, int]]:
        """Where each branch begins, and how many tokens of the stream stand before its path's
        last one: (start, after). Empty for a conversation that only grows."""
        has_tokens = not self._branches or self._branches[-1][0] < len(self._ids)
        return self._branches if has_tokens else self._branches[:-1]

    def context(self, token: int) -> list[tuple[int, int]]:
        """The spans of the stream that stand before a token in its own conversation, in order."""
        return context_spans(self._branches, token)

    @property
    def ids(self) -> Sequence[int]:
        """All tokens."""
        return self._ids

    @property
    def mask(self) -> Sequence[bool]:
        """True on the tokens that the policy sampled; only these are trained on."""
        mask = [False] * len(self._ids)
        for start, end in self._turns:
            mask[start:end] = [True] * (end - start)
        for start, end in self._inserted:
            mask[start:end] = [False] * (end - start)
        return mask

    @property
    def log_probs(self) -> Sequence[float]:
        """Log-probs at the time of sampling; NaN on tokens that were not sampled."""
        known = iter(self._sampled)
        return [next(known) if is_sampled else math.nan for is_sampled in self.mask]

    @property
    def num_sampled(self) -> int:
        """How many tokens the policy sampled."""
        return len(self._sampled)

    @property
    def turns(self) -> Sequence[tuple[int, int]]:
        """Start and end of each turn; all of its tokens were sampled but those inserted."""
        return self._turns

    def __len__(self) -> int:
        return len(self._ids)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return sum(1 for _ in same)


def context_spans(branches: Sequence[tuple[int, int]], token: int) -> list[tuple[int, int]]:
    """The spans that stand before a token of a stream with these branches, in order."""
    spans: list[tuple[int, int]] = []
    end = token
    while True:
        start, after = next((b for b in reversed(branches) if b[0] <= token), (0, 0))
        if start < end:
            spans.append((start, end))
        if after == 0:
            return spans[::-1]
        token, end = after - 1, after
