"""Which environment of a mix each group of a run is played in: a function of the seed alone.

A run that resumes at step 1000 asks for the groups of step 1000, and nothing is to be saved.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from turnwise.episode.seeds import derive_seed
from turnwise.errors import ConfigError


class Draw(NamedTuple):
    """The part of a mix that a group belongs to."""

    part: int
    """Which part, counted from 0 in the order of the weights."""
    number: int
    """How many groups of this part came before it in the whole run: its place in the dataset."""


def parts_for_step(weights: Sequence[float], step: int, num_groups: int, seed: int) -> list[Draw]:
    """The parts of the groups of a training step, counted from 0.

    The groups of a part are evenly spaced over the run: after any number of groups each part has
    had its share of them, give or take `1 + share * num_parts` groups.

    >>> [draw.part for draw in parts_for_step([3, 1], step=0, num_groups=8, seed=0)]
    [0, 1, 0, 0, 0, 1, 0, 0]
    """
    if not weights or not all(0 < weight < float("inf") for weight in weights):
        raise ConfigError(f"the weights of a mix got {list(weights)}, expected numbers above 0")
    if step < 0 or num_groups < 1:
        raise ConfigError(f"got step={step}, num_groups={num_groups}; expected at least 0 and 1")
    # Exact, so that no rounding puts a group into two steps or none, however long the run.
    total = sum(map(Fraction, weights))
    shares = [Fraction(weight) / total for weight in weights]
    phases = _phases(len(weights), seed)

    def num_before(time: int) -> list[int]:
        """How many groups of each part are due before this time; one falls due each time unit."""
        due = (time * share - phase for share, phase in zip(shares, phases, strict=True))
        return [max(0, -(-number.numerator // number.denominator)) for number in due]

    first, end = step * num_groups, (step + 1) * num_groups
    # The groups that are due before a time are as many as the time says, but for one of each part.
    starts, ends = num_before(first - len(weights)), num_before(end + len(weights))
    due = sorted(
        ((number + phases[part]) / shares[part], part, number)
        for part, (low, high) in enumerate(zip(starts, ends, strict=True))
        for number in range(low, high)
    )
    skipped = first - sum(starts)
    return [Draw(part, number) for _, part, number in due[skipped : skipped + num_groups]]


def _phases(num_parts: int, seed: int) -> list[Fraction]:
    """When the first group of each part is due, in [0, 1) of its own interval."""
    rng = random.Random(derive_seed(seed, "mix"))
    return [Fraction(rng.getrandbits(32), 2**32) for _ in range(num_parts)]
