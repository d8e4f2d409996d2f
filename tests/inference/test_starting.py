"""A server that never answers is an error in time, and leaves no workers."""

import multiprocessing
import signal
import socket
import threading
import time

import pytest

from contention import wait_until
from turnwise.errors import DeadlineExceeded
from turnwise.inference.served import own_processes
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
