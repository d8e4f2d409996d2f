"""Tools of real MCP servers, over stdio and HTTP: calls, failures, deadlines, and the end."""

import asyncio
import copy
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contention import wait_until
from turnwise.errors import MissingExtraError, ToolError
from turnwise.tools import MCPTools, ToolCall, ToolFailure, ToolRegistry, ToolResult, mcp_source

SERVER = str(Path(__file__).with_name("mcp_server.py"))
ENVIRONMENT = {"PYTHONPATH": ":".join(path for path in sys.path if path)}


def stdio(*options: str, **settings: Any) -> MCPTools:
    settings = {"env": ENVIRONMENT, **settings}
    return MCPTools.stdio(sys.executable, [SERVER, "stdio", *options], **settings)


@pytest.fixture(scope="module")
def http_url():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, SERVER, "http", str(port)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        assert wait_until(lambda: accepts(port))
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


@pytest.fixture(scope="module", params=["stdio", "http"])
def source(request):
    if request.param == "stdio":
        made = stdio(max_output=1000)
    else:
        made = MCPTools.http(request.getfixturevalue("http_url"), max_output=1000)
    with made as opened:
        yield opened


def call(source: MCPTools, name: str, **arguments: Any) -> ToolResult:
    return ToolRegistry(source.tools).execute(ToolCall(name, arguments))


def test_the_servers_tools_come_with_their_schemas(source):
    definitions = {d.name: d for d in ToolRegistry(source.tools).definitions}
    assert definitions["add"].signature == "add(a: integer, b: integer = 1)"
    assert definitions["add"].description == "Add two numbers."
    assert definitions["draw"].parameters["$defs"]["Point"]["required"] == ["x"]
    assert "odd_name_" in definitions
    assert source.status == "open"


def test_calls_are_checked_coerced_and_answered(source):
    assert call(source, "add", a="2", b=3).text == "5"
    assert "Did you mean 'a'?" in call(source, "add", aa=1).text
    drawn = call(source, "draw", points=[{"x": 4}, {"x": 2, "y": 1}])
    assert drawn.success
    assert '"width": 4' in drawn.text
    assert call(source, "draw", points=3).failure is ToolFailure.BAD_ARGUMENTS
    assert call(source, "draw", points=[{"y": 1}]).failure is ToolFailure.REFUSED  # by the server
    assert call(source, "odd_name_").text == "odd"


def test_what_is_no_text_is_named(source):
    assert call(source, "show").text == "A picture:\n[image image/png, not shown]"


def test_a_servers_refusal_is_told(source):
    result = call(source, "refuse")
    assert result.failure is ToolFailure.REFUSED
    assert "Ask for something else." in result.text
    assert source.status == "open"


def test_a_long_answer_is_cut(source):
    result = call(source, "long")
    assert result.was_cut
    assert len(result.text) < 1100


def test_a_call_that_hangs_is_cut_and_the_server_lives_on(source):
    tools = source.tools
    for tool in tools:
        tool.timeout = 0.2
    result = ToolRegistry(tools).execute(ToolCall("hang"))
    assert result.failure is ToolFailure.TIMED_OUT
    for tool in tools:
        tool.timeout = 60.0
    assert call(source, "add", a=1).text == "2"


def test_calls_run_at_the_same_time_and_from_any_loop(source):
    registry = ToolRegistry(source.tools)

    async def main() -> list[str]:
        calls = [registry.execute_async(ToolCall("add", {"a": n})) for n in range(20)]
        return [result.text for result in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [str(n + 1) for n in range(20)]
    assert asyncio.run(main()) == [str(n + 1) for n in range(20)]


def test_async_with_works_and_a_server_sees_little_of_our_environment(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "secret")

    async def main() -> str:
        async with stdio(env={**ENVIRONMENT, "GIVEN": "!"}, prefix="my_") as source:
            registry = ToolRegistry(source.tools)
            return (await registry.execute_async(ToolCall("my_environment"))).text

    assert asyncio.run(main()) == "not set!"
    assert not children()


def test_a_server_that_dies_is_a_failed_call_with_a_reason():
    with stdio() as source:
        registry = ToolRegistry(source.tools)
        result = registry.execute(ToolCall("die"))
        assert result.failure is ToolFailure.RAISED
        assert "broke down during the call: Connection closed" in result.text
        assert source.status == "lost: Connection closed. It wrote: giving up"
        again = registry.execute(ToolCall("add", {"a": 1}))
        assert again.failure is ToolFailure.RAISED
        source.open()
        assert source.status == "open"
        assert registry.execute(ToolCall("add", {"a": 1})).text == "2"


def test_nothing_is_left_when_it_is_closed():
    threads = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    source = stdio()
    assert source.tools == []
    with source:
        assert children()
        registry = ToolRegistry(source.tools)
    source.close()
    assert source.status == "closed"
    assert not children()
    late = registry.execute(ToolCall("add", {"a": 1}))
    assert late.failure is ToolFailure.RAISED
    assert "is not there: closed" in late.text
    assert wait_until(lambda: set(threading.enumerate()) <= threads)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def spawn(source: MCPTools) -> list[int]:
    """The ids of a server and of the processes that it has started just now."""
    return [int(pid) for pid in call(source, "spawn").text.split()]


@pytest.mark.parametrize("end", ["polite", "stubborn", "dead"])
def test_a_servers_own_children_end_with_it(end, monkeypatch):
    wait_less(monkeypatch.setattr)
    bystander = subprocess.Popen(["sleep", "1000"])
    with stdio(*(["stubborn"] if end == "stubborn" else [])) as source:
        pids = spawn(source)
        assert all(is_running(pid) for pid in pids)
        if end == "dead":
            call(source, "die")
    try:
        assert wait_until(lambda: not any(map(is_running, pids)))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        kill_all(pids)


def test_a_program_that_exits_without_closing_leaves_no_server():
    code = (
        "from tools.test_mcp import *\n"
        "wait_less(setattr)\n"
        "print(*spawn(stdio('stubborn').open()), flush=True)\n"
    )
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": ":".join([root, *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    try:
        assert len(pids) == 3, done.stderr
        assert wait_until(lambda: not any(map(is_running, pids)))
    finally:
        kill_all(pids)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["no-such-program-anywhere"], "No such file or directory"),
        ([sys.executable, "-c", "raise SystemExit('out of order')"], "It wrote: out of order"),
    ],
)
def test_a_server_that_does_not_start_says_why(command, told):
    source = MCPTools.stdio(command[0], command[1:])
    with pytest.raises(ToolError, match=told):
        source.open()
    assert source.status.startswith("failed to open")
    assert not children()


def test_an_address_where_nobody_listens_says_so():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ToolError, match="could not be reached"):
        MCPTools.http(f"http://127.0.0.1:{port}/mcp").open()


def test_a_server_that_says_nothing_is_given_up(monkeypatch):
    wait_less(monkeypatch.setattr)
    monkeypatch.setattr(mcp_source, "_START_SECONDS", 0.3)
    silent = MCPTools.stdio(sys.executable, ["-c", "import time; time.sleep(1000)"])
    with pytest.raises(ToolError, match=r"did not answer within 0\.3 s"):
        silent.open()
    assert not children()


def test_copies_share_the_connection(source):
    registry = copy.deepcopy(ToolRegistry(source.tools))
    assert registry.execute_tool("add", a=1) == (True, "2")


def test_without_the_package_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'turnwise\[mcp\]'"):
        MCPTools.stdio("anything")


def children() -> list[str]:
    """Servers that this process has started and that still live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        is_server = "mcp_server.py\0stdio" in command or "\0-c\0" in command
        is_server &= "from multiprocessing." not in command  # Python's own, which other tests start
        if parent == str(os.getpid()) and is_server:
            found.append(command)
    return found


def wait_less(set_attribute: Callable[[Any, str, float], None]) -> None:
    """Shorten how long the SDK and this package wait before they send the next signal."""
    for name in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        set_attribute(importlib.import_module("mcp.client.stdio"), name, 0.2)
    set_attribute(mcp_source, "_TERMINATE_SECONDS", 0.2)


def is_running(pid: int) -> bool:
    """Whether there is such a process, zombies aside: nobody may be there to reap an orphan."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_all(pids: list[int]) -> None:
    for pid in filter(is_running, pids):
        os.kill(pid, signal.SIGKILL)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
