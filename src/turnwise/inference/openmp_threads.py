"""The OpenMP worker threads that torch's operations share their work with on a CPU.

GNU OpenMP keeps a team of worker threads for every thread that ever ran a large operation. If the
process has more of them than cores, they sleep between operations instead of spinning, and waking
them takes longer than a small model's layer: an engine in the process of a learner ran at two
thirds of its speed. So a thread that hands the work to another releases its team, which its next
operation creates again.

torch's wheels for Linux contain GNU OpenMP on x86_64 and aarch64. Builds with another OpenMP
(macOS, conda) keep their threads.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from pathlib import Path

_SOFT = 1
"""`omp_pause_soft`: threads are released, and every setting is kept."""


def release_openmp_threads() -> None:
    """End the OpenMP team of the calling thread, if it has one."""
    for library in _openmp():
        library.omp_pause_resource_all(_SOFT)


@cache
def _openmp() -> list[ctypes.CDLL]:
    """Return the loaded GNU OpenMP libraries; none on systems with another OpenMP."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "libgomp" in line}
    libraries = []
    for path in sorted(paths):
        with suppress(OSError):  # replaced on the disk since
            library = ctypes.CDLL(path)
            if hasattr(library, "omp_pause_resource_all"):
                libraries.append(library)
    return libraries
