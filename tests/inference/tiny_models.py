"""Tiny random models of several families, and what engines are compared with."""

import asyncio
import copy

import torch
from transformers import AutoModelForCausalLM
from transformers.models.gemma import GemmaConfig
from transformers.models.gpt2 import GPT2Config
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from turnwise.inference import sampling_log_probs

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
    # So wide that on a CPU the local engine computes tokens as columns.
    "wide-llama": LlamaConfig(**SHAPE | {"hidden_size": 256}, attention_bias=True, mlp_bias=True),
    "wide-qwen3": Qwen3Config(**SHAPE | {"hidden_size": 256}, head_dim=8),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128),
}


def make_model(name="llama", **changes):
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[name])
    config.update(changes)
    model = AutoModelForCausalLM.from_config(config)
    scale = 4.0 * (32 / model.config.hidden_size) ** 0.5
    for label, parameter in model.named_parameters():
        if label.endswith("_proj.bias"):
            parameter.data.normal_(std=0.05)
        if not label.endswith(("q_norm.weight", "k_norm.weight")):  # it would multiply rounding
            parameter.data.mul_(scale)  # larger than usual, so that log-probs differ visibly
    return model.eval()


def run_all(engine, requests):
    async def gather():
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    try:
        return asyncio.run(gather())
    finally:
        engine.close()


def plain_log_probs(model, request, ids):
    sequence = torch.tensor([[*request.prompt_ids, *ids]])
    with torch.no_grad():
        logits = model(sequence).logits[0, len(request.prompt_ids) - 1 : -1]
    log_probs = sampling_log_probs(logits, [request.sampling] * len(ids))
    return log_probs.gather(1, torch.tensor(ids)[:, None]).squeeze(1)
