"""Calls that go wrong: each becomes a result; what is not the tool's own passes through."""

import asyncio
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from turnwise.errors import EnvironmentFault, ToolError
from turnwise.tools import ToolCall, ToolFailure, ToolRegistry, ToolResult, tool


@tool
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


def both_ways(function: Any, **arguments: Any) -> list[ToolResult]:
    """One call from ordinary code, one from async code."""
    registry = ToolRegistry([function])
    call = ToolCall(registry.names[0], arguments)
    return [registry.execute(call), asyncio.run(registry.execute_async(call))]


def test_a_result_says_what_came_of_the_call():
    for result in both_ways(add, a="2"):
        assert (result.name, result.success, result.text, result.value) == ("add", True, "3", 3)
        assert result.failure is None
        assert result.seconds >= 0
        assert (result.reward, result.done) == (0.0, False)


def test_unknown_tools_and_bad_arguments_are_told_apart():
    registry = ToolRegistry([add])
    unknown = registry.execute(ToolCall("ad", {"a": 1}))
    assert unknown.failure is ToolFailure.UNKNOWN_TOOL
    assert unknown.text == "there is no tool 'ad'. Did you mean 'add'?"
    bad = registry.execute(ToolCall("add", {"a": "many"}))
    assert bad.failure is ToolFailure.BAD_ARGUMENTS
    assert bad.text == (
        "a got 'many'. Input should be a valid integer, unable to parse string as an integer. "
        "Call it as add(a: integer, b: integer = 1)."
    )


@pytest.mark.parametrize("arguments", [None, [1, 2], "a=1", 3])
def test_arguments_that_are_no_object_are_bad_arguments(arguments):
    result = ToolRegistry([add]).execute(ToolCall("add", arguments))
    assert result.failure is ToolFailure.BAD_ARGUMENTS
    assert "must be an object" in result.text


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ToolError("Not today."), ToolFailure.REFUSED),
        (EnvironmentFault("the world broke"), ToolFailure.ENVIRONMENT),
        (ValueError("no"), ToolFailure.RAISED),
        (TimeoutError("a socket's"), ToolFailure.RAISED),
        (StopIteration(), ToolFailure.RAISED),
        (RecursionError(), ToolFailure.RAISED),
        (MemoryError(), ToolFailure.RAISED),
        (SystemExit(3), ToolFailure.RAISED),
        (ValueError("x" * 10_000_000), ToolFailure.RAISED),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("inline", [True, False])
def test_what_a_tool_raises_is_a_result(error, failure, inline):
    @tool(inline=inline)
    def fail() -> None:
        raise error

    @tool(inline=inline)
    async def fail_later() -> None:
        await asyncio.sleep(0)
        raise error

    for function in (fail, fail_later):
        for result in both_ways(function):
            # An async function that raises StopIteration raises RuntimeError, by Python's rules.
            assert result.failure is failure
            assert not result.success
            assert result.value == result.text
            assert len(result.text) < 1000
            assert "\n" not in result.text


def test_a_tool_that_hangs_is_cut():
    release = threading.Event()

    @tool(timeout=0.05)
    def hang() -> None:
        release.wait(20)

    @tool(timeout=0.05)
    async def hang_async() -> None:
        await asyncio.Event().wait()

    for function in (hang, hang_async):
        for result in both_ways(function):
            assert result.failure is ToolFailure.TIMED_OUT
            assert "took too long" in result.text
    release.set()


def test_one_that_hangs_holds_nobody_up():
    release = threading.Event()

    @tool(timeout=60)
    def hang() -> None:
        release.wait(60)

    async def main() -> list[str]:
        registry = ToolRegistry([hang, add])
        waiting = asyncio.create_task(registry.execute_async(ToolCall("hang")))
        results = [await registry.execute_async(ToolCall("add", {"a": n})) for n in range(3)]
        release.set()
        return [result.text for result in [*results, await waiting]]

    assert asyncio.run(main()) == ["1", "2", "3", "Done."]


def test_cancelling_an_episode_is_no_failure_of_the_tool():
    @tool
    async def wait() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        call = ToolRegistry([wait]).execute_async(ToolCall("wait"))
        task = asyncio.create_task(call)
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_an_inline_tool_runs_where_it_is_called_and_others_do_not():
    @tool(inline=True)
    def here() -> bool:
        return threading.current_thread() is threading.main_thread()

    @tool(timeout=None)
    def elsewhere() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert all(result.value is True for result in both_ways(here))
    assert all(result.value is False for result in both_ways(elsewhere))


@pytest.mark.parametrize("how", ["timeout=None", "timeout=120.0"])
def test_the_users_interrupt_gets_through(how):
    script = (
        "import os, time\n"
        "from turnwise.tools import ToolRegistry, tool\n"
        f"@tool({how})\n"
        "def nap():\n"
        "    os.write(1, b'ready\\n')\n"  # not print: its lock may be held at the end
        "    time.sleep(120)\n"
        "try:\n"
        "    ToolRegistry([nap]).execute_tool('nap')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"
