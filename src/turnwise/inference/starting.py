"""An engine's start has a deadline, and one that does not come up leaves nothing running."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from turnwise.deadlines import result_within
from turnwise.errors import DeadlineExceeded
from turnwise.tools.server_processes import ServerProcesses

T = TypeVar("T")

START_SECONDS = 900.0
"""For loading a model and capturing graphs, which takes minutes for a large one."""


def wait_for_start(future: Future[T], seconds: float | None, what: str) -> T:
    """What the start gives; `DeadlineExceeded` after so many seconds, None: no limit."""
    if seconds is None:
        return future.result()
    fix = (
        "Its own log, above, says how far it came. If the model is large or the disk slow, give "
        "the engine more time: start_timeout=SECONDS (in a run inference.start_timeout), or None."
    )
    return result_within(future, seconds, f"starting {what}", fix)


@contextmanager
def own_processes() -> Iterator[None]:
    """End the processes that are started in here, and theirs, if the time is not enough.

    They are recognised by a variable of their environment, which forked ones do not have; both
    engines spawn theirs.
    """
    processes = ServerProcesses()
    before = {name: os.environ.get(name) for name in processes.environment}
    os.environ.update(processes.environment)
    try:
        yield
    except DeadlineExceeded:
        processes.terminate()
        raise
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
