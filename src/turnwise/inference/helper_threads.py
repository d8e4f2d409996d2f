"""The helper threads that torch's operations share their work with on a CPU.

GNU OpenMP keeps a set of helpers for every thread that ever called a large operation. While there
are more of them in the process than cores, all of them fall asleep between operations instead of
waiting for the next one, and waking them takes longer than a small model's layer: an engine beside
a learner in one process ran at two thirds of its speed. So a thread that hands the work to another
sends its own helpers away; they are there again at its next operation.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from pathlib import Path

_SOFT = 1
"""OpenMP's name for letting helpers go while keeping every setting."""


def send_helpers_away() -> None:
    """End the helpers of the calling thread, where there are any; they come back when needed."""
    for library in _openmp():
        library.omp_pause_resource_all(_SOFT)


@cache
def _openmp() -> list[ctypes.CDLL]:
    """GNU OpenMP as torch brings it; nothing on systems that have another one."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "libgomp" in line}
    found = []
    for path in sorted(paths):
        with suppress(OSError):  # replaced on the disk since: then helpers stay
            library = ctypes.CDLL(path)
            if hasattr(library, "omp_pause_resource_all"):
                found.append(library)
    return found
