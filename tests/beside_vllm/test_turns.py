"""How a turn ends, and what is refused."""

import asyncio

import pytest
import torch

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
from turnwise import ConfigError, VLLMRolloutSPMD, create_inference_engine
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


def test_a_stop_token_ends_the_turn_and_is_part_of_it(engine):
    free = free_turn(engine)
    stop = free.ids[9]
    result = free_turn(engine, stop_ids=frozenset({stop}))
    assert result.finish_reason is FinishReason.STOP
    assert list(result.ids) == list(free.ids[: list(free.ids).index(stop) + 1])
    assert len(result.log_probs) == len(result.ids)


def test_the_models_own_end_token_does_not_end_a_turn_that_did_not_ask_for_it(engine):
    end = tokenizer().eos_token_id
    requests = make_requests(40, 200, SamplingParams(temperature=2.0))
    results = sample_all(engine, requests)
    assert any(end in result.ids for result in results)
    assert all(len(result.ids) == 200 for result in results)


def test_a_stop_string_ends_the_turn_and_no_token_is_cut(engine):
    free = free_turn(engine)
    stop = readable_pair(free.ids)
    result = free_turn(engine, stop_strings=("never said", stop))
    assert result.finish_reason is FinishReason.STOP
    assert list(result.ids) == list(free.ids[: len(result.ids)])
    assert stop in tokenizer().decode(result.ids)
    assert stop not in tokenizer().decode(result.ids[:-1])
    assert len(result.log_probs) == len(result.ids)


def test_a_full_context_ends_the_turn_with_its_own_reason(engine):
    result = sample(engine, GenerationRequest(make_prompt(CONTEXT - 8, 0), 50))
    assert (result.finish_reason, len(result.ids)) == (FinishReason.CONTEXT, 8)
    for length in (CONTEXT, CONTEXT + 1):
        result = sample(engine, GenerationRequest(make_prompt(length, 0), 50))
        assert (result.finish_reason, len(result.ids)) == (FinishReason.CONTEXT, 0)
    assert engine.context_length == CONTEXT


def test_out_of_time_gives_what_there_is(engine, first):
    request = GenerationRequest([5, 6, 7], CONTEXT - 3, seed=1, timeout=0.5)
    result = sample(engine, request)
    assert result.finish_reason is FinishReason.DEADLINE
    assert len(result.ids) < CONTEXT - 3
    if result.ids:  # a machine that stalls may have had no time for the first
        assert first.gap(request, result) < TOLERANCE
    assert len(engine._turns) == 0
    late = sample(engine, GenerationRequest([5, 6, 7], 5, timeout=0.0))
    assert late.finish_reason is FinishReason.DEADLINE


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


def test_tokens_outside_the_vocabulary_are_refused_before_vllm_sees_them(engine):
    for token in (len(tokenizer()), -1):
        with pytest.raises(ConfigError, match=f"token 1 of the prompt got id {token}, expected"):
            sample(engine, GenerationRequest([1, token], 5))
        with pytest.raises(ConfigError, match=f"got id {token}"):
            asyncio.run(engine.score([1, token], 1))
    assert len(free_turn(engine).ids) == 60


def test_what_vllm_does_not_take_is_refused(engine):
    for heat in (0.001, 2.5):
        with pytest.raises(ConfigError, match=r"temperature got .* 0\.01 to 2"):
            sample(engine, GenerationRequest([1], 5, SamplingParams(temperature=heat)))
    with pytest.raises(ConfigError, match="vLLM refused a request"):
        sample(engine, GenerationRequest([1], 5, stop_ids=frozenset({10**6})))
    for start in (0, 4):
        with pytest.raises(ConfigError, match=f"start={start}"):
            asyncio.run(engine.score([1, 2, 3], start))
    with pytest.raises(ConfigError, match="more than the context"):
        asyncio.run(engine.score([1] * (CONTEXT + 1), 1))
    with pytest.raises(ConfigError, match="start=1 for 0 tokens"):
        asyncio.run(engine.score([], 1))
    assert asyncio.run(engine.score([1, 2, 3], 3)) == []


def test_a_second_engine_in_the_process_is_refused(engine, first):
    with pytest.raises(ConfigError, match="has a vLLM engine already"):
        create_inference_engine(first.folder, backend="vllm")
    assert len(free_turn(engine).ids) == 60


def test_a_rollout_of_verls_kind_on_a_real_vllm(engine):
    prompts = [make_prompt(6, seed) for seed in range(3)]
    rollout = VLLMRolloutSPMD(engine, max_tokens=7, seed=2)
    found = rollout.generate_sequences({"input_ids": torch.tensor(prompts)})
    assert found["responses"].shape == found["rollout_log_probs"].shape == (3, 7)
    for row, ids in enumerate(found["input_ids"].tolist()):
        scores = asyncio.run(engine.score(ids, 6))
        assert found["rollout_log_probs"][row].tolist() == pytest.approx(scores, abs=TOLERANCE)
    output = rollout.batch_generation(prompts)
    assert output.tokens.tolist() == found["responses"].tolist()
