"""Tiny random models on disk, requests for them, and what a plain forward says of the answers."""

import asyncio
import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig

from chat.families import make_format
from turnwise.inference import GenerationRequest, SamplingParams, sampling_log_probs

CONTEXT = 2048
TOLERANCE = 1e-4
SAMPLING = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.6),
    "hot": SamplingParams(temperature=1.7),
    "greedy": SamplingParams(temperature=0.0),
    "top-k": SamplingParams(top_k=7),
    "top-p": SamplingParams(top_p=0.8),
    "min-p": SamplingParams(min_p=0.1),
    "all but min-p": SamplingParams(temperature=1.3, top_k=40, top_p=0.9),
    "all but top-p": SamplingParams(temperature=0.8, top_k=40, min_p=0.05),
}


@dataclass(frozen=True)
class Saved:
    """A model, and the folder that it was saved in."""

    folder: Path
    model: torch.nn.Module

    def log_probs(self, request, ids, sampling=None, slope=0.0):
        """Of what was sampled, under what should have been sampled from."""
        logits = self.logits([*request.prompt_ids, *ids])[len(request.prompt_ids) - 1 : -1]
        logits = logits + torch.linspace(0.0, slope, logits.shape[1])
        params = [sampling or request.sampling] * len(ids)
        return sampling_log_probs(logits, params).gather(1, torch.tensor(list(ids))[:, None])[:, 0]

    @torch.no_grad()
    def logits(self, ids):
        return self.model(torch.tensor([list(ids)])).logits[0]

    def gap(self, request, result):
        """Largest difference between the log-probs of a result and those of a plain forward.

        Which tokens the filters leave can depend on rounding, and on the order of equals: then
        any such set is right.
        """
        assert len(result.ids) == len(result.log_probs) > 0
        given = torch.tensor(result.log_probs)
        gaps = [
            (given - self.log_probs(request, result.ids, sampling, slope)).abs()
            for sampling in _within_rounding(request.sampling)
            for slope in (0.0, 1e-5, -1e-5)
        ]
        return torch.stack(gaps).amin(0).max().item()


def _within_rounding(sampling):
    yield sampling
    for change in (-1e-5, 1e-5):
        if sampling.top_p < 1.0:
            yield replace(sampling, top_p=sampling.top_p + change)
        if sampling.min_p > 0.0:
            yield replace(sampling, min_p=sampling.min_p * (1.0 + change))


@cache
def tokenizer():
    return make_format("chatml").tokenizer


def save_model(folder, seed):
    config = LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # vLLM's attention on a CPU wants heads of 32 at least
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer().bos_token_id,
        eos_token_id=tokenizer().eos_token_id,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():  # larger than usual, so that log-probs differ visibly
        parameter.data.mul_(3.0)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return Saved(folder, model)


def make_prompt(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(len(tokenizer())) for _ in range(length)]


def make_requests(num, max_tokens, sampling=None, **options):
    """Of many lengths; each with a seed of its own."""
    return [
        GenerationRequest(
            make_prompt(1 + 7 * i % 90, seed=i), max_tokens, sampling or SamplingParams(),
            seed=1000 + i, **options,
        )
        for i in range(num)
    ]  # fmt: skip


def sample_all(engine, requests):
    async def gather():
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    return asyncio.run(gather())


def sample(engine, request):
    return asyncio.run(engine.sample(request))


async def until(holds):
    """Wait for something that another thread, or a server, is about to do."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.002)
