"""The same examples in every run: a suite that fails by chance is not believed.

`HYPOTHESIS_PROFILE=search` looks for new ones.
"""

import asyncio
import os
import signal
import sys
import tempfile
from types import SimpleNamespace

# What takes longest begins first: else one of two processes ends alone with it.
LONG = (
    *("scale/test_ray.py", "faults/test_episodes.py", "trainer/test_learning.py"),
    "trainer/test_resume.py",
)

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:  # the environments of VERL and vLLM do without it
    pass
else:
    # No time limits: how long an example takes says more about the machine than about the code.
    timeless = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("same", timeless, derandomize=True, database=None)
    settings.register_profile("search", timeless, derandomize=False)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


try:
    import uvicorn.server
except ModuleNotFoundError:
    pass
else:
    # It looks every 0.1 s whether it is to stop, and then waits for as long again.
    quick = {"sleep": lambda seconds: asyncio.sleep(seconds / 10)}
    uvicorn.server.asyncio = SimpleNamespace(**vars(asyncio) | quick)


def check_handle(handle):
    """Stands in for `os.fsync`, which waits for the disk: no test cuts the power."""
    os.fstat(handle)


os.fsync = check_handle


# A shell starts background jobs with interrupts ignored, and what they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STATE = tempfile.TemporaryDirectory(prefix="turnwise-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name  # which code may be run is remembered there


def pytest_collection_modifyitems(items):
    def place(item):
        path = item.path.as_posix()
        return next((n for n, part in enumerate(LONG) if f"/tests/{part}" in path), len(LONG))

    items.sort(key=place)


def pytest_collection_finish():
    """Tests write a user's module, run it, change it and run it again within a second, which
    bytecode of the same size and second would hide."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
