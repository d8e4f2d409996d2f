"""Whether this machine can isolate programs: a test program tries what must not work."""

from __future__ import annotations

import functools
import os
import sys

from turnwise.tools.python_code.jail.syscalls import ARCHITECTURES
from turnwise.tools.python_code.runner import CodeLimits, run_code

# Each line prints what it could do. If only "locked" is printed, the isolation holds.
_PROBE = """
import ctypes, os, socket

def managed(what, attempt):
    try:
        attempt()
    except OSError:
        return
    print(what)

managed("it reads files of the machine", lambda: os.listdir("/etc/ssl"))
managed("it reads files of the machine", lambda: open("/etc/passwd"))
managed("it sees other processes", lambda: os.listdir("/proc"))
managed("it opens sockets", lambda: socket.socket())
managed("it starts processes", os.fork)
managed("it writes outside its folder", lambda: open("/written", "w"))
if os.getppid():
    print("it sees other processes")
if ctypes.CDLL(None).unshare(0x10000000) == 0:
    print("it makes namespaces")
open("file", "w").write("locked")
print(open("file").read())
"""


@functools.cache
def why_not_isolated() -> str | None:
    """Returns None if programs can be isolated here, else the reason, with a fix if there is one.

    It is tested once per process.
    """
    if sys.platform != "linux":
        return f"isolation needs Linux, this is {sys.platform}."
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        return f"isolation knows the processors {', '.join(ARCHITECTURES)}, this is {machine}."
    run = run_code(_PROBE, CodeLimits(seconds=20.0))
    if run.problem is not None:
        return f"the kernel refused ({run.problem}). {_fix(run.problem)}"
    if run.output != "locked\n":
        found = " ".join(run.output.split())[:200]
        return f"a test program was not contained or did not run: {found or 'no output'}."
    return None


def _fix(problem: str) -> str:
    if problem.startswith("namespaces"):
        return (
            "It needs Linux 5.12 or newer and user namespaces: on a machine of your own, "
            "sysctl -w kernel.unprivileged_userns_clone=1 and "
            "kernel.apparmor_restrict_unprivileged_userns=0; in a container, the capability "
            "SYS_ADMIN or a seccomp profile that allows unshare and mount."
        )
    return "It needs Linux 5.12 or newer, with seccomp, and the right to mount in namespaces."
