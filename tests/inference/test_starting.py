"""Servers that never answer, streams that are read, and OpenMP threads that are released."""

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from contention import wait_until
from turnwise.errors import DeadlineExceeded
from turnwise.inference.served import JsonClient, own_processes
from turnwise.inference.sglang import SGLangServerEngine
from turnwise.inference.vllm import VLLMServerEngine


@pytest.mark.parametrize("engine", [SGLangServerEngine, VLLMServerEngine])
def test_a_server_that_never_answers(engine):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DeadlineExceeded, match=r"took longer than 0\.2 s.*start_timeout="):
            engine(url, start_timeout=0.2)
    names = ("turnwise: sglang", "turnwise: vllm")
    assert wait_until(lambda: not any(t.name in names for t in threading.enumerate()))


def test_workers_of_a_late_start_are_ended():
    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=[600])

    def start_late():
        worker.start()
        raise DeadlineExceeded("too late")

    with pytest.raises(DeadlineExceeded), own_processes():
        start_late()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL


EVENTS = ["plain", "a\u2028b\u2029c", "d\x85e", "ü"]
BODY = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n" for event in EVENTS)


def test_a_line_of_a_stream_ends_with_a_line_feed_alone():
    """A server may write U+2028 and the like inside of JSON as they are."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for byte in BODY.encode():  # chunks end anywhere, also within a character
            writer.write(bytes([byte]))
            await writer.drain()
        writer.close()

    async def read():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = JsonClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with server:
            lines = [line async for line in client.post_lines("/", {})]
            await client.close()
        return lines

    lines = asyncio.run(read())
    assert [json.loads(line.removeprefix("data: ")) for line in lines if line] == EVENTS


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
