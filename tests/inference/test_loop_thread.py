"""An event loop in a thread of its own: it starts, answers and ends, whatever is called in it."""

import asyncio
import gc
import itertools
import threading

import pytest

from turnwise.inference import served
from turnwise.inference.served import LoopThread


async def nothing():
    pass


def test_what_begin_raises_is_told_also_if_end_fails_too():
    def begin():
        raise LookupError("no such server")

    def end():
        raise AttributeError("never connected")

    with pytest.raises(LookupError, match="no such server"):
        LoopThread("test", begin, end).start(60)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_call_that_blocks_the_loop_does_not_hold_up_closing(monkeypatch, caplog, capsys):
    monkeypatch.setattr(served, "_CLOSING_SECONDS", 0.05)
    over = threading.Event()

    async def block():
        over.wait(120)

    thread = LoopThread("test", lambda: None, lambda: None)
    thread.start()
    thread.call(block())
    closing = threading.Thread(target=lambda: thread.close(nothing, 0.0), daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    assert "the thread does not end and is abandoned" in caplog.text
    over.set()
    thread._thread.join(60)
    gc.collect()
    assert "never awaited" not in capsys.readouterr().err


def test_calls_from_many_threads_while_it_closes_are_answered_or_refused():
    async def answer(number):
        await asyncio.sleep(0)
        return number

    for _ in range(30):
        thread = LoopThread("test", lambda: None, lambda: None)
        thread.start()
        answered, refused = [], []

        def ask(thread=thread, answered=answered, refused=refused):
            try:
                for number in itertools.count():  # however long it takes until it closes
                    answered.append(thread.call(answer(number)).result(60) == number)
            except RuntimeError as error:
                refused.append(error)

        asking = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for one in asking:
            one.start()
        thread.close(nothing, 60.0)
        for one in asking:
            one.join(60)
        assert len(refused) == 3
        assert all(answered)
