"""`ServerProcesses`: an MCP server that was started here, and its child processes."""

from __future__ import annotations

import os
import signal
import time
import uuid
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
            stat = _read_stat(pid)
            if stat is not None and stat[0] == pid:
                self._leader = (pid, stat[1])

    def terminate(self) -> None:
        """Terminates the remaining processes, and kills those that ignore it.

        It blocks, because it must not be cancelled halfway.
        """
        for number, seconds in (
            (signal.SIGTERM, _TERMINATE_SECONDS),
            (signal.SIGKILL, _KILL_SECONDS),
        ):
            deadline = time.monotonic() + seconds
            signalled: set[int] = set()
            while pids := self._find():  # newly forked ones get the signal too
                for pid in pids - signalled:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
                signalled |= pids
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)

    def _find(self) -> set[int]:
        session = None
        if self._leader is not None:
            # The id of a session is not reused while the session has members; that of its leader,
            # once it has ended, may be, and then it has another start time.
            leader = _read_stat(self._leader[0])
            if leader is None or leader[1] == self._leader[1]:
                session = self._leader[0]
        pids = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or belongs to another user
                stat = _read_stat(int(folder.name))
                if stat is None or folder.stat().st_uid != os.getuid():
                    continue
                if stat[0] == session or self._entry in _read_environment(folder):
                    pids.add(int(folder.name))
        return pids


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
