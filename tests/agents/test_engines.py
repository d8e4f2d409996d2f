"""The gateway on the engines that are not `local`: the same exact tokens, and aborted requests."""

import tempfile
from contextlib import contextmanager

import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig

from agents.every_engine import Held, check_exact, check_hang_up, converse, recorded
from chat.families import make_format
from contention import wait_until
from inference.sglang_runtime import TinySGLang
from inference.sglang_server import SGLangServer
from inference.tiny_models import SHAPE
from turnwise.inference import create_inference_engine
from turnwise.inference.sglang import SGLangServerEngine

TOKENIZER = make_format("chatml").tokenizer


def make_model():
    torch.manual_seed(0)
    shape = {**SHAPE, "vocab_size": len(TOKENIZER), "max_position_embeddings": 2048}
    return AutoModelForCausalLM.from_config(LlamaConfig(**shape)).eval()


@contextmanager
def sglang(model, **options):
    """A server that follows SGLang's wire format, and the engine on it."""
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        runtime = TinySGLang(model, TOKENIZER, folder, **options)
        with (
            SGLangServer(runtime) as server,
            SGLangServerEngine(server.url, tokenizer=TOKENIZER) as engine,
        ):
            yield runtime, server, engine


def test_a_conversation_on_transformers_has_exact_tokens():
    model = make_model()
    with (
        create_inference_engine(model, "transformers", tokenizer=TOKENIZER) as engine,
        recorded(engine) as (engine, session, llm),
    ):
        converse(llm)
        check_exact(engine, session, model)


def test_a_conversation_on_sglang_has_exact_tokens():
    model = make_model()
    with sglang(model) as (_, server, engine), recorded(engine) as (engine, session, llm):
        converse(llm)
        check_exact(engine, session, model)
        prompts = [list(request.prompt_ids) for request, _ in engine.turns]
        assert sorted(body["input_ids"] for body in server.asked("/generate")) == sorted(prompts)


def test_transformers_aborts_the_request_of_a_client_that_hangs_up():
    model = make_model()
    with (
        create_inference_engine(model, "transformers", tokenizer=TOKENIZER) as engine,
        recorded(engine, max_tokens=1000) as (engine, session, llm),
    ):
        check_hang_up(engine, session, llm, Held(model, "forward"))


def test_sglang_aborts_the_request_of_a_client_that_hangs_up():
    with (
        sglang(make_model()) as (runtime, server, engine),
        recorded(engine, max_tokens=1000) as (engine, session, llm),
    ):
        held = Held(runtime, "_next_logits")
        check_hang_up(engine, session, llm, held, lambda: server.asked("/abort_request"))
        assert wait_until(lambda: not runtime._runs)
