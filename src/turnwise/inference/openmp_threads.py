"""The OpenMP worker threads that torch's operations share their work with on a CPU.

GNU OpenMP keeps a team of worker threads for every thread that ever called a large operation. While
there are more of them in the process than cores, all of them fall asleep between operations instead
of waiting for the next one, and waking them takes longer than a small model's layer: an engine in
the process of a learner ran at two thirds of its speed. So a thread that hands the work to another
releases its own team; it is there again at its next operation.

torch's wheels for Linux bring GNU OpenMP, on x86_64 and on aarch64, and both can release a team.
Builds with another OpenMP (macOS, conda) keep their threads.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from pathlib import Path

from turnwise.plain_mode import is_plain

_SOFT = 1
"""`omp_pause_soft`: threads are released, and every setting is kept."""


def release_openmp_threads() -> None:
    """End the OpenMP team of the calling thread, if it has one; it is made again when needed."""
    for library in () if is_plain("engine.openmp") else _openmp():
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
        with suppress(OSError):  # replaced on the disk since: then the threads stay
            library = ctypes.CDLL(path)
            if hasattr(library, "omp_pause_resource_all"):
                found.append(library)
    return found
