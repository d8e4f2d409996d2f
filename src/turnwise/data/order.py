"""Which rows a training step takes: a function of the seed and the step, so nothing is to be saved.

A run that resumes at step 1000 asks for the rows of step 1000.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from turnwise.episode.seeds import derive_seed
from turnwise.errors import ConfigError

_Order: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def epoch_order(num_rows: int, epoch: int, seed: int, shuffle: bool = True) -> list[int]:
    """All rows in the order of this epoch, counted from 0; each epoch has an order of its own.

    >>> sorted(epoch_order(5, epoch=0, seed=1)) == epoch_order(5, epoch=0, seed=1, shuffle=False)
    True
    """
    _check(num_rows=num_rows, least_rows=0, epoch=epoch)
    order: list[int] = _order(num_rows, epoch, seed, shuffle).tolist()
    return order


def rows_for_step(
    num_rows: int, step: int, batch_size: int, seed: int, shuffle: bool = True
) -> list[int]:
    """The rows of a training step, counted from 0 across epochs.

    Every row comes once an epoch. Where an epoch ends inside a batch, the next one fills it: all
    batches are of one size, and no row is left out.

    >>> [rows_for_step(3, step, 2, seed=0, shuffle=False) for step in range(3)]
    [[0, 1], [2, 0], [1, 2]]
    """
    _check(num_rows=num_rows, step=step, batch_size=batch_size, least_rows=1)
    rows: list[int] = []
    place, end = step * batch_size, (step + 1) * batch_size
    while place < end:
        epoch, first = divmod(place, num_rows)
        last = min(num_rows, first + end - place)
        rows += _order(num_rows, epoch, seed, shuffle)[first:last].tolist()
        place += last - first
    return rows


@lru_cache(maxsize=4)  # the steps of an epoch share its order
def _order(num_rows: int, epoch: int, seed: int, shuffle: bool) -> _Order:
    if not shuffle:
        return np.arange(num_rows)
    # A bit generator's stream is the same in all versions of numpy; that of permutation() is not.
    keys = np.random.PCG64(derive_seed(seed, "epoch", epoch)).random_raw(num_rows)
    return np.argsort(keys, kind="stable")


def _check(
    *, num_rows: int, least_rows: int, step: int = 0, epoch: int = 0, batch_size: int = 1
) -> None:
    if num_rows < least_rows or step < 0 or epoch < 0 or batch_size < 1:
        raise ConfigError(
            f"got num_rows={num_rows}, step={step}, epoch={epoch}, batch_size={batch_size}; "
            f"expected at least {least_rows}, 0, 0 and 1"
        )
