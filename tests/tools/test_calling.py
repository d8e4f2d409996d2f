"""Calls that go wrong: each becomes a result; what is not the tool's own passes through."""

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest

from contention import child_processes
from turnwise.errors import EnvironmentFault, ToolError
from turnwise.tools import ToolCall, ToolContext, ToolFailure, ToolRegistry, ToolResult, tool


@tool
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


class BrokenError(Exception):
    def __str__(self) -> str:
        raise ValueError("even the message is broken")


def both_ways(function: Any, **arguments: Any) -> list[ToolResult]:
    """One call from ordinary code, one from async code."""
    registry = ToolRegistry([function])
    call = ToolCall(registry.names[0], arguments)
    return [registry.execute(call), asyncio.run(registry.execute_async(call))]


def test_a_result_says_what_came_of_the_call() -> None:
    for result in both_ways(add, a="2"):
        assert (result.name, result.success, result.text, result.value) == ("add", True, "3", 3)
        assert result.failure is None
        assert result.seconds >= 0
        assert (result.reward, result.done) == (0.0, False)


def test_unknown_tools_and_bad_arguments_are_told_apart() -> None:
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
def test_arguments_that_are_no_object_are_bad_arguments(arguments: Any) -> None:
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
        (BrokenError(), ToolFailure.RAISED),
        (ValueError("x" * 10_000_000), ToolFailure.RAISED),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("inline", [True, False])
def test_what_a_tool_raises_is_a_result(
    error: BaseException, failure: ToolFailure, inline: bool
) -> None:
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


def test_a_tool_that_hangs_is_cut() -> None:
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


def test_one_that_hangs_holds_nobody_up() -> None:
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


def test_cancelling_an_episode_is_no_failure_of_the_tool() -> None:
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


def test_a_tool_that_is_cancelled_from_within_is_a_failure() -> None:
    @tool
    async def cancelled() -> None:
        raise asyncio.CancelledError

    assert all(result.failure is ToolFailure.RAISED for result in both_ways(cancelled))


def test_an_inline_tool_runs_where_it_is_called_and_others_do_not() -> None:
    @tool(inline=True)
    def here() -> bool:
        return threading.current_thread() is threading.main_thread()

    @tool(timeout=None)
    def elsewhere() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert all(result.value is True for result in both_ways(here))
    assert all(result.value is False for result in both_ways(elsewhere))


@pytest.mark.parametrize("how", ["inline=True", "timeout=None", "timeout=120.0"])
def test_the_users_interrupt_gets_through(how: str) -> None:
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


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_tool_that_forks_does_not_come_back_twice(inline: bool, tmp_path: Any) -> None:
    children: list[int] = []

    @tool(inline=inline)
    def fork() -> str:
        pid = os.fork()
        if pid:
            children.append(pid)
        return "parent" if pid else "child"

    result = ToolRegistry([fork]).execute(ToolCall("fork"))
    (tmp_path / str(os.getpid())).touch()
    assert result.text == "parent"
    assert os.waitpid(children[0], 0) == (children[0], 0)
    assert os.listdir(tmp_path) == [str(os.getpid())]


# ---- hundreds of calls at once ----


NUM_CALLS = 300
RELEASE = threading.Event()


@tool(timeout=60.0)
def good(n: int, context: ToolContext) -> int:
    context.store[str(n)] = n
    return n


@tool(timeout=60.0)
def raises(n: int) -> None:
    raise ValueError(n)


@tool(timeout=0.1)
def hangs(n: int) -> None:
    RELEASE.wait(60)


@tool(timeout=60.0)
def exits(n: int) -> None:
    sys.exit(n)


@tool(timeout=60.0)
def forks(n: int) -> str:
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return "parent" if pid else "child"


EXPECTED: dict[str, ToolFailure | None] = {
    "good": None,
    "raises": ToolFailure.RAISED,
    "hangs": ToolFailure.TIMED_OUT,
    "exits": ToolFailure.RAISED,
    "forks": None,
    "missing": ToolFailure.UNKNOWN_TOOL,
}
TOOLS = [good, raises, hangs, exits, forks]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_call_has_a_result_and_nothing_is_left() -> None:
    rng = random.Random(0)
    faults = [name for name in EXPECTED if name != "good"]
    names = [rng.choice(faults) if rng.random() < 0.2 else "good" for _ in range(NUM_CALLS)]
    registry = ToolRegistry(TOOLS)
    RELEASE.clear()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    processes = child_processes()

    async def main() -> list[Any]:
        contexts = [registry.open_context() for _ in names]
        calls = [
            registry.execute_async(ToolCall(name, {"n": n}), context)
            for n, (name, context) in enumerate(zip(names, contexts, strict=True))
        ]
        results = await asyncio.gather(*calls)
        for n, context in enumerate(contexts):
            assert context.store == ({str(n): n} if names[n] == "good" else {})
            await context.aclose()
        assert len(asyncio.all_tasks()) == 1
        return results

    results = asyncio.run(main())
    RELEASE.set()
    assert [result.name for result in results] == names
    assert [result.failure for result in results] == [EXPECTED[name] for name in names]
    assert all(result.success == (result.failure is None) for result in results)
    assert all(result.text and len(result.text) < 20_000 for result in results)
    assert sum(Counter(result.failure for result in results).values()) == NUM_CALLS
    assert {result.text for result in results if result.name == "forks"} == {"parent"}
    deadline = time.monotonic() + 60
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    # Fewer is no fault: what tests before this one left behind may be collected meanwhile.
    gc.collect()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= files
    assert child_processes() <= processes
