"""The tool that runs model-written Python: what the model is told, limits, cancelling, refusing."""

import asyncio
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tools.jailed import REASON, needs_isolation, separate_processes
from turnwise.errors import ConfigError, ToolError
from turnwise.tools import (
    ToolCall,
    ToolFailure,
    ToolRegistry,
    ToolResult,
    python_code as tool_module,
)
from turnwise.tools.python_code import CodeLimits, PythonCodeTool, run_code, runner


def execute(code: str, **limits: Any) -> ToolResult:
    registry = ToolRegistry([PythonCodeTool(CodeLimits(**{"seconds": 60.0, **limits}))])
    return registry.execute(ToolCall("python", {"code": code}))


@needs_isolation
@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("print(2 + 2)", "4\n"),
        ("import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')", "a\nb\nc\n"),
        ("print('é中🙂')", "é中🙂\n"),
        ("print('\\ud800')", "\\ud800\n"),
        ("print(__name__, __import__('sys').argv)", "__main__ ['main.py']\n"),
        ("import sys; sys.exit(0)", "(The program printed nothing. Print what you want to see.)"),
        ("input()", None),
        ("print({'b', 'a', 'c'})", None),
        ("import sys\nprint([m for m in sys.modules if 'jail' in m])", "[]\n"),
    ],
)
def test_what_a_program_prints_is_the_answer(code, printed):
    result = execute(code)
    assert result.text == execute(code).text, "the same program prints the same"
    if printed is not None:
        assert (result.success, result.text) == (True, printed)


@needs_isolation
def test_the_standard_library_works():
    code = """
import asyncio, concurrent.futures, csv, ctypes, dataclasses, decimal, hashlib, json, lzma, math
import random, re, sqlite3, ssl, statistics, tempfile, threading, uuid, zlib, zoneinfo
open("data.csv", "w").write("a,b\\n1,2\\n")
print(list(csv.DictReader(open("data.csv"))))
print(sqlite3.connect("base.db").execute("select 1 + 1").fetchone())
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(sum(pool.map(lambda x: x * x, range(10))))
async def main():
    return await asyncio.gather(*(asyncio.sleep(0, x) for x in range(3)))
print(asyncio.run(main()))
with tempfile.NamedTemporaryFile("w") as file:
    print(file.write("x"))
open("/tmp/there", "w").close()
import os, shutil, data
shutil.copy("data.csv", "copy.csv")
print(sorted(name for name in os.listdir() if "." in name), data.x)
"""
    code = 'open("data.py", "w").write("x = 5")\n' + code
    assert execute(code).text.splitlines() == [
        "[{'a': '1', 'b': '2'}]",
        "(2,)",
        "285",
        "[0, 1, 2]",
        "1",
        "['base.db', 'copy.csv', 'data.csv', 'data.py'] 5",
    ]


@needs_isolation
def test_a_program_that_fails_is_told_with_its_traceback():
    result = execute("print('before')\ndef f():\n    return 1 / 0\nf()")
    assert result.failure is ToolFailure.REFUSED
    lines = result.text.splitlines()
    assert lines[0] == "before"
    assert '  File "main.py", line 3, in f' in lines
    assert "    return 1 / 0" in lines
    assert lines[-2:] == [
        "ZeroDivisionError: division by zero",
        "The program ended with exit code 1.",
    ]
    assert "jail" not in result.text


@needs_isolation
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def f(:", "SyntaxError: invalid syntax"),
        ("print('x'); raise SystemExit('gave up')", "gave up\nThe program ended with exit code 1."),
        ("import os; os._exit(7)", "The program ended with exit code 7."),
        ("import ctypes; ctypes.string_at(0)", "The program was ended by SIGSEGV."),
        ("import numpy", "ModuleNotFoundError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("x\x00y", "null bytes"),
    ],
)
def test_other_ends_are_told_too(code, told):
    result = execute(code)
    assert not result.success
    assert told in result.text


@needs_isolation
def test_a_program_that_takes_too_long_is_stopped_and_keeps_what_it_printed():
    result = execute("print('started', flush=True)\nwhile True: pass", seconds=3.0)
    assert result.failure is ToolFailure.REFUSED
    assert result.text == "started\nThe program was stopped after 3 seconds."


@needs_isolation
def test_a_long_output_keeps_its_beginning_and_its_end():
    code = "for n in range(100_000): print(n)\n1 / 0"
    text = execute(code, output_characters=2000).text
    assert len(text) < 2200
    assert text.startswith("0\n1\n")
    assert "bytes left out" in text
    assert "ZeroDivisionError" in text


@needs_isolation
def test_packages_can_be_shown():
    tool = PythonCodeTool(CodeLimits(seconds=60.0, memory_mb=2048), packages=True)
    registry = ToolRegistry([tool])
    code = "import numpy\nprint(numpy.arange(4) @ numpy.ones(4))"
    assert registry.execute_tool("python", code=code) == (True, "6.0\n")


@needs_isolation
def test_a_folder_of_ones_own_can_be_shown_and_only_read(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    tool = PythonCodeTool(packages=[str(tmp_path)])
    code = (
        "import helper\nprint(helper.twice(4))\n"
        "try: open(helper.__file__, 'w')\nexcept OSError as error: print(error.strerror)"
    )
    assert ToolRegistry([tool]).execute_tool("python", code=code) == (
        True,
        "8\nRead-only file system\n",
    )


@needs_isolation
def test_cancelling_the_episode_ends_the_program():
    async def main() -> None:
        tool = PythonCodeTool(CodeLimits(seconds=3600.0))
        call = ToolCall("python", {"code": "while True: pass"})
        task = asyncio.create_task(ToolRegistry([tool]).execute_async(call))
        while not separate_processes():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while separate_processes():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


@needs_isolation
def test_many_at_once_take_turns(monkeypatch):
    running = most = 0
    lock = threading.Lock()
    meeting = threading.Barrier(2, timeout=60)

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meeting.wait()
        try:
            return run_code(*args, **kwargs)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(tool_module, "run_code", counted)
    registry = ToolRegistry([PythonCodeTool(max_at_once=2)])

    async def main() -> list[ToolResult]:
        calls = [ToolCall("python", {"code": f"print({n})"}) for n in range(6)]
        return await asyncio.gather(*(registry.execute_async(call) for call in calls))

    assert [result.text for result in asyncio.run(main())] == [f"{n}\n" for n in range(6)]
    assert most == 2


def test_where_it_cannot_be_isolated_it_refuses(monkeypatch):
    monkeypatch.setattr(tool_module, "why_not_isolated", lambda: "the kernel is too old.")
    with pytest.raises(ToolError, match=r"cannot be run safely.*too old.*allow_unsafe=True"):
        PythonCodeTool()


def test_the_risk_can_be_taken(monkeypatch):
    monkeypatch.setattr(tool_module, "why_not_isolated", lambda: "the kernel is too old.")
    tool = PythonCodeTool(CodeLimits(seconds=60.0, memory_mb=256), allow_unsafe=True)
    assert not tool.isolated
    registry = ToolRegistry([tool])
    code = "import os\nopen('file', 'w').close()\nprint(os.listdir(), 'HOME' in os.environ)"
    assert registry.execute_tool("python", code=code) == (True, "['file'] True\n")
    assert not registry.execute_tool("python", code="x = bytearray(10 << 30)")[0]
    assert not list(Path(tempfile.gettempdir()).glob(f"turnwise-code-{os.getpid()}-*"))


def test_without_isolation_time_still_ends_it():
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\ntime.sleep(60)"
    run = run_code(code, CodeLimits(seconds=0.5), isolated=False)
    assert run.exceeded == "time"
    deadline = time.monotonic() + 60
    while separate_processes() and time.monotonic() < deadline:
        time.sleep(0.01)  # killed, but not gone before the kernel gets to it
    assert not separate_processes()


@pytest.mark.skipif(sys.platform != "linux", reason="the message is about Linux")
@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("namespaces.enter_namespaces", "the kernel refused (namespaces: no such thing)"),
        ("namespaces.build_root", "the kernel refused (files: no such thing)"),
        ("namespaces.become_nobody", "the kernel refused (rights: no such thing)"),
        ("system.install_filter", "the kernel refused (system calls: no such thing)"),
    ],
)
def test_a_layer_that_fails_is_named(broken, told, monkeypatch):
    if REASON is not None and REASON.startswith("the kernel refused (namespaces"):
        pytest.skip(f"the first layer is missing here: {REASON}")
    module = broken.split(".")[0]
    breaks = (
        f"import sys; sys.path.insert(0, sys.argv[1]); import jail.{module}\n"
        "def fail(*args): raise OSError('no such thing')\n"
        f"jail.{broken} = fail\n"
    )
    monkeypatch.setattr(runner, "_BOOT", breaks + runner._BOOT)
    assert told in str(runner.why_not_isolated.__wrapped__())


@pytest.mark.parametrize(
    "missing",
    ["system.install_filter = lambda program: None", "namespaces.build_root = lambda *args: None"],
)
@needs_isolation
def test_the_probe_notices_a_layer_that_does_nothing(missing, monkeypatch):
    breaks = (
        "import sys; sys.path.insert(0, sys.argv[1]); import jail.namespaces, jail.system\n"
        f"jail.{missing}\n"
    )
    monkeypatch.setattr(runner, "_BOOT", breaks + runner._BOOT)
    reason = runner.why_not_isolated.__wrapped__()
    assert reason is not None
    assert "not contained" in reason


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"seconds": 0}, "seconds must be a number above 0"),
        ({"memory_mb": "many"}, "memory_mb must be a number above 0, got 'many'"),
        ({"open_files": 3}, "open_files must be at least 16"),
    ],
)
def test_wrong_limits_are_named(limits, told):
    with pytest.raises(ConfigError, match=told):
        CodeLimits(**limits)


def test_wrong_packages_are_named():
    with pytest.raises(ConfigError, match="a list of folders"):
        PythonCodeTool(packages="numpy", allow_unsafe=True)
    with pytest.raises(ConfigError, match="not a folder"):
        PythonCodeTool(packages=["/nowhere/at/all"], allow_unsafe=True)
