"""Other people's environments, each in a Python of its own; `make test-worlds` runs this folder."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
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
    url = f"http://127.0.0.1:{free_port()}"
    command = [openenv_python, str(HERE / "openenv_worlds.py"), url.rpartition(":")[2]]
    with serving(command, url):
        yield url


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The URLs of environments that `turnwise serve-env` serves."""
    rows = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows.write_text('{"where": "north", "not": "south"}\n{"where": "south", "not": "north"}\n')
    dig = f"{HERE / 'dig.py'}:Dig"
    wanted = {
        "text": ["guess-number"],
        "tools": [dig],
        "tasks": [f"{HERE / 'dig.py'}:Plain", "--dataset", str(rows)],
    }
    with ExitStack() as stack:
        urls = {}
        for name, arguments in wanted.items():
            urls[name] = f"http://127.0.0.1:{free_port()}"
            port = urls[name].rpartition(":")[2]
            command = [sys.executable, "-m", "turnwise", "serve-env", *arguments, "--port", port]
            stack.enter_context(serving(command, urls[name]))
        yield urls


@pytest.fixture(scope="session")
def seen(openenv_python, served):
    """What OpenEnv's own clients see of these."""
    asked = {**served, "many": served["text"]}
    words = [word for item in asked.items() for word in item]
    command = [openenv_python, str(HERE / "openenv_client.py"), *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
