"""Hundreds of calls at once, some of them broken: every one has a result, nothing is left."""

import asyncio
import gc
import os
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest

from contention import child_processes
from turnwise.tools import ToolCall, ToolContext, ToolFailure, ToolRegistry, tool

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
