"""An engine that never comes up is an error in time, and nothing of it is left running."""

import os
import socket
import subprocess
import sys
import threading
from types import ModuleType

import pytest

from contention import wait_until
from inference.test_sglang_in_process import ServerArgs
from turnwise.deadlines import result_within
from turnwise.errors import DeadlineExceeded
from turnwise.inference import served
from turnwise.inference.sglang import SGLangInferenceEngine, SGLangServerEngine
from turnwise.inference.vllm import VLLMServerEngine
from turnwise.models.tiny import make_tiny_tokenizer

SERVER = "sleep 3600 & echo ready; sleep 3600"


def test_sglang_and_its_processes_are_ended(monkeypatch, tmp_path):
    """As `sglang.Engine` starts: processes of its own, and a wait until they are ready."""
    children, is_there = [], threading.Event()

    class Engine:
        def __init__(self, **options):
            child = subprocess.Popen(["sh", "-c", SERVER], stdout=subprocess.PIPE)
            child.stdout.readline()  # the grandchild is there
            children.append(child)
            is_there.set()
            child.wait()
            raise EOFError("a scheduler has died")

    module, arguments = ModuleType("sglang"), ModuleType("sglang.srt.server_args")
    module.Engine, arguments.ServerArgs = Engine, ServerArgs
    monkeypatch.setitem(sys.modules, "sglang", module)
    monkeypatch.setitem(sys.modules, "sglang.srt", ModuleType("sglang.srt"))
    monkeypatch.setitem(sys.modules, "sglang.srt.server_args", arguments)
    (tmp_path / "config.json").write_text("{}")
    variables = dict(os.environ)

    def begin_to_wait(future, *limit):
        assert is_there.wait(60)
        return result_within(future, *limit)

    monkeypatch.setattr(served, "result_within", begin_to_wait)
    with pytest.raises(DeadlineExceeded, match=r"starting SGLang took longer .* start_timeout="):
        SGLangInferenceEngine(str(tmp_path), tokenizer=make_tiny_tokenizer(), start_timeout=0.1)
    assert dict(os.environ) == variables
    (child,) = children
    assert child.stdout.read() == b""  # also the grandchild, which held the pipe, has ended
    assert wait_until(lambda: not any(t.name == "turnwise: sglang" for t in threading.enumerate()))


@pytest.mark.parametrize("engine", [SGLangServerEngine, VLLMServerEngine])
def test_a_server_that_never_answers(engine):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DeadlineExceeded, match=r"took longer than 0\.2 s.*start_timeout="):
            engine(url, start_timeout=0.2)
    names = ("turnwise: sglang", "turnwise: vllm")
    assert wait_until(lambda: not any(t.name in names for t in threading.enumerate()))
