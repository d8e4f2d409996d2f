"""The prefix index: finds the session that begins with the same tokens as a new prompt.

Prompts of one task differ late: all have the system message and the tools in common. An entry
stands for the first `BLOCK`, 2 · `BLOCK`, ... tokens of a prompt, so that the longest common
beginning is found without comparing prompts with each other.
"""

from __future__ import annotations

import numpy as np

from turnwise.inference.local.session import Session

BLOCK = 64
"""Tokens between two entries; shorter beginnings are not worth a copy."""
_TOKEN_BYTES = 8
"""Bytes of a token in a prompt's key."""


class PrefixIndex:
    """Maps beginnings of prompts to the sessions that have them, or compute them now."""

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
    size, found = BLOCK * _TOKEN_BYTES, 0
    numbers = []
    for start in range(0, len(key) - size + 1, size):
        found = hash((found, key[start : start + size]))
        numbers.append(found)
    return numbers


def _num_common(*keys: bytes) -> int:
    """Return how many tokens two prompts have in common at their beginning."""
    length = min(map(len, keys)) // _TOKEN_BYTES
    first, second = (np.frombuffer(key, np.int64, length) for key in keys)
    differs = np.flatnonzero(first != second)
    return int(differs[0]) if len(differs) else length
