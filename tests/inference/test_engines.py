"""Engines beside a plain forward of the same weights."""

import asyncio
from functools import partial

import pytest
import torch

from chat.families import make_format
from inference.tiny_models import CONFIGS, VOCABULARY, make_model, plain_log_probs, run_all
from turnwise import ConfigError
from turnwise.inference import FinishReason, GenerationRequest, SamplingParams, ScriptedEngine
from turnwise.inference.local import LocalEngine
from turnwise.inference.transformers import TransformersEngine

FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.6, top_p=0.8),
    SamplingParams(top_k=7),
    SamplingParams(min_p=0.3),
    SamplingParams(temperature=0.0),
]


ENGINES = {
    "transformers": TransformersEngine,
    "local": LocalEngine,
    "local, not deterministic": partial(LocalEngine, deterministic=False),
}
each_engine = pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)


def make_requests(**options):
    random = torch.Generator().manual_seed(1)
    lengths = (3, 11, 7, 20, 1)
    return [
        GenerationRequest(
            torch.randint(VOCABULARY, (length,), generator=random).tolist(),
            max_tokens=12 + i,
            sampling=FILTERS[i],
            seed=i,
            **options,
        )
        for i, length in enumerate(lengths)
    ]


@each_engine
@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_are_those_of_a_plain_forward(name, make_engine):
    model = make_model(name)
    requests = make_requests()
    for request, result in zip(requests, run_all(make_engine(model), requests), strict=True):
        assert len(result.ids) == request.max_tokens
        assert result.finish_reason is FinishReason.LENGTH
        expected = plain_log_probs(model, request, list(result.ids))
        gap = (torch.tensor(result.log_probs) - expected).abs().max().item()
        assert gap < 1e-4


@each_engine
def test_greedy_tokens_are_those_of_generate(make_engine):
    model = make_model()
    prompt = [5, 6, 7]
    request = GenerationRequest(prompt, 20, SamplingParams(temperature=0.0))
    (result,) = run_all(make_engine(model), [request])
    expected = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert list(result.ids) == expected[0, 3:].tolist()


@each_engine
def test_the_same_seed_gives_the_same_tokens_alone_and_in_company(make_engine):
    model = make_model()
    requests = make_requests()
    together = run_all(make_engine(model), requests)
    for request, result in zip(requests, together, strict=True):
        (alone,) = run_all(make_engine(model), [request])
        assert list(alone.ids) == list(result.ids)


@each_engine
def test_a_stop_token_ends_the_turn_and_is_part_of_it(make_engine):
    model = make_model()
    (free,) = run_all(make_engine(model), [GenerationRequest([5, 6], 10, seed=4)])
    stop = free.ids[4]
    request = GenerationRequest([5, 6], 10, seed=4, stop_ids=frozenset({stop}))
    (result,) = run_all(make_engine(model), [request])
    assert result.finish_reason is FinishReason.STOP
    assert list(result.ids) == list(free.ids[: list(free.ids).index(stop) + 1])


@each_engine
def test_a_full_context_ends_the_turn_with_its_own_reason(make_engine):
    (result,) = run_all(make_engine(make_model()), [GenerationRequest([1] * 120, 50)])
    assert result.finish_reason is FinishReason.CONTEXT
    assert len(result.ids) == 8


@each_engine
def test_out_of_time_gives_what_there_is(make_engine):
    (result,) = run_all(make_engine(make_model()), [GenerationRequest([1], 100, timeout=0.0)])
    assert result.finish_reason is FinishReason.DEADLINE
    assert len(result.ids) < 100


@each_engine
def test_a_failing_forward_reaches_the_caller_and_the_engine_lives_on(make_engine):
    engine = make_engine(make_model())

    async def both():
        with pytest.raises((IndexError, ConfigError)):
            await engine.sample(GenerationRequest([10**6], 3))
        return await engine.sample(GenerationRequest([1], 3))

    assert len(asyncio.run(both()).ids) == 3
    engine.close()
    engine.close()


@each_engine
def test_new_weights_are_used_from_then_on_and_counted(make_engine):
    model, other = make_model(), make_model("llama")
    for parameter in other.parameters():
        parameter.data.mul_(0.5)
    engine = make_engine(model)
    request = make_requests()[1]

    async def before_and_after():
        first = await engine.sample(request)
        assert engine.update_weights(other.state_dict()) == 1
        return first, await engine.sample(request)

    first, second = asyncio.run(before_and_after())
    engine.close()
    assert (first.weight_version, second.weight_version) == (0, 1)
    expected = plain_log_probs(other, request, list(second.ids))
    torch.testing.assert_close(torch.tensor(second.log_probs), expected, atol=1e-4, rtol=0)


@each_engine
def test_closing_ends_every_request_under_way_or_waiting(make_engine):
    engine = make_engine(make_model(), max_batch_size=1)

    async def close_early():
        requests = [GenerationRequest([1], 120)] * 999  # minutes of work: it is closed before
        tasks = [asyncio.create_task(engine.sample(request)) for request in requests]
        await asyncio.sleep(0.02)
        await asyncio.to_thread(engine.close)
        return await asyncio.gather(*tasks)

    results = asyncio.run(close_early())
    assert len(results) == 999
    assert results[-1].finish_reason is FinishReason.ABORTED
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(engine.sample(GenerationRequest([1], 1)))


def test_chance_is_repeatable_and_knows_its_log_probs():
    tokenizer = make_format("chatml").tokenizer
    requests = [GenerationRequest([1], 9, seed=seed) for seed in (1, 1, 2)]
    first, second, third = run_all(ScriptedEngine(tokenizer), requests)
    assert first == second != third
    assert first.log_probs[0] == pytest.approx(-torch.tensor(float(len(tokenizer))).log().item())
