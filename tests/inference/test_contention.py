"""Many threads use one engine at once: no turn is lost or mixed up, nothing stalls or is left."""

import asyncio
import random
import sys
import threading

import pytest

from inference.history_runner import make_engine, prompt_of, sampled_alone
from turnwise.inference import FinishReason, GenerationRequest

NUM_THREADS, NUM_ROUNDS = 6, 60


@pytest.fixture
def eager_switching():
    """Threads take turns after nearly every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


async def ask(engine, request, rng):
    """One turn: given up after a moment, overdue from the start, or sampled to its end."""
    task = asyncio.ensure_future(engine.sample(request))
    if rng.random() < 0.2:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        task.cancel()
    try:
        result = await asyncio.wait_for(task, 120)  # far more than it takes: else it is lost
    except asyncio.CancelledError:
        return None
    assert list(result.ids) == sampled_alone(request, len(result.ids))
    if result.finish_reason is FinishReason.LENGTH:
        assert len(result.ids) == request.max_tokens
    else:
        assert result.finish_reason in (FinishReason.DEADLINE, FinishReason.ABORTED)
    return result


async def converse(engine, key, rng):
    """A few turns of one conversation; the prompt is one that others have too, or its own."""
    ids = prompt_of(*rng.choice([(70, 1), (40, 2), (rng.randrange(1, 90), rng.randrange(99))]))
    number = 0
    for turn in range(rng.randrange(1, 4)):
        request = GenerationRequest(
            list(ids),
            rng.randrange(1, 6),
            seed=rng.randrange(10**6),
            timeout=rng.choice([None, None, 60.0, 0.0]),
            session=rng.choice([key, key, None]),
        )
        result = await ask(engine, request, rng)
        number += 1
        if result is None or rng.random() < 0.1:
            break
        ids += [*result.ids, *prompt_of(rng.randrange(1, 5), turn)]
    engine.end_session(key)
    return number


def play(engine, number, totals, errors):
    async def rounds():
        rng, total = random.Random(number), 0
        for i in range(NUM_ROUNDS):
            talks = [converse(engine, (number, i, k), rng) for k in range(rng.randrange(1, 5))]
            total += sum(await asyncio.gather(*talks))
            if number == 0 and i % 5 == 0:
                await asyncio.to_thread(engine.update_weights, None)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return total

    try:
        totals.append(asyncio.run(rounds()))
    except BaseException as error:  # shown by the test's own thread
        errors.append(error)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.usefixtures("eager_switching")
def test_threads_that_ask_cancel_and_end_sessions_leave_nothing_behind(monkeypatch, deterministic):
    threads_before = set(threading.enumerate())
    engine = make_engine(
        monkeypatch, cache_tokens=640, max_batch_size=9, deterministic=deterministic
    )
    totals, errors = [], []
    threads = [
        threading.Thread(target=play, args=(engine, number, totals, errors))
        for number in range(NUM_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert sum(totals) > NUM_THREADS * NUM_ROUNDS
    # Sessions end when the next step begins.
    asyncio.run(engine.sample(GenerationRequest([1], 1)))
    assert engine._runner.kv_cache.num_allocated == 0
    assert not engine._schedule._sessions
    assert not engine._active_turns()
    engine.close()
    assert set(threading.enumerate()) <= threads_before
