"""Ends a process in which one call holds Python's global interpreter lock (GIL) for too long.

No thread of such a process runs, and no signal is handled: a regular expression that backtracks for
hours would hang a run for ever. So a small second process watches. A thread of the watched one
writes heartbeats into a pipe, for which it needs the GIL; signals are written there without it, by
`signal.set_wakeup_fd`. Without heartbeats, the second process lets `faulthandler` write into the
log where each thread is, which needs no GIL either, and kills the watched process.

This file is also the program of the watching process, which imports only the standard library.
"""

import contextlib
import faulthandler
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_BEAT_SECONDS = 0.5
_BEAT = 0
"""A byte in the pipe; all others are numbers of signals."""
_SIGNAL_SECONDS = 7
"""Without a heartbeat after Ctrl-C, SIGTERM or SIGHUP: the process will not handle it."""
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DUMP_SIGNAL = signal.SIGVTALRM  # hardly used by anyone, and on every POSIX system


@contextlib.contextmanager
def ended_if_unresponsive(limit: float | None, run_folder: Path | None = None) -> Iterator[None]:
    """End this process if one call holds the GIL for `limit` seconds inside the block.

    After Ctrl-C, SIGTERM or SIGHUP it is ended within 10 seconds if it does not run at all. The
    log of the run, or else the terminal, says where each thread was.
    """
    heartbeats, beat = os.pipe()
    os.set_blocking(beat, False)
    command = [sys.executable, "-I", "-S", __file__, str(limit or math.inf)]
    watcher = subprocess.Popen(command, stdin=heartbeats, stdout=subprocess.DEVNULL)
    os.close(heartbeats)
    is_over = threading.Event()

    def keep_beating() -> None:
        while not is_over.wait(_BEAT_SECONDS):
            with contextlib.suppress(OSError):  # the watching process is stopped, or has ended
                os.write(beat, bytes([_BEAT]))

    thread = threading.Thread(target=keep_beating, name="turnwise: heartbeat", daemon=True)
    thread.start()
    takes_signals = threading.current_thread() is threading.main_thread()
    if takes_signals and (other := signal.set_wakeup_fd(beat, warn_on_full_buffer=False)) != -1:
        signal.set_wakeup_fd(other)  # an event loop of this thread uses it
        takes_signals = False
    log_file = os.devnull if run_folder is None else run_folder / "log.txt"
    with open(log_file, "a") as log:
        faulthandler.register(_DUMP_SIGNAL, file=2 if run_folder is None else log)
        try:
            yield
        finally:
            if takes_signals:
                signal.set_wakeup_fd(-1)
            watcher.kill()
            watcher.wait()
            is_over.set()
            thread.join()
            faulthandler.unregister(_DUMP_SIGNAL)
            os.close(beat)


def watch(limit: float) -> None:
    """Wait until the parent process has ended or no longer watches; end it if it hangs."""
    process, silent, received = os.getppid(), 0, None
    while os.getppid() == process:
        # Seconds are counted: a clock would go on while Ctrl-Z stops both processes.
        if not select.select([0], [], [], 1.0)[0]:
            silent = 0 if is_stopped(process) else silent + 1
        elif not (data := os.read(0, 4096)):
            return
        elif data[-1] == _BEAT:
            silent, received = 0, None
        elif received is None and data[-1] in _ENDING_SIGNALS:
            silent, received = 0, signal.Signals(data[-1]).name
        if silent >= (_SIGNAL_SECONDS if received else limit):
            os.kill(process, _DUMP_SIGNAL)
            time.sleep(1.0)  # to write where its threads are
            os.kill(process, signal.SIGKILL)
            unhandled = f" {received} could not be handled." if received else ""
            print(
                f"\nturnwise: a call holds Python's interpreter lock; see the log.{unhandled} The "
                "process was ended; the same command resumes a run from its newest checkpoint.",
                file=sys.stderr,
            )
            return


def is_stopped(process: int) -> bool:
    """Return whether SIGSTOP or a debugger holds a process; False where there is no /proc."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


if __name__ == "__main__":
    for number in _ENDING_SIGNALS:  # Ctrl-C reaches every process of the terminal
        signal.signal(number, signal.SIG_IGN)
    watch(float(sys.argv[1]))
