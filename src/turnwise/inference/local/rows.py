"""Conversations that go on sampling, as the decoders of CPU and GPU take them."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.inference.local.session import Session
from turnwise.inference.turns import Turn

MOST_STEPS = 16
"""Steps in the longest burst on a GPU."""


@dataclass(frozen=True)
class Row:
    """A turn that samples one token a step."""

    session: Session
    turn: Turn
    token: int
    """Its last token, not yet in the cache."""
    past: int
    """Tokens before it, all in the cache."""
    region: int
