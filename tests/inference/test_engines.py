"""Engines beside a plain forward of the same weights."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.gemma import GemmaConfig
from transformers.models.gpt2 import GPT2Config
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from chat.families import make_format
from turnwise import ConfigError
from turnwise.inference import FinishReason, GenerationRequest, SamplingParams, ScriptedEngine
from turnwise.inference.transformers import TransformersEngine

VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8),
    "mistral": MistralConfig(**SHAPE),
    "gemma": GemmaConfig(**SHAPE, head_dim=8),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128),
}
FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.6, top_p=0.8),
    SamplingParams(top_k=7),
    SamplingParams(min_p=0.3),
    SamplingParams(temperature=0.0),
]


def make_model(name="llama"):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name])
    for parameter in model.parameters():  # larger than usual, so that log-probs differ visibly
        parameter.data.mul_(4.0)
    return model.eval()


def run_all(engine, requests):
    async def gather():
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    try:
        return asyncio.run(gather())
    finally:
        engine.close()


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


def plain_log_probs(model, request, ids):
    from turnwise.inference import sampling_log_probs

    sequence = torch.tensor([[*request.prompt_ids, *ids]])
    with torch.no_grad():
        logits = model(sequence).logits[0, len(request.prompt_ids) - 1 : -1]
    log_probs = sampling_log_probs(logits, [request.sampling] * len(ids))
    return log_probs.gather(1, torch.tensor(ids)[:, None]).squeeze(1)


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_are_those_of_a_plain_forward(name):
    model = make_model(name)
    requests = make_requests()
    for request, result in zip(requests, run_all(TransformersEngine(model), requests), strict=True):
        assert len(result.ids) == request.max_tokens
        assert result.finish_reason is FinishReason.LENGTH
        expected = plain_log_probs(model, request, list(result.ids))
        gap = (torch.tensor(result.log_probs) - expected).abs().max().item()
        assert gap < 1e-4


def test_greedy_tokens_are_those_of_generate():
    model = make_model()
    prompt = [5, 6, 7]
    request = GenerationRequest(prompt, 20, SamplingParams(temperature=0.0))
    (result,) = run_all(TransformersEngine(model), [request])
    expected = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert list(result.ids) == expected[0, 3:].tolist()


def test_the_same_seed_gives_the_same_tokens_alone_and_in_company():
    model = make_model()
    requests = make_requests()
    together = run_all(TransformersEngine(model), requests)
    for request, result in zip(requests, together, strict=True):
        (alone,) = run_all(TransformersEngine(model), [request])
        assert list(alone.ids) == list(result.ids)


def test_a_stop_token_ends_the_turn_and_is_part_of_it():
    model = make_model()
    (free,) = run_all(TransformersEngine(model), [GenerationRequest([5, 6], 10, seed=4)])
    stop = free.ids[4]
    request = GenerationRequest([5, 6], 10, seed=4, stop_ids=frozenset({stop}))
    (result,) = run_all(TransformersEngine(model), [request])
    assert result.finish_reason is FinishReason.STOP
    assert list(result.ids) == list(free.ids[: list(free.ids).index(stop) + 1])


def test_a_stop_string_ends_the_turn():
    tokenizer = make_format("plain").tokenizer
    torch.manual_seed(0)
    config = LlamaConfig(**{**SHAPE, "vocab_size": len(tokenizer)})
    model = AutoModelForCausalLM.from_config(config)
    (free,) = run_all(TransformersEngine(model), [GenerationRequest([5, 6], 30, seed=2)])
    stop = tokenizer.decode(free.ids[8:10])
    request = GenerationRequest([5, 6], 30, seed=2, stop_strings=(stop,))
    (result,) = run_all(TransformersEngine(model, tokenizer), [request])
    assert result.finish_reason is FinishReason.STOP
    assert stop in tokenizer.decode(result.ids)
    assert stop not in tokenizer.decode(result.ids[:-1])


def test_a_full_context_ends_the_turn_with_its_own_reason():
    (result,) = run_all(TransformersEngine(make_model()), [GenerationRequest([1] * 120, 50)])
    assert result.finish_reason is FinishReason.CONTEXT
    assert len(result.ids) == 8


def test_out_of_time_gives_what_there_is():
    (result,) = run_all(
        TransformersEngine(make_model()), [GenerationRequest([1], 100, timeout=0.0)]
    )
    assert result.finish_reason is FinishReason.DEADLINE
    assert len(result.ids) < 100


def test_a_failing_forward_reaches_the_caller_and_the_engine_lives_on():
    engine = TransformersEngine(make_model())

    async def both():
        with pytest.raises(IndexError):
            await engine.sample(GenerationRequest([10**6], 3))
        return await engine.sample(GenerationRequest([1], 3))

    assert len(asyncio.run(both()).ids) == 3
    engine.close()
    engine.close()


def test_new_weights_are_used_from_then_on_and_counted():
    model, other = make_model(), make_model("llama")
    for parameter in other.parameters():
        parameter.data.mul_(0.5)
    engine = TransformersEngine(model)
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


def test_closing_ends_every_request_under_way_or_waiting():
    engine = TransformersEngine(make_model(), max_batch_size=1)

    async def close_early():
        tasks = [asyncio.create_task(engine.sample(GenerationRequest([1], 120))) for _ in "123"]
        await asyncio.sleep(0.02)
        await asyncio.to_thread(engine.close)
        return await asyncio.gather(*tasks)

    results = asyncio.run(close_early())
    assert len(results) == 3
    assert results[-1].finish_reason is FinishReason.ABORTED
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(engine.sample(GenerationRequest([1], 1)))


def test_a_script_answers_with_what_its_function_says():
    tokenizer = make_format("chatml").tokenizer
    engine = ScriptedEngine(tokenizer, lambda prompt: "hello" if "there" in prompt else "up")
    prompt = tokenizer.encode("there", add_special_tokens=False)
    end = frozenset({tokenizer.eos_token_id})
    (result,) = run_all(engine, [GenerationRequest(prompt, 20, stop_ids=end)])
    assert tokenizer.decode(result.ids, skip_special_tokens=True) == "hello"
    assert result.finish_reason is FinishReason.STOP
    (cut,) = run_all(engine, [GenerationRequest(prompt, 1, stop_ids=end)])
    assert cut.finish_reason is FinishReason.LENGTH


def test_chance_is_repeatable_and_knows_its_log_probs():
    tokenizer = make_format("chatml").tokenizer
    requests = [GenerationRequest([1], 9, seed=seed) for seed in (1, 1, 2)]
    first, second, third = run_all(ScriptedEngine(tokenizer), requests)
    assert first == second != third
    assert first.log_probs[0] == pytest.approx(-torch.tensor(float(len(tokenizer))).log().item())


def test_requests_that_make_no_sense_are_named():
    with pytest.raises(ConfigError, match="prompt"):
        GenerationRequest([], 5)
    with pytest.raises(ConfigError, match="max_tokens"):
        GenerationRequest([1], 0)
