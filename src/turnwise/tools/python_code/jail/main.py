"""The main function of the separate process: reads the request, isolates itself, runs the program.

With isolation there are two processes: the first creates the namespaces and waits, its child is
alone in them and runs the program. The request is JSON on stdin; the status pipe gets lines:
`ready` or `failed <why>`, and at the end `exit <code>` (as in `subprocess`) or `exceeded <limit>`.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys

from . import namespaces, system
from .seccomp import build_filter

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

_MAX_STATUS = 500
_MAX_SIGNALS = 64
_GLANCE_MS = 50
_NAME = "main.py"


def main(status: int, parent: int) -> NoReturn:
    if sys.platform == "linux":
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before PR_SET_PDEATHSIG was set
    request = json.loads(sys.stdin.buffer.read())
    _read_nothing()
    if request["isolated"]:
        _watch(request, status)
    else:
        _step(status, "limits", _limit, request["limits"], False)
        _report(status, "ready")
        os.close(status)
        run_program(request["code"], request["packages"])


def _read_nothing() -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)


def _watch(request: dict[str, Any], status: int) -> NoReturn:
    """Creates the namespaces, starts the one process in them, and reports how it ended."""
    calls = _step(status, "system calls", build_filter, os.uname().machine)
    user = _step(status, "namespaces", namespaces.enter_namespaces)
    child = 0

    def end(number: int, frame: FrameType | None) -> None:
        if child:
            os.kill(child, signal.SIGKILL)
        else:
            os._exit(1)

    signal.signal(signal.SIGTERM, end)
    # The child holds the other end, which closes when this process dies.
    lifeline, ours = os.pipe()
    processes = os.open("/proc", os.O_PATH)  # the child changes the root of this process too
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(ours)
        _isolate(request, status, user, lifeline, calls)
        run_program(request["code"], request["packages"])
    os.close(lifeline)
    os.close(1)
    os.close(2)
    exceeded = _follow(child, processes, request["limits"])
    _, ended = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(ended)
    if exceeded and code == -signal.SIGKILL:
        _report(status, f"exceeded {exceeded}")
    else:
        _report(status, f"exit {code}")
    os._exit(0)


def _follow(child: int, processes: int, limits: dict[str, Any]) -> str | None:
    """Waits for the child's end; returns the limit that it exceeded, if it had to be killed.

    The kernel limits its address space, but not the page tables: a program that uses single pages
    far apart needs many times its own memory for them. And root has no limit on threads.
    """
    poll = select.poll()
    poll.register(os.pidfd_open(child), select.POLLIN)
    while not poll.poll(_GLANCE_MS):
        try:
            file = os.open(f"{child}/status", os.O_RDONLY, dir_fd=processes)
        except OSError:
            continue  # it has ended, or /proc does not show it; the other limits hold
        words = [line.split() for line in os.read(file, 1 << 14).decode().splitlines()]
        os.close(file)
        # Memory is in KiB.
        used = {w[0].rstrip(":"): int(w[1]) for w in words if len(w) > 1 and w[1].isdigit()}
        if used.get("VmRSS", 0) + used.get("VmPTE", 0) > limits["memory_mb"] << 10:
            exceeded = "memory"
        elif used.get("Threads", 0) > limits["num_threads"]:
            exceeded = "threads"
        else:
            continue
        os.kill(child, signal.SIGKILL)
        return exceeded
    return None


def _isolate(request: dict[str, Any], status: int, user: int, lifeline: int, calls: bytes) -> None:
    limits = request["limits"]
    os.setsid()
    try:
        # If the machine runs out of memory, the kernel kills this process, not the training run.
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # some containers do not allow it; the memory limit holds anyway
    disk_mb, num_files = limits["disk_mb"], limits["num_files"]
    _step(status, "files", namespaces.build_root, request["packages"], disk_mb, num_files)
    _read_nothing()  # once more: the device of the new root, which is read-only
    _step(status, "limits", _limit, limits, True)
    _step(status, "rights", namespaces.become_nobody, user)
    # After the change of user, which would undo it.
    system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    if poll.poll(0):
        os._exit(1)  # the watching process was killed before PR_SET_PDEATHSIG was set
    system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
    os.closerange(3, status)
    os.closerange(status + 1, max(limits["open_files"], status + 1))
    _step(status, "system calls", system.install_filter, calls)
    _report(status, "ready")
    os.close(status)


def _limit(limits: dict[str, Any], own_user: bool) -> None:
    # The parent process limits the wall-clock time; this is for when the parent has died.
    cpu_seconds = (int(limits["seconds"]) + 1) * limits["num_threads"] + 1
    wanted = [
        (resource.RLIMIT_AS, limits["memory_mb"] << 20),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, limits["disk_mb"] << 20),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ]
    if own_user:  # these count all processes of a user
        wanted += [
            (resource.RLIMIT_NPROC, limits["num_threads"]),
            (resource.RLIMIT_SIGPENDING, _MAX_SIGNALS),
            (resource.RLIMIT_MSGQUEUE, 0),
        ]
    for kind, value in wanted:
        _, most = resource.getrlimit(kind)
        allowed = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (allowed, allowed))


def _step(status: int, layer: str, work: Any, *args: Any) -> Any:
    try:
        return work(*args)
    except Exception as error:
        _report(status, f"failed {layer}: {error}")
        os._exit(1)


def _report(status: int, line: str) -> None:
    os.write(status, f"{line[:_MAX_STATUS]}\n".encode())


def run_program(code: str, packages: list[str]) -> NoReturn:
    """Runs the program as `__main__`, prints an exception as Python does, and ends the process."""
    _forget_ourselves(packages)
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    try:
        exec(compile(code, _NAME, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise  # Python itself turns it into an exit code, after waiting for threads
    except BaseException as error:
        _show(error, code)
        sys.exit(1)
    sys.exit(0)


def _show(error: BaseException, code: str) -> None:
    try:
        import linecache
        import traceback

        # Tracebacks show the lines, although the file does not exist.
        linecache.cache[_NAME] = (len(code), None, code.splitlines(keepends=True), _NAME)
        # The first frame is this file's; a syntax error has no other.
        entry = error.__traceback__
        traceback.print_exception(type(error), error, entry.tb_next if entry else None)
    except (MemoryError, RecursionError):
        os.write(2, f"{type(error).__name__}\n".encode())


def _forget_ourselves(packages: list[str]) -> None:
    """Removes our modules and path, so that the interpreter looks fresh."""
    package = __package__ or ""
    for name in [name for name in sys.modules if name.split(".")[0] == package.split(".")[0]]:
        del sys.modules[name]
    sys.path[:] = [os.getcwd(), *sys.path[1:], *packages]
    sys.argv[:] = [_NAME]
    sys.dont_write_bytecode = True  # its folder holds what it made, nothing else
    for stream in (sys.stdout, sys.stderr):
        # Line by line, so that what was printed before a time limit is not lost.
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
