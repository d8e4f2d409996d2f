"""Conversations of the engine, and what new ones find of others: whole prompts and beginnings."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from turnwise.inference.worker import EngineTurn

MAX_GRAPH_STEPS = 16
"""Decode steps in the longest burst on a GPU."""
_MAX_PROMPTS = 64
"""Prompts that are cached; the oldest is dropped for a new one."""
BLOCK = 64
"""Tokens between two entries of the prefix index; shorter beginnings are not worth a copy."""
_TOKEN_BYTES = 8
"""Bytes of a token in a prompt's key."""


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


def kernel_seed(turn: EngineTurn) -> int:
    """Return a request's seed in the range of the kernels that sample."""
    return turn.request.seed & (2**62 - 1)


def prompt_key(ids: Sequence[int]) -> bytes:
    """Return a prompt as a key: bytes cache their hash, where a tuple is hashed at every lookup."""
    return array("q", ids).tobytes()


class PromptCache:
    """Maps a prompt to the session that holds its KV cache, and the logits after its last token.

    The logits lie in one block that is allocated once.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[Session, int]] = OrderedDict()
        self._free = list(range(_MAX_PROMPTS))
        self._block: torch.Tensor | None = None

    def find(self, key: bytes) -> tuple[Session, int] | None:
        """Return the session and the row of `logits`; None if the prompt is not cached."""
        return self._known.get(key)

    def logits(self, rows: Sequence[int]) -> torch.Tensor:
        assert self._block is not None
        return self._block[list(rows)]

    def remember(self, session: Session, logits: torch.Tensor) -> None:
        """Keep the logits [V] after a session's whole prompt, if that is where it stands."""
        key = session.prompt_key
        if key is None or len(key) != _TOKEN_BYTES * session.num_cached or key in self._known:
            return
        if self._block is None:
            self._block = logits.new_empty(_MAX_PROMPTS, len(logits))
        if not self._free:
            _, (_, row) = self._known.popitem(last=False)
            self._free.append(row)
        row = self._free.pop()
        self._block[row] = logits
        self._known[key] = (session, row)

    def clear(self) -> None:
        """Drop all prompts."""
        self._free += [row for _, row in self._known.values()]
        self._known.clear()

    def forget(self, session: Session) -> None:
        """Drop a session whose KV cache was evicted."""
        known = self._known.get(session.prompt_key) if session.prompt_key is not None else None
        if known is not None and known[0] is session and session.prompt_key is not None:
            del self._known[session.prompt_key]
            self._free.append(known[1])


class PrefixIndex:
    """Maps beginnings of prompts to the sessions that have them, or compute them now.

    Prompts of one task differ late: all have the system message and the tools in common. An entry
    stands for the first `BLOCK`, 2 · `BLOCK`, ... tokens of a prompt, so that the longest common
    beginning is found without comparing prompts with each other.
    """

    def __init__(self) -> None:
        self._owners: dict[int, dict[Session, None]] = {}
        """By the hash of a beginning; a dictionary keeps the order, which a set does not."""
        self._entries: dict[Session, list[int]] = {}

    def add(self, session: Session) -> None:
        """Add a session that begins with its prompt."""
        self.forget(session)
        assert session.prompt_key is not None
        self._entries[session] = _hashes(session.prompt_key)
        for entry in self._entries[session]:
            self._owners.setdefault(entry, {})[session] = None

    def find(self, session: Session) -> tuple[Session, int] | None:
        """Return the session that has most of this one's prompt, and how many tokens it has.

        The last token of a prompt is never counted: its logits are needed.
        """
        assert session.prompt_key is not None
        owners: dict[Session, None] = {}
        for entry in _hashes(session.prompt_key):
            if entry not in self._owners:
                break
            owners = self._owners[entry]
        if not owners:
            return None
        source = max(owners, key=lambda owner: owner.num_cached)
        assert source.prompt_key is not None
        num_tokens = _num_common(source.prompt_key, session.prompt_key)
        return source, min(num_tokens, len(session.ids) - 1)

    def forget(self, session: Session) -> None:
        """Drop a session whose KV cache was evicted."""
        for entry in self._entries.pop(session, ()):
            owners = self._owners[entry]
            del owners[session]
            if not owners:
                del self._owners[entry]

    def clear(self) -> None:
        """Drop all sessions."""
        self._owners.clear()
        self._entries.clear()


def _hashes(key: bytes) -> list[int]:
    """Return a number for each beginning of whole blocks; it takes in the one before it."""
    size, number = BLOCK * _TOKEN_BYTES, 0
    numbers = []
    for start in range(0, len(key) - size + 1, size):
        number = hash((number, key[start : start + size]))
        numbers.append(number)
    return numbers


def _num_common(*keys: bytes) -> int:
    """Return how many tokens two prompts have in common at their beginning."""
    length = min(map(len, keys)) // _TOKEN_BYTES
    first, second = (np.frombuffer(key, np.int64, length) for key in keys)
    differs = np.flatnonzero(first != second)
    return int(differs[0]) if len(differs) else length
