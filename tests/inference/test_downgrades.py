"""Memory that runs out is no misfit of a model; what only the mask knows is kept."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from inference.tiny_models import make_model, plain_log_probs, run_all
from inference.zoo import SUPPORTED, make
from turnwise import create_inference_engine
from turnwise.inference import GenerationRequest
from turnwise.inference.local import LocalEngine
from turnwise.inference.local.attention import Packed
from turnwise.inference.local.fused_forward import FusedForward
from turnwise.inference.local.kv_cache import KVCache
from turnwise.inference.transformers import TransformersEngine
from turnwise.learner.fast import load_kernels

REQUEST = GenerationRequest(list(range(40)), 6, seed=3)


def check(model, engine):
    (result,) = run_all(engine, [REQUEST])
    expected = plain_log_probs(model, REQUEST, list(result.ids))
    torch.testing.assert_close(torch.tensor(result.log_probs), expected, atol=1e-4, rtol=0)


def fail_with(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_forward_without_a_compiler_is_computed_by_the_models_own_modules(monkeypatch, caplog):
    no_compiler = fail_with(RuntimeError("Failed to find C compiler"))
    monkeypatch.setattr(FusedForward, "__call__", no_compiler)
    model = make_model()
    with LocalEngine(model) as engine:
        check(model, engine)
    assert "slower: RuntimeError: Failed to find C compiler" in caplog.text
    monkeypatch.setattr(Packed, "attend", no_compiler)
    with create_inference_engine(make_model()) as engine:
        assert isinstance(engine, TransformersEngine)


def test_the_learner_computes_without_a_compiler(monkeypatch, caplog):
    active = SimpleNamespace(get_current_device=fail_with(RuntimeError("no C compiler")))
    runtime = SimpleNamespace(driver=SimpleNamespace(active=active))
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    assert load_kernels("some kernels") is None
    assert "without its some kernels, which is slower: RuntimeError: no C comp" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError("of the host"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_out_of_memory_is_raised_as_what_it_is(error):
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
    assert engine._runner._fused is not None
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
