"""Run other people's code, sync or async, with a deadline.

A user's function may block, so it never runs on the event loop: sync code gets a daemon thread
of its own. Python cannot kill a thread; one that overruns is left behind, named after what it
was doing, and cannot keep the process alive (an executor's threads would). Async code runs on
the loop, in the task of its caller: it is cancelled when it overruns, and abandoned if it ignores
that (`abandon.py`); but one that blocks instead of awaiting holds up all.

Whatever other people's code raises is its failure, also what is no `Exception`. Only what is
addressed to us passes through as it is (`is_interrupt`).
"""

from turnwise.deadlines.abandon import call_off, mark_called_off, num_abandoned
from turnwise.deadlines.calls import call_with_deadline, is_async, result_within
from turnwise.deadlines.failures import contained, is_interrupt
from turnwise.deadlines.limit import Deadline
from turnwise.deadlines.running import run_sync

__all__ = [
    "Deadline",
    "call_off",
    "call_with_deadline",
    "contained",
    "is_async",
    "is_interrupt",
    "mark_called_off",
    "num_abandoned",
    "result_within",
    "run_sync",
]
