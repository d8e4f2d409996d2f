"""What SGLang's filters leave of a distribution.

Its log-probs are those after the temperature and before top-k, top-p and min-p. The distribution
that it samples from is what the filters leave, made to sum to one again: so the log-prob of a
sampled token is its own less the log of the mass that was left, which is computed here from the
likeliest tokens of each place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.inference.sampling import SamplingParams


@dataclass(frozen=True)
class LogMass:
    """Bounds for the log of a mass; they are one where all is known."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def slack(self) -> float:
        return (self.high - self.low) / 2


def kept_log_mass(
    top: Sequence[float], params: SamplingParams, vocab_size: int, *, is_joint: bool
) -> LogMass:
    """Log of the mass that the filters let through, from the likeliest log-probs in falling order.

    `is_joint`: top-p is measured on the whole distribution, also beside top-k. Otherwise it is
    measured on what top-k left. When all of `top` is let through and there are more tokens, what
    they add is bounded: top-p overshoots by less than the last token that it lets in, which is no
    likelier than the last one that is known.
    """
    limit = min(params.top_k or vocab_size, vocab_size)
    probs = [math.exp(log_prob) for log_prob in top[:limit]]
    whole = sum(probs) if params.top_k and not is_joint else 1.0
    mass = 0.0
    for prob in probs:
        if mass > params.top_p * whole or prob < params.min_p * probs[0]:
            return LogMass(math.log(mass), math.log(mass))
        mass += prob
    if len(probs) == limit or mass > params.top_p * whole:
        return LogMass(math.log(mass), math.log(mass))
    high = min(params.top_p + probs[-1], 1.0)
    low = max(mass, params.top_p) if params.min_p == 0.0 else mass
    return LogMass(math.log(low), math.log(max(low, high)))
