"""The prompt cache: sessions that start with the same prompt compute it once."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

import torch

from turnwise.inference.local.session import Session

_MAX_PROMPTS = 64
"""Prompts that are cached; the oldest is dropped for a new one."""


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
        if key is None or len(key) != 8 * session.num_cached or key in self._known:
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
