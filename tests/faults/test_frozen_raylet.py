"""A raylet that is frozen on the only machine: Ray waits for it without end, the run does not."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import turnwise

TESTS = Path(__file__).parents[1]


def train(folder, *words):
    path = os.pathsep.join([str(Path(turnwise.__file__).parents[1]), str(TESTS)])
    return subprocess.run(
        [sys.executable, str(TESTS / "scale" / "frozen_child.py"), str(folder), *words],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_run_ends_with_the_reason_and_resumes(tmp_path):
    ended = train(tmp_path, "freezes")
    assert ended.returncode == 1, ended.stdout
    (status,) = tmp_path.glob("*/run.json")
    log = status.with_name("log.txt").read_text()
    assert "Ray's raylet has not answered for 10 s. The same command resumes" in log
    assert json.loads(status.read_text())["status"].startswith("stopped: Ray's raylet")

    raylet = int(re.search(r"frozen (\d+)", ended.stdout)[1])
    until = time.monotonic() + 60
    while is_alive(raylet) and time.monotonic() < until:
        time.sleep(0.1)
    assert not is_alive(raylet)

    resumed = train(tmp_path)
    assert resumed.returncode == 0, resumed.stdout
    assert json.loads(status.read_text())["status"] == "finished"
