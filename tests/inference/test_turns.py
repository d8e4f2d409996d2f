"""Turns go to an engine's thread and come back from any event loop, and none is lost."""

import asyncio
import threading

import pytest

from turnwise.inference import FinishReason, GenerationRequest, worker
from turnwise.inference.worker import WorkerEngine


class Idle(WorkerEngine):
    """Has no turns of its own."""

    @property
    def context_length(self):
        return 100

    def _active_turns(self):
        return []

    def _advance(self, *, may_admit):
        raise NotImplementedError

    async def score(self, ids, start):
        raise NotImplementedError

    def update_weights(self, weights):
        raise NotImplementedError


def test_an_engine_that_breaks_down_tells_everybody():
    class Broken(Idle):
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


def test_an_engine_that_is_stuck_can_be_closed(monkeypatch):
    monkeypatch.setattr(worker, "_CLOSING_SECONDS", 0.05)
    is_stuck, release = threading.Event(), threading.Event()

    class Stuck(Idle):
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
    release.set()
