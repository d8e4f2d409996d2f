"""The separate process: read what to run, lock up, run it.

With isolation there are two: the one that was started makes the namespaces and waits, its child is
alone in them and runs the code. The request comes as JSON on stdin; how far we got goes out as
lines on the status pipe: `ready` or `failed <why>`, and at the end `exit <code>`,
`signal <number>` or `exceeded <limit>`.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys

from . import namespaces, system
from .program import run_program
from .seccomp import build_filter

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

_MAX_STATUS = 500
_MAX_SIGNALS = 64
_GLANCE_MS = 50


def main(status: int, parent: int) -> NoReturn:
    if sys.platform == "linux":
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)  # it died before it could be asked to take us along
    request = json.loads(sys.stdin.buffer.read())
    _read_nothing()
    if request["isolated"]:
        _watch(request, status)
    else:
        _step(status, "limits", lambda: _limit(request["limits"], own_user=False))
        _tell(status, "ready")
        os.close(status)
        run_program(request["code"], request["packages"])


def _read_nothing() -> None:
    """Make the standard input an empty one."""
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)


def _watch(request: dict[str, Any], status: int) -> NoReturn:
    """Make the namespaces, start the one process in them, and tell how it ended."""
    calls = _step(status, "system calls", lambda: build_filter(os.uname().machine))
    user = _step(status, "namespaces", namespaces.leave_the_world)
    child = 0

    def end(number: int, frame: FrameType | None) -> None:
        if child:
            os.kill(child, signal.SIGKILL)
        else:
            os._exit(1)

    signal.signal(signal.SIGTERM, end)
    # The child holds the other end: as long as we live, it is open.
    lifeline, ours = os.pipe()
    processes = os.open("/proc", os.O_PATH)  # the child takes the root away from us too
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(ours)
        _lock_up(request, status, user, lifeline, calls)
        run_program(request["code"], request["packages"])
    os.close(lifeline)
    os.close(1)
    os.close(2)
    exceeded = _follow(child, processes, request["limits"])
    _, ended = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(ended)
    if exceeded and code == -signal.SIGKILL:
        _tell(status, f"exceeded {exceeded}")
    else:
        _tell(status, f"exit {code}" if code >= 0 else f"signal {-code}")
    os._exit(0)


def _follow(child: int, processes: int, limits: dict[str, Any]) -> str | None:
    """Wait for the child's end. What it used too much of, if that had to be its end.

    Its address space is limited by the kernel, but the page tables for it are not: a program that
    uses one page here and one there needs many times its own memory for them. And threads are not
    limited for a user who is root.
    """
    poll = select.poll()
    poll.register(os.pidfd_open(child), select.POLLIN)
    while not poll.poll(_GLANCE_MS):
        used = _usage(child, processes)
        if used.get("VmRSS", 0) + used.get("VmPTE", 0) > limits["memory_bytes"] >> 10:
            exceeded = "memory"
        elif used.get("Threads", 0) > limits["num_threads"]:
            exceeded = "threads"
        else:
            continue
        os.kill(child, signal.SIGKILL)
        return exceeded
    return None


def _usage(child: int, processes: int) -> dict[str, int]:
    """Lines of /proc/<child>/status that are numbers, memory in KiB."""
    try:
        file = os.open(f"{child}/status", os.O_RDONLY, dir_fd=processes)
    except OSError:
        return {}  # it has ended, or /proc shows nothing of it; what else limits it holds
    try:
        lines = os.read(file, 1 << 14).decode().splitlines()
    finally:
        os.close(file)
    words = [line.split() for line in lines]
    return {w[0].rstrip(":"): int(w[1]) for w in words if len(w) > 1 and w[1].isdigit()}


def _lock_up(request: dict[str, Any], status: int, user: int, lifeline: int, calls: bytes) -> None:
    limits = request["limits"]
    os.setsid()
    _prefer_to_be_killed()
    _step(
        status,
        "files",
        lambda: namespaces.build_root(
            request["packages"], limits["disk_bytes"], limits["num_files"]
        ),
    )
    _read_nothing()  # once more: the device of the new root, which is read-only
    _step(status, "limits", lambda: _limit(limits, own_user=True))
    _step(status, "rights", lambda: namespaces.become_nobody(user))
    # After the change of user, which would undo it.
    system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    if poll.poll(0):
        os._exit(1)  # the one that watches us was killed before it could take us along
    system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
    os.closerange(3, status)
    os.closerange(status + 1, max(limits["open_files"], status + 1))
    _step(status, "system calls", lambda: system.install_filter(calls))
    _tell(status, "ready")
    os.close(status)


def _limit(limits: dict[str, Any], own_user: bool) -> None:
    wanted = [
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_FSIZE, limits["disk_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ]
    if own_user:  # these count all that a user runs
        wanted += [
            (resource.RLIMIT_NPROC, limits["num_threads"]),
            (resource.RLIMIT_SIGPENDING, _MAX_SIGNALS),
            (resource.RLIMIT_MSGQUEUE, 0),
        ]
    for kind, value in wanted:
        _, most = resource.getrlimit(kind)
        allowed = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (allowed, allowed))


def _prefer_to_be_killed() -> None:
    """If the machine runs out of memory, this process goes first, not the training run."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # some containers do not let us; our own limit holds all the same


def _step(status: int, layer: str, work: Any) -> Any:
    try:
        return work()
    except Exception as error:
        _tell(status, f"failed {layer}: {error}")
        os._exit(1)


def _tell(status: int, line: str) -> None:
    os.write(status, f"{line[:_MAX_STATUS]}\n".encode())
