"""Turns go to an engine's thread and come back from any event loop, and none is lost."""

import asyncio
import threading

import pytest

from turnwise.inference import FinishReason, GenerationRequest, worker
from turnwise.inference.worker import WorkerEngine


class Crowd(WorkerEngine):
    """Ends each turn at once, and notes how many it found waiting."""

    def __init__(self):
        super().__init__()
        self.crowds = []

    @property
    def context_length(self):
        return 100

    def _active_turns(self):
        return []

    def _advance(self, *, may_admit):
        if self._waiting:
            self.crowds.append(len(self._waiting))
        while self._waiting:
            turn = self._waiting.popleft()
            turn.deliver(turn.result(FinishReason.LENGTH, 0))

    async def score(self, ids, start):
        raise NotImplementedError

    def update_weights(self, weights):
        raise NotImplementedError


async def ask(engine, number):
    results = await asyncio.gather(
        *(engine.sample(GenerationRequest([i], 5)) for i in range(1, number + 1))
    )
    assert len(results) == number


def test_several_loops_ask_one_engine():
    engine = Crowd()

    def work():
        for _ in range(20):
            asyncio.run(ask(engine, 20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    engine.close()
    assert sum(engine.crowds) == 4 * 20 * 20


def test_an_engine_that_breaks_down_tells_everybody():
    class Broken(Crowd):
        def _advance(self, *, may_admit):
            raise AttributeError("no such thing")

    engine = Broken()

    async def ask_twice():
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"broke down: AttributeError: no such thing"):
                await asyncio.wait_for(engine.sample(GenerationRequest([1], 5)), 60)

    asyncio.run(ask_twice())
    with pytest.raises(RuntimeError, match="broke down"):
        engine._in_thread(lambda: 1, wait_for_idle=True).result(60)
    engine.close()


def test_who_asked_just_before_the_end_is_told():
    engine = Crowd()

    async def ask_and_close():
        turn = asyncio.ensure_future(engine.sample(GenerationRequest([1], 5)))
        await asyncio.sleep(0)  # asked, perhaps not yet taken
        engine.close()
        reason = (await asyncio.wait_for(turn, 60)).finish_reason
        assert reason in (FinishReason.LENGTH, FinishReason.ABORTED)
        with pytest.raises(RuntimeError, match="closed"):
            await engine.sample(GenerationRequest([1], 5))

    asyncio.run(ask_and_close())


def test_an_engine_that_is_stuck_can_be_closed(monkeypatch, caplog):
    monkeypatch.setattr(worker, "_CLOSING_SECONDS", 0.05)
    is_stuck, release = threading.Event(), threading.Event()

    class Stuck(Crowd):
        def _advance(self, *, may_admit):
            is_stuck.set()
            release.wait(120)

    engine = Stuck()

    async def ask_and_close():
        turn = asyncio.ensure_future(engine.sample(GenerationRequest([1], 5)))
        await asyncio.to_thread(is_stuck.wait, 60)
        engine.close()
        result = await asyncio.wait_for(turn, 60)
        assert result.finish_reason is FinishReason.ABORTED

    asyncio.run(ask_and_close())
    assert "did not end within 0.05 s" in caplog.text
    release.set()
