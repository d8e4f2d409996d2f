"""Ends a process in which one call holds Python's global interpreter lock (GIL) for too long.

No thread of such a process runs, and no signal is handled: a regular expression that backtracks for
hours would hang a run for ever. So a small second process watches. A thread of the watched one
writes heartbeats into a pipe, for which it needs the GIL; signals are written there without it, by
`signal.set_wakeup_fd`. Without heartbeats, the second process lets `faulthandler` write where each
thread is, which needs no GIL either, reports it, and kills the watched process.

This file is also the program of the watching process, which imports only the standard library.
"""

import contextlib
import faulthandler
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_BEAT_SECONDS = 1.0
SIGNAL_SECONDS = 7.0
"""Without a heartbeat after Ctrl-C, SIGTERM or SIGHUP: the process will not handle it."""
_DUMP_SECONDS = 1.0
_MAX_SHOWN = 3
_BEAT = 0
"""A byte in the pipe; all others are numbers of signals."""
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DUMP_SIGNAL = signal.SIGVTALRM  # hardly used by anyone, and on every POSIX system
_PACKAGE = str(Path(__file__).resolve().parent.parent)
_LOG = logging.getLogger("turnwise")


@contextlib.contextmanager
def ended_if_unresponsive(limit: float | None, run_folder: Path | None = None) -> Iterator[None]:
    """End this process if one call holds the GIL for `limit` seconds inside the block.

    After Ctrl-C, SIGTERM or SIGHUP it is ended within 10 seconds if it does not run at all. The log
    and the status of a run say why.
    """
    heartbeats, beat = os.pipe()
    dumps, dump = os.pipe()
    os.set_blocking(beat, False)
    words = ["" if limit is None else str(limit), heartbeats, dumps, run_folder or ""]
    command = [sys.executable, "-I", "-S", __file__, *map(str, words)]
    # Ctrl-C reaches every process of the terminal; the new one is to ignore it from the start.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
    try:
        watcher = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(heartbeats, dumps),
        )
    except OSError as error:
        _LOG.warning("Calls that hold Python's lock for ever will not be noticed: %s", error)
        watcher = None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(heartbeats)
        os.close(dumps)
    if watcher is None:
        os.close(beat)
        os.close(dump)
        yield
        return
    faulthandler.register(_DUMP_SIGNAL, file=dump, all_threads=True)
    is_over = threading.Event()
    thread = threading.Thread(
        target=_keep_beating, args=(beat, is_over), name="turnwise: heartbeat", daemon=True
    )
    thread.start()
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and (others := signal.set_wakeup_fd(beat, warn_on_full_buffer=False)) != -1:
        signal.set_wakeup_fd(others)  # an event loop of this thread uses it
        is_main = False
    try:
        yield
    finally:
        if is_main:
            signal.set_wakeup_fd(-1)
        watcher.kill()
        watcher.wait()
        is_over.set()
        thread.join()
        faulthandler.unregister(_DUMP_SIGNAL)
        os.close(beat)
        os.close(dump)


def _keep_beating(beat: int, is_over: threading.Event) -> None:
    while True:
        try:
            os.write(beat, bytes([_BEAT]))
        except BlockingIOError:  # the watching process is stopped, as by a debugger
            pass
        except OSError:  # it has ended
            return
        if is_over.wait(_BEAT_SECONDS):
            return


# -- the watching process --------------------------------------------------------------------------


def watch(limit: float | None, heartbeats: int, dumps: int, run_folder: str) -> None:
    """Wait until the parent process has ended or no longer watches; end it if it hangs."""
    process = os.getppid()
    silent = since_signal = 0.0
    received: int | None = None
    last = time.monotonic()
    while True:
        ready, _, _ = select.select([heartbeats], [], [], _BEAT_SECONDS / 4)
        now = time.monotonic()
        # Time in which this process was stopped as well (Ctrl-Z) does not count.
        passed, last = min(now - last, _BEAT_SECONDS), now
        silent += passed
        since_signal += passed
        data = os.read(heartbeats, 4096) if ready else b""
        # A copy of the process that user code has forked may keep the pipe open.
        if os.getppid() != process or (ready and not data):
            return
        for byte in data:
            if byte == _BEAT:
                silent, received = 0.0, None
            elif byte in _ENDING_SIGNALS and received is None:
                since_signal, received = 0.0, byte
        hangs = limit is not None and silent >= limit
        if (hangs or (received and since_signal >= SIGNAL_SECONDS)) and not _is_stopped(process):
            _end(process, silent, received, dumps, run_folder)
            return


def _is_stopped(process: int) -> bool:
    """Whether a debugger or SIGSTOP holds the process; where there is no /proc, False."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _end(process: int, silent: float, received: int | None, dumps: int, run_folder: str) -> None:
    os.kill(process, _DUMP_SIGNAL)
    dump = b""
    while select.select([dumps], [], [], _DUMP_SECONDS)[0] and (part := os.read(dumps, 65536)):
        dump += part
    threads = dump.decode(errors="replace")
    calls = "; ".join(user_calls(threads)[:_MAX_SHOWN]) or "see the log"
    text = f"a call has held Python's interpreter lock for {silent:.0f} s: {calls}"
    status = f"stopped: {text}"
    if received is not None:
        text = f"{text}. {signal.Signals(received).name} could not be handled"
        status = "interrupted"
    text += ". The process was ended"
    if run_folder:
        text += "; the same command resumes the run from its newest checkpoint"
        with contextlib.suppress(Exception):  # whatever is wrong, the process must end
            _record(run_folder, status, f"{text}.\n{threads}\n")
    os.kill(process, signal.SIGKILL)
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a live display has hidden it
    os.write(2, f"{show_cursor}\nturnwise: {text}.\n".encode())


def _record(run_folder: str, status: str, text: str) -> None:
    """Write the reason to the run's `log.txt` and `run.json`, while its process holds the lock."""
    with open(os.path.join(run_folder, "log.txt"), "a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} ERROR {text}")
    sys.path.insert(0, os.path.dirname(_PACKAGE))
    from turnwise.whole_files import write_whole  # this process has no other packages

    file = Path(run_folder, "run.json")
    content = {**json.loads(file.read_bytes()), "status": status}
    write_whole(file, f"{json.dumps(content, indent=1)}\n".encode())


def user_calls(threads: str) -> list[str]:
    """Return where threads are in code that turnwise has called, from a dump of `faulthandler`.

    >>> dump = f'''Thread 0x01 (most recent call first):
    ...   File "<frozen os>", line 167 in walk
    ...   File "/home/me/game.py", line 12 in step
    ...   File "{_PACKAGE}/env/driver.py", line 80 in step_environment'''
    >>> user_calls(dump)
    ['walk (<frozen os>:167) < step (/home/me/game.py:12)']
    """
    standard = (os.path.dirname(os.__file__), "<frozen")
    calls = []
    for thread in threads.split("hread 0x")[1:]:
        frames = re.findall(r'File "(.*)", line (\d+) in (.*)', thread)
        inner = []
        while frames and not frames[0][0].startswith(_PACKAGE):
            inner.append(frames.pop(0))
        if not frames:
            continue  # nothing of turnwise has called it
        is_user = ["-packages" in file or not file.startswith(standard) for file, _, _ in inner]
        if any(is_user):
            shown = inner[: is_user.index(True) + 1]
            calls.append(" < ".join(f"{name} ({file}:{line})" for file, line, name in shown))
    # Installed packages last: torch may be at work at the same time.
    return sorted(dict.fromkeys(calls), key=lambda call: "-packages" in call)


if __name__ == "__main__":
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _, limit, heartbeats, dumps, run_folder = sys.argv
    watch(float(limit) if limit else None, int(heartbeats), int(dumps), run_folder)
