"""`ServerProcesses`: an MCP server that was started here, and its child processes."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_VARIABLE = "TURNWISE_SERVER"
_TERMINATE_SECONDS = 1.0
_KILL_SECONDS = 2.0


class ServerProcesses:
    """The processes of one server, recognised by an environment variable and by their session.

    Processes inherit the variable, also those that leave the session; those that overwrite their
    environment (to set their title) are found by the session. A process id alone proves nothing,
    because ids are reused. Without `/proc` (not Linux) nothing is found, and nothing is killed.
    """

    def __init__(self) -> None:
        value = uuid.uuid4().hex
        self.environment = {_VARIABLE: value}
        """Variables for the server's environment."""
        self._entry = f"{_VARIABLE}={value}".encode()
        self._leader: tuple[int, int] | None = None

    def record_session(self) -> None:
        """Called right after the server was started in a session of its own."""
        for pid in self._find():
            found = _read_stat(pid)
            if found is not None and found[0] == pid:
                self._leader = (pid, found[1])

    def terminate(self) -> None:
        """Terminates the remaining processes, and kills those that ignore it.

        It blocks, because it must not be cancelled halfway.
        """
        if self._signal_until_gone(signal.SIGTERM, _TERMINATE_SECONDS):
            return
        self._signal_until_gone(signal.SIGKILL, _KILL_SECONDS)

    def _signal_until_gone(self, number: signal.Signals, seconds: float) -> bool:
        """Returns whether all processes have ended. Newly forked ones get the signal too."""
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while pids := self._find():
            for pid in pids - signalled:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            signalled |= pids
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _find(self) -> set[int]:
        in_session = self._session_test()
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            with suppress(OSError):  # it has ended, or belongs to another user
                stat = _read_stat(pid)
                if stat is None or folder.stat().st_uid != os.getuid():
                    continue
                if in_session(stat[0]) or self._entry in _read_environment(folder):
                    found.add(pid)
        return found

    def _session_test(self) -> Callable[[int], bool]:
        """An id of a session is not reused while the session has members."""
        if self._leader is None:
            return lambda session: False
        pid, start = self._leader
        now = _read_stat(pid)
        if now is not None and now[1] != start:
            return lambda session: False  # the id has been reused
        return lambda session: session == pid


def _read_environment(folder: Path) -> list[bytes]:
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _read_stat(pid: int) -> tuple[int, int] | None:
    """Returns session and start time of a process; None if it has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (int(fields[3]), int(fields[19]))
