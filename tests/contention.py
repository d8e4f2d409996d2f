"""Threads that get in each other's way as often as they can, and what they leave behind."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import sys
import threading
import time


@contextlib.contextmanager
def hasty_threads():
    """Threads take turns after every few operations: what may interleave does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_together(*functions, seconds=60):
    """Each in a thread of its own; none may still be at work afterwards."""
    failures = []

    def run(function):
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads), "stuck"
    if failures:
        raise failures[0]


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def peak_megabytes():
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child_processes():
    """Ids of the processes that this one has started, uncollected dead ones included."""
    children = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if file.read().rpartition(")")[2].split()[1] == str(os.getpid()):
                children.add(name)
    return children


@contextlib.contextmanager
def logged(*words):
    """An event that is set as soon as turnwise logs a message with these words."""
    event = threading.Event()
    handler = logging.Handler()

    def has_all(message):
        return all(part in message for part in words)

    handler.emit = lambda record: event.set() if has_all(record.getMessage()) else None
    logging.getLogger("turnwise").addHandler(handler)
    try:
        yield event
    finally:
        logging.getLogger("turnwise").removeHandler(handler)


@contextlib.contextmanager
def nothing_left():
    """Afterwards there are no more threads and open files than before."""

    def count():
        gc.collect()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    def is_clean():
        return all(now <= then for now, then in zip(count(), before, strict=True))

    before = count()
    yield
    assert wait_until(is_clean), (before, count(), threading.enumerate())


def no_tasks_left():
    """In a coroutine: it is the only task of its loop."""
    return len(asyncio.all_tasks()) == 1
