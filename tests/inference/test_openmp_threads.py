"""OpenMP threads that are released are gone, and come back when there is work for them."""

import os
import subprocess
import sys

import pytest

# An operation that torch itself divides: matrix products go to a library of the processor's maker,
# and OpenBLAS on Arm takes its number of threads from the environment, not from torch.
SCRIPT = """
import os, torch
from turnwise.inference.worker import _openmp, release_openmp_threads

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
numbers = torch.linspace(-1.0, 1.0, 1_000_000)
result, before = numbers.exp(), threads()
release_openmp_threads()
released = threads()
assert torch.equal(numbers.exp(), result)
print(len(_openmp()), before - released, threads() - released)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only GNU OpenMP needs it")
@pytest.mark.parametrize("given", [None, "1"])
def test_threads_go_and_come_back(given):
    """Also where the environment asks for one thread, as the whole test suite does."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if given is not None:
        environment["OMP_NUM_THREADS"] = given
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    num_libraries, gone, back = map(int, done.stdout.split())
    if num_libraries == 0:
        pytest.skip("this torch has another OpenMP than GNU's: it keeps its threads")
    assert gone == back == 2
