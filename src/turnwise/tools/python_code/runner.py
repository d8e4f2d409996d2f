"""Runs a program in a separate process, within `CodeLimits`, and returns its result.

`why_not_isolated` says whether this machine can isolate programs: a test program tries what must
not work.
"""

import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from turnwise.errors import ConfigError
from turnwise.tools.python_code.jail import WORK_FOLDER
from turnwise.tools.python_code.jail.seccomp import ARCHITECTURES

_FOLDER = str(Path(__file__).parent)
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from jail.main import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
# -s and -S: no site packages; -P: nothing from the folder it starts in.
_FLAGS = ("-s", "-S", "-P", "-X", "utf8")
_START_SECONDS = 60.0
_END_SECONDS = 5.0
_GLANCE_SECONDS = 0.1
_MAX_PRINTED = 1 << 24
_CHUNK = 1 << 16


@dataclass(frozen=True)
class CodeLimits:
    """The resources of one run.

    >>> CodeLimits(seconds=2.0).memory_mb
    512
    """

    seconds: float = 10.0
    """Wall-clock time of the program."""
    memory_mb: int = 512
    """Address space of the process."""
    disk_mb: int = 32
    """All its files together. They are kept in memory, on top of `memory_mb`."""
    num_files: int = 1000
    """Files and folders that it may make."""
    num_threads: int = 32
    """Itself included."""
    open_files: int = 64
    """At once."""
    output_characters: int = 8000
    """Of what it prints; the middle of a longer output is left out."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise ConfigError(f"{field.name} must be a number above 0, got {value!r}")
        if self.open_files < 16:
            raise ConfigError(
                f"open_files must be at least 16, got {self.open_files}: Python needs some itself"
            )


@dataclass(frozen=True)
class CodeRun:
    """The result of one run.

    >>> CodeRun(output="4\\n", exit_code=0).ok
    True
    """

    output: str
    """stdout and stderr in order; the middle of a long output is left out."""
    exit_code: int | None = None
    """As in `subprocess`: negative for a signal; None if the program was stopped."""
    exceeded: str | None = None
    """The limit at which it was stopped: time, output, memory, threads."""
    problem: str | None = None
    """Why it could not be started at all."""

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


def run_code(
    code: str,
    limits: CodeLimits | None = None,
    *,
    packages: Sequence[str] = (),
    isolated: bool = True,
    stop: threading.Event | None = None,
) -> CodeRun:
    """Runs `code`. Returns when it ends, at its time limit, or when `stop` is set."""
    limits = limits or CodeLimits()
    request = {
        "code": code,
        "packages": list(packages),
        "isolated": isolated,
        "limits": asdict(limits),
    }
    status, theirs = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, status)
        folder = WORK_FOLDER  # in memory; with isolation it sees none of our folders
        if not isolated:
            name = f"turnwise-code-{os.getpid()}-"
            temporary = tempfile.TemporaryDirectory(prefix=name, ignore_cleanup_errors=True)
            folder = stack.enter_context(temporary)
        try:
            process = subprocess.Popen(
                [sys.executable, *_FLAGS, "-c", _BOOT, _FOLDER, str(theirs), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs,),
                # Without our keys, tokens and paths.
                env={
                    "HOME": folder,
                    "TMPDIR": folder,
                    "LANG": "C.UTF-8",
                    "PYTHONHASHSEED": "0",  # the same program prints the same
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                },
                cwd=None if isolated else folder,
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        stack.callback(_end, process, isolated=isolated)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(request).encode())
        return _follow(process, status, limits, stop or threading.Event(), isolated=isolated)


def _end(process: subprocess.Popen[bytes], *, isolated: bool) -> None:
    """Stops the process if it still runs, and waits for its end. May be called twice."""
    if process.returncode is not None:
        return
    assert process.stdout is not None
    if isolated:
        process.terminate()  # the watching process ends the program
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    if process.returncode is None:  # not reaped, so its id is still its own
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()


def _follow(
    process: subprocess.Popen[bytes],
    status: int,
    limits: CodeLimits,
    stop: threading.Event,
    *,
    isolated: bool,
) -> CodeRun:
    assert process.stdout is not None
    output, lines = bytearray(), b""
    started: float | None = None
    deadline = time.monotonic() + _START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(status, selectors.EVENT_READ)
        while selector.get_map() and not stop.is_set() and len(output) <= _MAX_PRINTED:
            left = deadline - time.monotonic()
            if left <= 0.0:
                break
            for key, _ in selector.select(min(left, _GLANCE_SECONDS)):
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fileobj)
                if key.fd != status:
                    output += data
                    continue
                lines += data
                if started is None and lines.startswith(b"ready\n"):
                    started = time.monotonic()
                    deadline = started + limits.seconds
    stopped = time.monotonic()
    _end(process, isolated=isolated)
    text = _shorten(bytes(output), limits.output_characters)
    if started is None:
        why = lines.decode(errors="replace").partition("\n")[0].removeprefix("failed ")
        return CodeRun("", problem=why or text.strip() or "the process did not start")
    if stopped >= deadline or len(output) > _MAX_PRINTED:
        return CodeRun(text, exceeded="time" if stopped >= deadline else "output")
    if stop.is_set():
        return CodeRun(text)
    # The watching process reports the end; without one the process is the program.
    kind, _, word = lines.decode().splitlines()[-1].partition(" ")
    if kind == "exceeded":
        return CodeRun(text, exceeded=word)
    return CodeRun(text, exit_code=int(word) if kind == "exit" else process.returncode)


def _shorten(output: bytes, limit: int) -> str:
    """Returns the output as text, without the middle of a long one.

    >>> _shorten(b"abcdefghij", 6)
    'abc\\n[... 4 bytes left out ...]\\nhij'
    """
    if len(output) <= limit:
        return output.decode("utf-8", "replace")
    head, tail = output[: limit // 2], output[len(output) - (limit - limit // 2) :]
    note = f"\n[... {len(output) - limit} bytes left out ...]\n"
    return f"{head.decode('utf-8', 'ignore')}{note}{tail.decode('utf-8', 'ignore')}"


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
        return (
            f"the kernel refused ({run.problem}). It needs Linux 5.12 or newer, seccomp, and the "
            "right to make namespaces and to mount: user namespaces (sysctl -w "
            "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), "
            "or in a container the capability SYS_ADMIN."
        )
    if run.output != "locked\n":
        printed = " ".join(run.output.split())[:200]
        return f"a test program was not contained or did not run: {printed or 'no output'}."
    return None
