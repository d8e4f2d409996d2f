"""`ServerProcesses`: a server that was started here, and its child processes."""

import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

_TERMINATE_SECONDS = 1.0
_KILL_SECONDS = 2.0


class ServerProcesses:
    """The processes of one server, recognised by an environment variable that they inherit.

    A process id alone proves nothing, because ids are reused. Without `/proc` (not Linux) nothing
    is found, and nothing is killed.
    """

    def __init__(self) -> None:
        self.environment = {"TURNWISE_SERVER": uuid.uuid4().hex}
        """Variables for the server's environment."""

    def terminate(self) -> None:
        """Terminates the remaining processes, and kills those that ignore it.

        It blocks, because it must not be cancelled halfway.
        """
        ((name, value),) = self.environment.items()
        entry = f"{name}={value}".encode()
        for number, seconds in (
            (signal.SIGTERM, _TERMINATE_SECONDS),
            (signal.SIGKILL, _KILL_SECONDS),
        ):
            deadline = time.monotonic() + seconds
            signalled: set[int] = set()
            while True:
                pids = set()
                for folder in Path("/proc").glob("[0-9]*"):
                    with suppress(OSError):  # it has ended, or belongs to another user
                        if entry in (folder / "environ").read_bytes().split(b"\0"):
                            pids.add(int(folder.name))
                if not pids or time.monotonic() > deadline:
                    break
                for pid in pids - signalled:  # newly forked ones get the signal too
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
                signalled |= pids
                time.sleep(0.01)
