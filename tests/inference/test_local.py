"""The local engine: what it saves must not change what it samples."""

import asyncio
import random

import pytest
import torch

from inference.tiny_models import CONFIGS, VOCABULARY, make_model, plain_log_probs, run_all
from turnwise import ConfigError
from turnwise.inference import GenerationRequest, SamplingParams
from turnwise.inference.local import LocalEngine


def random_prompt(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def some_requests(number, max_tokens=10, **options):
    rng = random.Random(0)
    return [
        GenerationRequest(
            random_prompt(rng.randrange(1, 90), seed),
            rng.randrange(1, max_tokens + 1),
            rng.choice([SamplingParams(), SamplingParams(0.7, top_k=20), SamplingParams(0.0)]),
            seed=seed,
            **options,
        )
        for seed in range(number)
    ]


def same(first, second):
    return list(first.ids) == list(second.ids) and list(first.log_probs) == list(second.log_probs)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_request_gets_the_same_bits_alone_and_among_63_others(name):
    model = make_model(name)
    requests = some_requests(64)
    together = run_all(LocalEngine(model), requests)
    for i in range(0, 64, 7):
        (alone,) = run_all(LocalEngine(model), [requests[i]])
        assert same(alone, together[i])


@pytest.mark.parametrize("inner", [64, 97])
@pytest.mark.parametrize("name", ["llama", "wide-llama"])
def test_a_turn_that_decodes_beside_long_prompts_gets_the_bits_that_it_gets_alone(name, inner):
    """Its row is one of many in a forward then, of which only some have logits."""
    model = make_model(name, max_position_embeddings=1500, intermediate_size=inner)
    lengths = [600, 700, 1100, 1103, 1106]
    requests = [GenerationRequest(random_prompt(n, n), 6, seed=n) for n in lengths]
    together = run_all(LocalEngine(model, prefill_tokens=500), requests)
    for request, result in zip(requests, together, strict=True):
        (alone,) = run_all(LocalEngine(model), [request])
        assert same(alone, result)


def count_computed(engine, monkeypatch):
    """How many tokens each forward of an engine computes, fillers apart."""
    forward, counts = engine._runner.forward_packed, []

    def count(ids, positions, packed, rows=None):
        counts.append(int((packed.slots < engine._runner.kv_cache.scratch).sum()))
        return forward(ids, positions, packed, rows)

    monkeypatch.setattr(engine._runner, "forward_packed", count)
    return counts


def test_a_conversation_goes_on_from_its_cache_and_computes_only_what_is_new(monkeypatch):
    engine = LocalEngine(make_model())
    computed = count_computed(engine, monkeypatch)
    prompt = random_prompt(9, 1)
    for turn in range(5):
        request = GenerationRequest(prompt, 6, seed=turn, session="talk")
        result = asyncio.run(engine.sample(request))
        expected = plain_log_probs(engine.model, request, list(result.ids))
        torch.testing.assert_close(torch.tensor(result.log_probs), expected, atol=1e-4, rtol=0)
        # Every token once; the last sampled one is never fed back.
        assert sum(computed) == len(prompt) + len(result.ids) - 1
        prompt = [*prompt, *result.ids, *random_prompt(turn + 1, turn)]
    engine.close()


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("num_own", [0, 10])
def test_what_prompts_begin_with_is_computed_once(monkeypatch, deterministic, num_own):
    model, common = make_model(max_position_embeddings=512), random_prompt(300, 1)
    requests = [
        GenerationRequest([*common, *random_prompt(num_own, seed)], 8, seed=seed, session=seed)
        for seed in range(2, 10)
    ]
    engine = LocalEngine(model, deterministic=deterministic)
    computed = count_computed(engine, monkeypatch)
    together = run_all(engine, requests)
    # All of a prompt that a group shares; else whole blocks of it.
    num_copied = 7 * (300 - 300 % engine._schedule._block if num_own else 300)
    num_fed_back = sum(len(result.ids) - 1 for result in together)
    assert sum(computed) == 8 * (300 + num_own) - num_copied + num_fed_back
    for request, result in zip(requests, together, strict=True):
        (alone,) = run_all(LocalEngine(model, deterministic=deterministic), [request])
        assert same(alone, result) if deterministic else alone.ids == result.ids


@pytest.mark.parametrize(("name", "seed"), [("llama", 0), ("wide-qwen3", 1), ("mistral", 2)])
def test_copied_blocks_have_the_bits_of_a_conversation_alone(name, seed):
    """Prompts begin alike for a while, in a cache that holds few of them; each has two turns."""
    model = make_model(name, max_position_embeddings=2048)
    if name == "mistral":
        model.config.sliding_window = 200
    rng = random.Random(seed)
    trunk = random_prompt(700, seed)
    prompts = [
        [*trunk[: rng.randrange(1, 700)], *random_prompt(rng.randrange(1, 300), 100 + row)]
        for row in range(12)
    ]

    async def converse(engine, row):
        found, ids = [], prompts[row]
        for turn in range(2):
            request = GenerationRequest(ids, 6, seed=row + 100 * turn, session=row)
            found.append(await engine.sample(request))
            ids = [*ids, *found[-1].ids, *random_prompt(150, row)]
        return found

    async def converse_all(engine, rows):
        return await asyncio.gather(*(converse(engine, row) for row in rows))

    with LocalEngine(model, cache_tokens=4096, max_batch_size=5) as engine:
        together = asyncio.run(converse_all(engine, range(12)))
    for row, turns in enumerate(together):
        with LocalEngine(model) as engine:
            ((first, second),) = asyncio.run(converse_all(engine, [row]))
        assert same(first, turns[0])
        assert same(second, turns[1])


def test_new_weights_leave_no_stale_cache():
    model = make_model()
    engine = LocalEngine(model)

    async def play():
        (first,) = [await engine.sample(GenerationRequest([3, 4, 5], 5, session="a"))]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.7)  # the learner's own step, on the very same modules
        assert engine.update_weights(None) == 1
        request = GenerationRequest([3, 4, 5, *first.ids, 9], 5, session="a")
        return request, await engine.sample(request)

    request, result = asyncio.run(play())
    engine.close()
    assert result.weight_version == 1
    expected = plain_log_probs(model, request, list(result.ids))
    torch.testing.assert_close(torch.tensor(result.log_probs), expected, atol=1e-4, rtol=0)


def test_a_conversation_that_can_never_fit_says_so():
    engine = LocalEngine(make_model(), cache_tokens=128, max_model_len=1000)
    engine.model.config.max_position_embeddings = 1000
    with pytest.raises(ConfigError, match="cache_tokens"):
        run_all(engine, [GenerationRequest(random_prompt(300, 1), 4)])
