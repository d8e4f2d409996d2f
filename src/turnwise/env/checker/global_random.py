"""Notices who draws from the random generators that a whole process shares."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class GlobalRandom:
    """Remembers the calls during which `random` or `numpy.random` moved on."""

    def __init__(self) -> None:
        self.touched: dict[str, str] = {}
        """From the call to the module that it drew from: {"step()": "random"}."""

    @contextmanager
    def watch(self, call: str) -> Iterator[None]:
        before = _states()
        try:
            yield
        finally:
            name = f"{call.partition('(')[0]}()" if "(" in call else call
            for module, state in _states().items():
                # One that was imported meanwhile has no earlier state to compare with.
                if before.get(module, state) != state:
                    self.touched.setdefault(name, module)


def _states() -> dict[str, object]:
    states: dict[str, object] = {"random": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        states["numpy.random"] = pickle.dumps(numpy_random.get_state(legacy=False))
    return states
