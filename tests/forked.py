"""`turnwise` as a process of its own that begins within milliseconds.

It is forked from a server that has imported turnwise, torch and transformers and computed nothing:
to import them takes a process longer than most tests. What a process is for a test stays: its own
streams, session, folder, environment, signals and exit code.
"""

import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def fork_server():
    """The one server of this process: all who use it must ask for the same imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.training_child", "turnwise.inference.local"])
    with pytest.MonkeyPatch.context() as patch:  # other processes must not see the tests' modules
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent / "src")]))
        forkserver.ensure_running()
    return context


class Turnwise:
    """A `turnwise` command under way, with as much of `subprocess.Popen` as the tests need."""

    def __init__(self, *arguments, stdin, stdout, stderr, cwd=None, env=None):
        """The streams are file descriptors, which stay open here; `env` changes the environment,
        None removes a variable."""
        streams = [Connection(os.dup(number)) for number in (stdin, stdout, stderr)]
        environment = {**os.environ, **(env or {})}
        environment = {name: value for name, value in environment.items() if value is not None}
        self._process = fork_server().Process(
            target=_run, args=(streams, arguments, str(cwd or Path.cwd()), environment), daemon=True
        )
        self._process.start()
        for stream in streams:
            stream.close()

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def kill(self):
        self._process.kill()

    def poll(self):
        """The exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout):
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it has not ended within {timeout} s"
        return self._process.exitcode


def _run(streams, arguments, folder, environment):
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8") for number, mode in enumerate("rww")
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["turnwise", *arguments]
    from turnwise.cli import main

    main(arguments)
