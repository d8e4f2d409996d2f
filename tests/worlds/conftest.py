"""Other people's environments, each in a Python of its own; `make test-worlds` runs this folder."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
START_SECONDS = 120


@pytest.fixture(scope="session")
def openenv_python():
    """The Python that has OpenEnv."""
    found = subprocess.run(
        ["python3", str(ROOT / "scripts/environment.py"), "openenv"],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def serving(command, url):
    """A server while the block runs; yields its process."""
    with subprocess.Popen(command, start_new_session=True, cwd=HERE) as process:
        deadline = time.monotonic() + START_SECONDS
        try:
            while True:
                assert process.poll() is None, f"{command} ended"
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=10)
                    break
                except OSError:
                    assert time.monotonic() < deadline, f"{command} does not answer"
                    time.sleep(0.2)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def worlds(openenv_python):
    """The URL of a server with all worlds, each below its name."""
    if os.environ.get("DEV_WORLDS"):
        yield os.environ["DEV_WORLDS"]
        return
    url = f"http://127.0.0.1:{free_port()}"
    command = [openenv_python, str(HERE / "openenv_worlds.py"), url.rpartition(":")[2]]
    with serving(command, url):
        yield url


@pytest.fixture
def served():
    """Serve an environment with `turnwise serve-env`; returns its URL."""
    running = []

    def serve(*arguments):
        url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "turnwise", "serve-env", *arguments]
        context = serving([*command, "--port", url.rpartition(":")[2]], url)
        running.append((context, context.__enter__()))
        return url

    yield serve
    for context, _ in running:
        context.__exit__(None, None, None)


@pytest.fixture
def client(openenv_python):
    """What OpenEnv's own clients see of a server."""

    def ask(what, url):
        command = [openenv_python, str(HERE / "openenv_client.py"), what, url]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert asked.returncode == 0, asked.stderr
        return json.loads(asked.stdout)

    return ask
