"""A fast way that does not fit is given up aloud; memory that runs out is no misfit."""

import logging

import pytest
import torch

from inference.tiny_models import make_model, plain_log_probs, run_all
from inference.zoo import SUPPORTED, make
from turnwise.inference import GenerationRequest
from turnwise.inference.local import LocalEngine, fused_forward
from turnwise.inference.local.kv_cache import KVCache
from turnwise.inference.transformers import TransformersEngine

REQUEST = GenerationRequest(list(range(40)), 6, seed=3)


def check(model, engine):
    (result,) = run_all(engine, [REQUEST])
    expected = plain_log_probs(model, REQUEST, list(result.ids))
    torch.testing.assert_close(torch.tensor(result.log_probs), expected, atol=1e-4, rtol=0)


def fail_with(error):
    def fail(*_, **__):
        raise error

    return fail


def is_fused(engine):
    return engine._runner._fused is not None


def test_a_relative_of_a_fused_family_that_differs_runs_by_its_own_modules(caplog):
    """One that computes something else in a module of the name that the fused forward knows."""
    model = make_model("llama")
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def halved(*args, **options):
        output, weights = forward(*args, **options)
        return 0.5 * output, weights

    attention.forward = halved
    with caplog.at_level(logging.WARNING, "turnwise"):
        engine = LocalEngine(model)
    assert not is_fused(engine)
    assert len(caplog.records) == 1
    assert "fused forward is not used for LlamaForCausalLM" in caplog.text
    assert "away from those of a plain forward" in caplog.text
    check(model, engine)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError("of the host"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_out_of_memory_is_raised_as_what_it_is(monkeypatch, error):
    with monkeypatch.context() as patch:
        patch.setattr(fused_forward.FusedForward, "_attention", fail_with(error))
        with pytest.raises(type(error), match=str(error)):
            LocalEngine(make_model("llama"))
    for engine in (LocalEngine, TransformersEngine):
        model = make_model("gpt2")
        model.transformer.h[1].mlp.forward = fail_with(error)
        with pytest.raises(type(error), match=str(error)):
            engine(model)


def test_a_window_that_only_the_mask_knows_is_kept(caplog):
    """The attention modules say nothing of it, as some families' do not."""
    model = make(SUPPORTED["qwen2"]())
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    engine = LocalEngine(model)
    assert is_fused(engine)
    check(model, engine)
    assert not caplog.records


def test_a_cache_that_cannot_grow_stays_as_it_is(monkeypatch, caplog):
    kv_cache = KVCache(256, 1, 1, 1, torch.float32, torch.device("cpu"), max_tokens=1024)
    held = kv_cache.alloc(256)
    memory = fail_with(torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr("turnwise.inference.local.kv_cache._zeros", memory)
    assert kv_cache.alloc(256) is None
    assert (kv_cache.num_tokens, kv_cache.largest) == (256, 256)
    assert caplog.text.count("no memory to grow the KV cache") == 1
    kv_cache.free(held)
    assert kv_cache.alloc(256) == held
