"""A tiny model behind a server of ours and the engine on it, and what its results are held to."""

import asyncio
import tempfile
from contextlib import contextmanager

import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig

from chat.families import make_format
from inference.sglang_runtime import TinySGLang
from inference.sglang_server import SGLangServer
from inference.tiny_models import SHAPE, plain_log_probs
from turnwise.inference import SamplingParams
from turnwise.inference.sglang import SGLangServerEngine

TOKENIZER = make_format("plain").tokenizer
VOCABULARY = len(TOKENIZER) + 13  # models have more rows than their tokenizer has tokens
GREEDY = SamplingParams(temperature=0.0)


def make_model(seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**{**SHAPE, "vocab_size": VOCABULARY}))
    for parameter in model.parameters():  # larger than usual, so that log-probs differ visibly
        parameter.data.mul_(4.0)
    return model.eval()


@contextmanager
def serving(*, deterministic=False, **options):
    """What the server is made of, the server, and an engine on it."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model()
        model.config.save_pretrained(folder)
        runtime = TinySGLang(model, TOKENIZER, folder, deterministic=deterministic)
        with (
            SGLangServer(runtime) as server,
            SGLangServerEngine(server.url, tokenizer=TOKENIZER, **options) as engine,
        ):
            yield runtime, server, engine


def sample(engine, *requests):
    """The result of one request, or the results of several at once."""

    async def gather():
        return await asyncio.gather(*(engine.sample(request) for request in requests))

    results = asyncio.run(gather())
    return results[0] if len(requests) == 1 else results


def gap(model, request, result):
    """Largest difference between the log-probs of a result and those of a plain forward."""
    expected = plain_log_probs(model, request, list(result.ids))
    return (torch.tensor(result.log_probs) - expected).abs().max().item()


def sample_in_flight(engine, runtime, request, models, cut_after, update=None):
    """One turn, in which the engine takes new weights whenever so many tokens were sampled."""
    engine.in_flight = "recompute"
    runtime.hold_after = cut_after

    async def update_in_between():
        turn = asyncio.create_task(engine.sample(request))
        for model in models:
            await until(lambda: [len(run.output) for run in runtime._runs.values()] == [cut_after])
            await asyncio.to_thread(update or engine.update_weights, model.state_dict())
        runtime.hold_after = None
        return await turn

    return asyncio.run(update_in_between())


def start_clock_after(engine, runtime, num_tokens):
    """The engine's time stands still until a turn has so many tokens: it is never too short."""

    def has_tokens():
        return any(len(run.output) >= num_tokens for run in list(runtime._runs.values()))

    loop = engine._loop
    now, begin, started = loop.time, loop.time(), []

    def time():
        if not started and has_tokens():
            started.append(now())
        return begin + (now() - started[0] if started else 0.0)

    loop.time = time


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)
