"""Environments of other packages; a random state of its own for those that use the global one."""

import contextlib
import random
import threading
from collections.abc import Iterator

import numpy as np


class Randomness:
    """A state of `random` and `numpy.random` that replaces the global one while code runs.

    With the global state, two episodes would affect each other and the rest of the process. A lock
    excludes other episodes that do the same.

    >>> with Randomness(seed=7).installed():
    ...     drawn = random.random()
    >>> drawn == random.Random(7).random()
    True
    """

    _lock = threading.RLock()

    def __init__(self, seed: int) -> None:
        numpy_state = np.random.RandomState(seed % 2**32).get_state()
        self._inside = random.Random(seed).getstate(), numpy_state

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with self._lock:
            outside = random.getstate(), np.random.get_state()
            random.setstate(self._inside[0])
            np.random.set_state(self._inside[1])
            try:
                yield
            finally:
                self._inside = random.getstate(), np.random.get_state()
                random.setstate(outside[0])
                np.random.set_state(outside[1])
