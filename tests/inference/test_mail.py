"""Turns go to an engine's thread, and come back, many at a time and none lost."""

import asyncio
import threading

import pytest

from turnwise.inference import FinishReason, GenerationRequest
from turnwise.inference.worker import WorkerEngine


class Crowd(WorkerEngine):
    """Ends each turn at once, and notes how many it found waiting."""

    def __init__(self):
        super().__init__()
        self.crowds = []

    @property
    def context_length(self):
        return 100

    def _under_way(self):
        return []

    def _advance(self, *, may_begin):
        if self._waiting:
            self.crowds.append(len(self._waiting))
        while self._waiting:
            self._waiting.popleft().settle(FinishReason.LENGTH, 0)

    async def score(self, ids, start):
        raise NotImplementedError

    def update_weights(self, weights):
        raise NotImplementedError


async def ask(engine, number):
    results = await asyncio.gather(
        *(engine.sample(GenerationRequest([i], 5)) for i in range(1, number + 1))
    )
    assert len(results) == number


def test_those_who_ask_together_are_handed_over_together():
    engine = Crowd()
    asyncio.run(ask(engine, 500))
    engine.close()
    assert sum(engine.crowds) == 500
    assert len(engine.crowds) < 50


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
        def _advance(self, *, may_begin):
            raise AttributeError("no such thing")

    engine = Broken()

    async def ask_twice():
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"broke down: AttributeError: no such thing"):
                await asyncio.wait_for(engine.sample(GenerationRequest([1], 5)), 10)

    asyncio.run(ask_twice())
    with pytest.raises(RuntimeError, match="broke down"):
        engine._in_thread(lambda: 1, drained=True).result(10)
    engine.close()


def test_who_asked_just_before_the_end_is_told():
    engine = Crowd()

    async def ask_and_close():
        turn = asyncio.ensure_future(engine.sample(GenerationRequest([1], 5)))
        await asyncio.sleep(0)  # asked, and not yet sent
        engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            await asyncio.wait_for(turn, 10)
        with pytest.raises(RuntimeError, match="closed"):
            await engine.sample(GenerationRequest([1], 5))

    asyncio.run(ask_and_close())
