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
    call_inline as call_inline,
    call_with_deadline as call_with_deadline,
    contained as contained,
    episode_task as episode_task,
    is_async as is_async,
    is_interrupt as is_interrupt,
    resolve_future as resolve_future,
    result_within as result_within,
)
from turnwise.deadlines.running import (
    LoopCall as LoopCall,
    LoopThread as LoopThread,
    close_loop as close_loop,
    new_loop as new_loop,
    run_sync as run_sync,
)
from turnwise.deadlines.unresponsive import ended_if_unresponsive as ended_if_unresponsive
