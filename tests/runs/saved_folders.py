"""Small checkpoints whose content follows from their step, and children that die while saving."""

import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from turnwise import whole_files

# Each of these changes what is on the disk, or makes sure of it.
POINTS = ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir")


def content_of(step, version=""):
    return {
        "weights.bin": f"weights of step {step} {version}\n".encode() * 8,
        "parts/state.json": json.dumps({"step": step, "version": version}).encode(),
        "parts/empty": b"",
    }


def fill(step, version=""):
    """A function that writes the content of that step, for `save`."""

    def write(folder):
        (folder / "parts").mkdir()
        for name, data in content_of(step, version).items():
            (folder / name).write_bytes(data)

    return write


def check(checkpoint, *versions):
    """Its content is that of its step, and of one of the versions; which one."""
    found = {name: checkpoint.file(name).read_bytes() for name in checkpoint.files}
    version = json.loads(found["parts/state.json"])["version"]
    assert found == content_of(checkpoint.step, version)
    assert version in (versions or ("",))
    return version


def hidden(folder):
    """What is left there of saves that did not end."""
    return sorted(path.name for path in folder.glob(".*"))


@dataclass
class Child:
    """A forked process, and the lines that it reported."""

    pid: int
    reports: int

    def hear(self, line):
        """Wait until it has said that line, which is its first."""
        assert os.read(self.reports, len(line) + 1) == f"{line}\n".encode()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        """The lines it said, and whether it was killed; what it raised is raised here."""
        with open(self.reports) as pipe:
            said = pipe.read().splitlines()
        _, status = os.waitpid(self.pid, 0)
        killed = os.WIFSIGNALED(status)
        assert killed or os.WEXITSTATUS(status) == 0, "\n".join(said)
        return said, killed


def in_child(work):
    """Run `work(report)` in a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return Child(pid, reader)
    code = 1
    try:
        os.close(reader)
        work(lambda line: os.write(writer, f"{line}\n".encode()))
        code = 0
    except BaseException:
        os.write(writer, traceback.format_exc().encode())
    finally:
        sys.stdout.flush()
        os._exit(code)


def die_at(number):
    """From now on, this process kills itself just before its so many-th step on the disk."""
    left = number

    def point():
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def guarded(function):
        def call(*args, **kwargs):
            point()
            return function(*args, **kwargs)

        return call

    def write_bytes(path, data):
        with path.open("wb", buffering=0) as file:
            file.write(data[: len(data) // 2])
            point()
            file.write(data[len(data) // 2 :])

    for name in POINTS:
        setattr(whole_files.os, name, guarded(getattr(os, name)))
    Path.write_bytes = write_bytes
