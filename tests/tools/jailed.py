"""What tests of the separate process share: programs that try something, run both ways."""

import os
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from turnwise.tools.python_code import CodeLimits, CodeRun, run_code, runner, why_not_isolated

REASON = why_not_isolated()
needs_isolation = pytest.mark.skipif(
    REASON is not None, reason=f"the tool refuses on this machine: {REASON}"
)
# Root without CAP_SYS_ADMIN may make namespaces only as everybody may.
WITHOUT_RIGHTS = """
import ctypes, struct
_libc = ctypes.CDLL(None, use_errno=True)
_header = struct.pack("=Ii", 0x20080522, 0)
_rights = ctypes.create_string_buffer(24)
_libc.capget(_header, _rights)
_words = [word & ~(1 << 21) if i < 3 else word
          for i, word in enumerate(struct.unpack("=6I", _rights.raw))]
assert _libc.capset(_header, struct.pack("=6I", *_words)) == 0
"""
# `attempt(name, function)` prints the name if the function did not fail.
PRELUDE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)

def attempt(name, function):
    try:
        function()
    except (OSError, MemoryError, RuntimeError, ValueError):
        return
    print("ESCAPED:", name)

def check(name, result):
    if result not in (-1, None):
        print("ESCAPED:", name, result)
"""


in_both_ways = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture(params=["root", "user namespace"])
def way_in(request, monkeypatch):
    if request.param == "user namespace":
        monkeypatch.setattr(runner, "_BOOT", WITHOUT_RIGHTS + runner._BOOT)
    return str(request.param)


@pytest.fixture
def nothing_is_left(way_in):
    mounts, num_files, num_threads = _mounts(), _open_files(), threading.active_count()
    yield
    wait_until(lambda: not separate_processes())  # killed ones take a moment
    wait_until(lambda: threading.active_count() <= num_threads)
    assert not _temporary_files()
    assert _mounts() == mounts
    assert _open_files() <= num_files


def program(code: str) -> str:
    return PRELUDE + textwrap.dedent(code)


def run(code: str, packages: Sequence[str] = (), **limits: float) -> CodeRun:
    chosen = {"seconds": 60.0, "memory_mb": 256, "disk_mb": 4, "num_files": 50, **limits}
    return run_code(program(code), CodeLimits(**chosen), packages=packages)  # type: ignore[arg-type]


def contained(code: str, packages: Sequence[str] = (), **limits: float) -> None:
    """The program reaches its end, and none of its attempts worked."""
    result = run(textwrap.dedent(code) + "\nprint('END')", packages, **limits)
    assert result.output == "END\n", result
    assert result.ok


def wait_until(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def separate_processes(owner: int | None = None) -> list[int]:
    """The separate processes that this one (or another) has started, wherever they hang now."""
    mark = str(owner or os.getpid()).encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"from jail.main" in b" ".join(command) and mark in command:
            found.append(int(folder.name))
    return found


def _mounts() -> list[str]:
    """What is mounted, but for the small disks that other tests mount at the same time."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if "/pytest-of-" not in line]


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _temporary_files() -> list[str]:
    return [name for name in os.listdir("/tmp") if name.startswith(f"turnwise-code-{os.getpid()}")]
