"""A user's script with a model on vLLM; `test_process.py` runs it.

It has no `if __name__ == "__main__"`, as users' scripts have none.
"""

import asyncio
import random
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe import Qwen3MoeConfig

from beside_vllm.cases import TOLERANCE, Saved, make_requests, sample, sample_all, until
from turnwise import ConfigError
from turnwise.inference import FinishReason, GenerationRequest
from turnwise.inference.vllm import VLLMInferenceEngine

folder = Path(sys.argv[1])
torch.manual_seed(0)
experts = Qwen3MoeConfig(
    vocab_size=406,
    hidden_size=64,
    intermediate_size=128,
    moe_intermediate_size=64,
    num_experts=4,
    num_experts_per_tok=2,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
)
saved = Saved(folder, AutoModelForCausalLM.from_config(experts).eval())
saved.model.save_pretrained(folder)


def refuses(words, function, *arguments):
    try:
        function(*arguments)
    except ConfigError as error:
        return words in str(error)
    return False


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


# A start that fails says why, and leaves nothing behind.
assert refuses("could not start", lambda: VLLMInferenceEngine(folder, kv_cache_memory_bytes=1024))

# It starts without disturbing what the rest of the process draws and computes with.
before, num_threads, set_num_threads = states(), torch.get_num_threads(), torch.set_num_threads
engine = VLLMInferenceEngine(str(folder), overflow="error", max_model_len=256)
assert states() == before
assert torch.get_num_threads() == num_threads
assert torch.set_num_threads is set_num_threads
assert engine.context_length == 256
assert engine.settings["dtype"] == "float32"

# A model without a tokenizer works on tokens.
assert engine.tokenizer is None
requests = make_requests(10, 20)
for request, result in zip(requests, sample_all(engine, requests), strict=True):
    assert saved.gap(request, result) < TOLERANCE


assert refuses("tokenizer", engine.generate, "hello")
assert refuses("tokenizer", sample, engine, GenerationRequest([1], 5, stop_strings=("a",)))
assert refuses("context", sample, engine, GenerationRequest([1], 256))


# Closing ends what is under way, and makes room for another engine.
async def close_early():
    turns = [asyncio.create_task(engine.sample(GenerationRequest([1], 255))) for _ in range(3)]
    await until(lambda: len(engine._turns) == 3)
    await asyncio.to_thread(engine.close)
    return await asyncio.gather(*turns)


assert {result.finish_reason for result in asyncio.run(close_early())} == {FinishReason.ABORTED}
engine.close()
with VLLMInferenceEngine(str(folder)) as another:
    assert saved.gap(requests[0], sample(another, requests[0])) < TOLERANCE
print("all is well")
