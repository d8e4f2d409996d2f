"""Run user code, sync or async, with a time limit.

A user's function may block, so it never runs on the event loop: sync code gets a daemon thread
of its own. Python cannot kill a thread; one that overruns is left running, named after what it
was doing, and cannot keep the process alive (an executor's threads would). Async code runs on
the loop, in one task for each episode: it is cancelled when it overruns, and abandoned if it
ignores that (`UserTask`); but async code that blocks instead of awaiting blocks all episodes.

Whatever user code raises is its failure, even if it is no `Exception`. Only interrupts of the
caller propagate as they are (`is_interrupt`).
"""

from turnwise.deadlines.calls import (
    call_with_deadline,
    contained,
    episode_task,
    is_async,
    is_interrupt,
    resolve_future,
    result_within,
)
from turnwise.deadlines.running import LoopCall, LoopThread, new_loop, run_sync
from turnwise.deadlines.unresponsive import ended_if_unresponsive

__all__ = [
    "LoopCall",
    "LoopThread",
    "call_with_deadline",
    "contained",
    "ended_if_unresponsive",
    "episode_task",
    "is_async",
    "is_interrupt",
    "new_loop",
    "resolve_future",
    "result_within",
    "run_sync",
]
