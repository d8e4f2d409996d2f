"""Checks the local engine on a GPU: log-probs against a plain forward, in float32 and bfloat16, and
samples that do not depend on the sampling settings of other requests. Raises if one is wrong.

python bench/gpu/local_check.py
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from turnwise.inference import GenerationRequest, SamplingParams, sampling_log_probs
from turnwise.inference.local import LocalEngine

SHAPE: dict[str, Any] = {
    "vocab_size": 2000,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32),
    "mistral": MistralConfig(**SHAPE, sliding_window=37),
    "gpt2": GPT2Config(vocab_size=2000, n_embd=128, n_layer=3, n_head=4, n_positions=1024),
}
MORE: dict[str, Any] = {
    "gemma3": Gemma3TextConfig(
        **SHAPE,
        head_dim=64,
        sliding_window=37,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "phi": PhiConfig(**SHAPE),
    "qwen3-moe": Qwen3MoeConfig(
        **SHAPE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64
    ),
    "deepseek-v3": DeepseekV3Config(
        **{**SHAPE, "num_key_value_heads": 4},
        kv_lora_rank=32,
        q_lora_rank=32,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
    ),
}
"""Architectures for which only log-probs are compared: windows on some layers, experts."""
SAMPLING = [
    SamplingParams(),
    SamplingParams(0.7),
    SamplingParams(0.0),
    SamplingParams(top_k=9),
    SamplingParams(top_p=0.8),
]
LARGEST_GAP = {torch.float32: 1e-3, torch.bfloat16: 0.2}


def make_model(config: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model.to("cuda", dtype).eval()


def make_requests(number: int, params: list[SamplingParams]) -> list[GenerationRequest]:
    rng = random.Random(0)
    return [
        GenerationRequest(
            [rng.randrange(2000) for _ in range(rng.randrange(1, 200))],
            rng.randrange(1, 60),
            params[i % len(params)],
            seed=i,
            session=i,
        )
        for i in range(number)
    ]


def run(engine: LocalEngine, requests: list[GenerationRequest]) -> list[Any]:
    async def gather() -> list[Any]:
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(gather())


@torch.no_grad()
def largest_gap(model: Any, requests: list[GenerationRequest], results: list[Any]) -> float:
    worst = 0.0
    for request, result in zip(requests, results, strict=True):
        ids, start = [*request.prompt_ids, *result.ids], len(request.prompt_ids)
        logits = model(torch.tensor([ids], device="cuda")).logits[0, start - 1 : -1]
        log_probs = sampling_log_probs(logits, [request.sampling] * len(result.ids))
        expected = log_probs.gather(1, torch.tensor(result.ids, device="cuda")[:, None])
        gap = expected.squeeze(1).cpu() - torch.tensor(result.log_probs)
        # In bfloat16 a token at the edge of a filter may have log-prob -inf on one side only.
        worst = max(worst, float(gap[gap.isfinite()].abs().max()))
    return worst


def check_log_probs(name: str, model: Any, kinds: str, params: list[SamplingParams]) -> None:
    engine = LocalEngine(model, max_batch_size=64, cache_tokens=32768)
    fused, graphs = engine._runner._fused is not None, engine._graphs is not None
    requests = make_requests(100, params)
    results = run(engine, requests)
    assert [len(r.ids) for r in results] == [r.max_tokens for r in requests]
    gap = largest_gap(model, requests, results)
    again = run(engine, requests)
    same = sum(list(a.ids) == list(b.ids) for a, b in zip(results, again, strict=True))
    engine.close()
    print(
        f"{name} {model.dtype} {kinds}: fused {fused}, graphs {graphs}, gap {gap:.1e}, "
        f"{same} of 100 again"
    )
    # Equal logits are common in bfloat16: different rounding lets other tokens past a filter, which
    # changes the probabilities of the rest. So only plain requests are compared there.
    if kinds == "plain" or model.dtype == torch.float32:
        assert gap < LARGEST_GAP[model.dtype], "the engine samples from another model"


def check_same_bits(name: str, model: Any) -> None:
    """Checks that in deterministic mode a request gets the same bits alone and with 63 others."""
    engine = LocalEngine(model, max_batch_size=64, cache_tokens=32768, deterministic=True)
    requests = make_requests(64, SAMPLING[:3])
    together = run(engine, requests)
    alone = [run(engine, [request])[0] for request in requests[::9]]
    bits = [a == b for a, b in zip(alone, together[::9], strict=True)]
    print(f"{name} {model.dtype} deterministic: sizes {engine._runner.sizes}, same bits {bits}")
    engine.close()
    assert all(bits), "a request's bits depend on its neighbours"


def check_neighbours(name: str, model: Any, deterministic: bool) -> None:
    """Checks that the sampling settings of other requests do not change a request's tokens."""
    engine = LocalEngine(model, max_batch_size=64, cache_tokens=32768, deterministic=deterministic)
    mixed = make_requests(50, SAMPLING)
    together = run(engine, mixed)
    same = num = 0
    for k in range(len(SAMPLING)):  # one kind at a time, without the others
        own = run(engine, mixed[k :: len(SAMPLING)])
        for a, b in zip(own, together[k :: len(SAMPLING)], strict=True):
            is_same = a == b if deterministic else list(a.ids) == list(b.ids)
            same, num = same + is_same, num + 1
    engine.close()
    mode = "deterministic" if deterministic else "default"
    print(f"{name} {model.dtype} {mode}: {same} of {num} the same with other neighbours")
    # By default another batch size may round differently, which rarely changes a float32 sample.
    if deterministic or model.dtype == torch.float32:
        assert same >= (num if deterministic else 0.9 * num), "draws depend on neighbours"


def main() -> None:
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for dtype in (torch.float32, torch.bfloat16):
        for name, config in CONFIGS.items():
            model = make_model(config, dtype)
            for kinds, params in (("plain", SAMPLING[:3]), ("all", SAMPLING)):
                check_log_probs(name, model, kinds, params)
            check_same_bits(name, model)
            for deterministic in (True, False):
                check_neighbours(name, model, deterministic)
        for name, config in MORE.items():
            check_log_probs(name, make_model(config, dtype), "plain", SAMPLING[:3])
    print("passed")


if __name__ == "__main__":
    main()
