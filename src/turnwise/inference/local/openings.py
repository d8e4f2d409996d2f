"""Prompts that were just computed, for others that begin with the same one."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

import torch

from turnwise.inference.local.session import Session

_MOST = 64
"""Prompts that are remembered; the oldest is dropped for a new one."""


def opening_of(ids: Sequence[int]) -> bytes:
    """A prompt as a key: bytes hash once, where a tuple is hashed again at every look."""
    return array("q", ids).tobytes()


class Openings:
    """Who holds the cache of a prompt, and the logits after its last token.

    The logits lie in one block that is allocated once.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[Session, int]] = OrderedDict()
        self._free = list(range(_MOST))
        self._block: torch.Tensor | None = None

    def find(self, opening: bytes) -> tuple[Session, int] | None:
        """Session and row of the block for `logits`."""
        return self._known.get(opening)

    def logits(self, rows: Sequence[int]) -> torch.Tensor:
        assert self._block is not None
        return self._block[list(rows)]

    def remember(self, session: Session, logits: torch.Tensor) -> None:
        """Keep the logits [V] after a session's whole prompt, if that is where it stands."""
        opening = session.opening
        if opening is None or len(opening) != 8 * session.num_cached or opening in self._known:
            return
        if self._block is None:
            self._block = logits.new_empty(_MOST, len(logits))
        if not self._free:
            _, (_, row) = self._known.popitem(last=False)
            self._free.append(row)
        row = self._free.pop()
        self._block[row] = logits
        self._known[opening] = (session, row)

    def forget(self, session: Session) -> None:
        """A session's cache is gone."""
        known = self._known.get(session.opening) if session.opening is not None else None
        if known is not None and known[0] is session and session.opening is not None:
            del self._known[session.opening]
            self._free.append(known[1])
