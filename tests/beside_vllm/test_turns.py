"""How a turn ends, and what is refused."""

import asyncio

import pytest

from beside_vllm.cases import (
    CONTEXT,
    TOLERANCE,
    make_prompt,
    make_requests,
    sample,
    sample_all,
    tokenizer,
    until,
)
from turnwise import ConfigError, create_inference_engine
from turnwise.inference import FinishReason, GenerationRequest, SamplingParams


def free_turn(engine, **options):
    return sample(engine, GenerationRequest([5, 6], 60, seed=4, **options))


def readable_pair(ids):
    """Two neighbouring tokens that are plain text, not at the start."""
    texts = [tokenizer().decode([token]) for token in ids]
    return next(
        texts[i] + texts[i + 1]
        for i in range(3, len(ids) - 1)
        if (texts[i] + texts[i + 1]).isascii() and len(texts[i] + texts[i + 1]) > 2
    )


def test_a_stop_token_ends_the_turn_and_is_part_of_it(either):
    free = free_turn(either)
    stop = free.ids[9]
    result = free_turn(either, stop_ids=frozenset({stop}))
    assert result.finish_reason is FinishReason.STOP
    assert list(result.ids) == list(free.ids[: list(free.ids).index(stop) + 1])
    assert len(result.log_probs) == len(result.ids)


def test_the_models_own_end_token_does_not_end_a_turn_that_did_not_ask_for_it(engine):
    end = tokenizer().eos_token_id
    requests = make_requests(40, 200, SamplingParams(temperature=2.0))
    results = sample_all(engine, requests)
    assert any(end in result.ids for result in results)
    assert all(len(result.ids) == 200 for result in results)


def test_a_stop_string_ends_the_turn_and_no_token_is_cut(either):
    free = free_turn(either)
    stop = readable_pair(free.ids)
    result = free_turn(either, stop_strings=("never said", stop))
    assert result.finish_reason is FinishReason.STOP
    assert list(result.ids) == list(free.ids[: len(result.ids)])
    assert stop in tokenizer().decode(result.ids)
    assert stop not in tokenizer().decode(result.ids[:-1])
    assert len(result.log_probs) == len(result.ids)


def test_a_full_context_ends_the_turn_with_its_own_reason(either):
    result = sample(either, GenerationRequest(make_prompt(CONTEXT - 8, 0), 50))
    assert (result.finish_reason, len(result.ids)) == (FinishReason.CONTEXT, 8)
    for length in (CONTEXT, CONTEXT + 1):
        result = sample(either, GenerationRequest(make_prompt(length, 0), 50))
        assert (result.finish_reason, len(result.ids)) == (FinishReason.CONTEXT, 0)
    assert either.context_length == CONTEXT


def test_cancelling_aborts_in_vllm_and_leaves_the_others_alone(engine, first):
    long = GenerationRequest([5, 6, 7], CONTEXT - 3, seed=1)
    short = GenerationRequest([8, 9], 60, seed=2)

    async def cancel_some():
        tasks = [asyncio.create_task(engine.sample(long)) for _ in range(3)]
        kept = asyncio.create_task(engine.sample(short))
        await until(lambda: len(engine._turns) == 4)
        for task in tasks:
            task.cancel()
        result = await kept
        assert all(task.cancelled() for task in tasks)
        await until(lambda: len(engine._turns) == 0)
        return result

    result = asyncio.run(cancel_some())
    assert first.gap(short, result) < TOLERANCE
    assert len(sample(engine, short).ids) == 60


def test_what_vllm_does_not_take_is_refused(engine):
    for heat in (0.001, 2.5):
        with pytest.raises(ConfigError, match=r"temperature got .* 0\.01 to 2"):
            sample(engine, GenerationRequest([1], 5, SamplingParams(temperature=heat)))
    with pytest.raises(ConfigError, match="vLLM refused a request"):
        sample(engine, GenerationRequest([1], 5, stop_ids=frozenset({10**6})))
    for start in (0, 4):
        with pytest.raises(ConfigError, match=f"start={start}"):
            asyncio.run(engine.score([1, 2, 3], start))
    with pytest.raises(ConfigError, match="the context holds"):
        asyncio.run(engine.score([1] * (CONTEXT + 1), 1))
    assert asyncio.run(engine.score([1, 2, 3], 3)) == []


def test_a_second_engine_in_the_process_is_refused(engine, first):
    with pytest.raises(ConfigError, match="another vLLM engine"):
        create_inference_engine(first.folder, backend="vllm")
    assert len(free_turn(engine).ids) == 60
