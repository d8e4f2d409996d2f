"""Many architectures: what the local engine samples is what a plain forward says, or it refuses."""

import asyncio
import logging
import random
import re

import pytest
import torch

from inference.zoo import REFUSED, SUPPORTED, VOCAB_SIZE, WINDOW, make
from turnwise import create_inference_engine
from turnwise.inference import GenerationRequest, SamplingParams, sampling_log_probs
from turnwise.inference.local import LocalEngine, UnsupportedModel
from turnwise.inference.transformers import TransformersEngine

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WITHOUT_CACHE = {"bart", "mamba", "recurrent-gemma", "minimax"}
PARAMS = [SamplingParams(), SamplingParams(0.7, top_k=20), SamplingParams(0.0)]


def random_ids(rng, length):
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


async def converse(engine, prompt, number, num_turns):
    """A conversation of a few turns with observations between them: its tokens, and its turns."""
    rng, ids, turns = random.Random(number), list(prompt), []
    for turn in range(num_turns):
        params = PARAMS[number % len(PARAMS)]
        request = GenerationRequest(list(ids), 4, params, seed=10 * number + turn, session=number)
        result = await engine.sample(request)
        turns.append((request, result))
        ids += [*result.ids, *random_ids(rng, 4)]
    engine.end_session(number)
    return ids, turns


def converse_all(engine, *, num_turns=2):
    """Two groups with a shared prompt past every window, more than the cache holds at once."""
    prompts = [random_ids(random.Random(seed), 3 * WINDOW + 6 + seed) for seed in (1, 4)]

    async def gather():
        talks = [converse(engine, prompts[n // 2], n, num_turns) for n in range(4)]
        conversations = await asyncio.gather(*talks)
        await engine.sample(GenerationRequest([1], 1))  # sessions end when the next step begins
        return conversations

    try:
        return asyncio.run(gather())
    finally:
        engine.close()


@torch.no_grad()
def check(model, conversations):
    """Every sampled token and its log-prob against one plain forward of its conversation."""
    for ids, turns in conversations:
        logits = model(torch.tensor([ids], device=DEVICE)).logits[0].cpu()
        for request, result in turns:
            assert len(result.ids) == request.max_tokens
            start = len(request.prompt_ids)
            own = logits[start - 1 : start - 1 + len(result.ids)]
            log_probs = sampling_log_probs(own, [request.sampling] * len(result.ids))
            chosen = log_probs.gather(1, torch.tensor(result.ids)[:, None]).squeeze(1)
            torch.testing.assert_close(
                torch.tensor(result.log_probs),
                chosen,
                atol=2e-4 if DEVICE == "cpu" else 1e-3,
                rtol=0,
            )
            if DEVICE == "cpu":  # a GPU's random numbers are drawn by its kernel
                check_draws(request, result.ids, log_probs)


def check_draws(request, ids, log_probs):
    """The tokens are those that the request's random numbers choose, but for rounding."""
    rng = random.Random(request.seed)
    for token, row in zip(ids, log_probs, strict=True):
        point, mass = rng.random(), row.double().exp()
        if request.sampling.is_greedy:
            assert row[token] > row.max() - 1e-4
        else:
            below, upto = mass[:token].sum(), mass[: token + 1].sum()
            assert below - 1e-4 <= point * mass.sum() <= upto + 1e-4


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_local_engine_samples_what_a_plain_forward_says(name, caplog):
    model = make(SUPPORTED[name]()).to(DEVICE)
    # Prompts in chunks, and less memory than the conversations want.
    engine = LocalEngine(model, deterministic=False, cache_tokens=256, prefill_tokens=13)
    check(model, converse_all(engine))
    assert engine._runner.kv_cache.num_allocated == 0
    # Experts and some rotary embeddings look at the device's numbers: no graph can be captured.
    logged = [
        record.getMessage() for record in caplog.records if record.name.startswith("turnwise")
    ]
    assert not [text for text in logged if DEVICE == "cpu" or "without captured graphs" not in text]


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_and_runs_on_the_transformers_engine(name, caplog):
    make_config, reason = REFUSED[name]
    model = make(make_config()).to(DEVICE)
    kind = type(model).__name__
    if DEVICE == "cuda":
        reason = ".*"  # it may fail there before it is looked at
    line = rf"{kind} does not run on the local engine: {reason}\."
    with pytest.raises(UnsupportedModel, match=rf"^{line}") as refused:
        LocalEngine(model)
    assert refused.value.__notes__ == ["Use backend='transformers'."]
    with caplog.at_level(logging.WARNING, "turnwise"):
        engine = create_inference_engine(model, "local", {"cache_tokens": 1000})
    assert isinstance(engine, TransformersEngine)
    instead = r"The transformers engine is used instead, which is slower\."
    said = [record.getMessage() for record in caplog.records if record.name.startswith("turnwise")]
    assert re.fullmatch(f"{line} {instead}", said[0])
    # Padding and the cache of transformers are measured: most attention of other kinds has them.
    is_slow = any("anew for every token, which is slow" in text for text in said)
    assert is_slow == (name in WITHOUT_CACHE)
    check(model, converse_all(engine, num_turns=1))


@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3", "qwen3"])
def test_deterministic_mode_holds_with_experts(name):
    model = make(SUPPORTED[name]()).to(DEVICE)
    together = converse_all(LocalEngine(model, deterministic=True), num_turns=1)
    for number in (0, 3):
        (request, result), *_ = together[number][1]

        async def alone(request=request):
            with LocalEngine(model, deterministic=True) as engine:
                return await engine.sample(request)

        assert asyncio.run(alone()) == result
