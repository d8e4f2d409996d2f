"""Helpers that are sent away are gone, and come back when there is work for them."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, threading, torch
from turnwise.inference.helper_threads import send_helpers_away

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
factors = torch.randn(600, 600)
product, before = factors @ factors, threads()
send_helpers_away()
away = threads()
assert torch.equal(factors @ factors, product)
print(before - away, threads() - away)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only GNU OpenMP needs it")
def test_helpers_go_and_come_back():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    gone, back = map(int, done.stdout.split())
    assert gone == back == 2
