"""The rows, and the environments of a mix, that a training step plays.

Both are functions of the seed and the step: a run that resumes at step 1000 needs no saved state.
"""

import random
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from turnwise.episode.seeds import derive_seed
from turnwise.errors import ConfigError


def epoch_order(num_rows: int, epoch: int, seed: int, shuffle: bool = True) -> list[int]:
    """Return all rows in the order of an epoch, counted from 0; each epoch has its own order.

    >>> sorted(epoch_order(5, epoch=0, seed=1)) == epoch_order(5, epoch=0, seed=1, shuffle=False)
    True
    """
    order: list[int] = _order(num_rows, epoch, seed, shuffle).tolist()
    return order


def rows_for_step(
    num_rows: int, step: int, batch_size: int, seed: int, shuffle: bool = True
) -> list[int]:
    """Return the rows of a training step, counted from 0 across epochs.

    Every row comes once per epoch. A batch in which an epoch ends is filled from the next epoch, so
    that all batches have the same size and no row is left out.

    >>> [rows_for_step(3, step, 2, seed=0, shuffle=False) for step in range(3)]
    [[0, 1], [2, 0], [1, 2]]
    """
    if num_rows < 1 or step < 0 or batch_size < 1:
        got = f"num_rows={num_rows}, step={step}, batch_size={batch_size}"
        raise ConfigError(f"got {got}; expected at least 1, 0 and 1")
    rows: list[int] = []
    position, end = step * batch_size, (step + 1) * batch_size
    while position < end:
        epoch, first = divmod(position, num_rows)
        last = min(num_rows, first + end - position)
        rows += _order(num_rows, epoch, seed, shuffle)[first:last].tolist()
        position += last - first
    return rows


@lru_cache(maxsize=4)  # all steps of an epoch share its order
def _order(num_rows: int, epoch: int, seed: int, shuffle: bool) -> np.ndarray[Any, Any]:
    if not shuffle:
        return np.arange(num_rows)
    # Unlike permutation(), a bit generator's stream is the same in all versions of numpy.
    keys = np.random.PCG64(derive_seed(seed, "epoch", epoch)).random_raw(num_rows)
    return np.argsort(keys, kind="stable")


class Draw(NamedTuple):
    """The environment of a mix that a group plays."""

    part: int
    """The environment, counted from 0 in the order of the weights."""
    number: int
    """How many groups of this environment came before it in the run: its index in the dataset."""


def parts_for_step(weights: Sequence[float], step: int, num_groups: int, seed: int) -> list[Draw]:
    """Return the environment of each group of a training step, counted from 0.

    The groups of an environment are evenly spaced over the run: after any number of groups each
    environment has had its share of them, give or take `1 + share * num_environments` groups.

    >>> [draw.part for draw in parts_for_step([3, 1], step=0, num_groups=8, seed=0)]
    [0, 1, 0, 0, 0, 1, 0, 0]
    """
    # Fractions, so that no rounding error puts a group into two steps or into none.
    total = sum(map(Fraction, weights))
    shares = [Fraction(weight) / total for weight in weights]
    # When the first group of each environment is due, in [0, 1) of its interval.
    rng = random.Random(derive_seed(seed, "mix"))
    phases = [Fraction(rng.getrandbits(32), 2**32) for _ in weights]

    def num_before(time: int) -> list[int]:
        """Return how many groups of each environment are due before a time, one per unit."""
        due = (time * share - phase for share, phase in zip(shares, phases, strict=True))
        return [max(0, -(-number.numerator // number.denominator)) for number in due]

    first, end = step * num_groups, (step + 1) * num_groups
    # As many groups are due before a time as it counts, up to one per environment.
    starts, ends = num_before(first - len(weights)), num_before(end + len(weights))
    due = sorted(
        ((number + phases[part]) / shares[part], part, number)
        for part, (low, high) in enumerate(zip(starts, ends, strict=True))
        for number in range(low, high)
    )
    skipped = first - sum(starts)
    return [Draw(part, number) for _, part, number in due[skipped : skipped + num_groups]]
