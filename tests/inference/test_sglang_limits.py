"""The engine on an SGLang server where something ends: time, room, patience, the server."""

import asyncio
import socket

import pytest

from inference.sglang_cases import (
    GREEDY,
    TOKENIZER,
    VOCABULARY,
    gap,
    make_model,
    sample,
    serving,
    start_clock_after,
    until,
)
from inference.sglang_runtime import TinySGLang
from inference.sglang_server import SGLangServer
from turnwise import ConfigError
from turnwise.errors import EngineError
from turnwise.inference import FinishReason, GenerationRequest, SamplingParams
from turnwise.inference.sglang import SGLangServerEngine


def test_out_of_time_gives_what_there_is():
    with serving() as (runtime, server, engine):
        runtime.hold_after = 7
        start_clock_after(engine, runtime, 7)
        request = GenerationRequest([5, 6], 110, GREEDY, timeout=0.15)
        result = sample(engine, request)
        assert result.finish_reason is FinishReason.DEADLINE
        assert len(result.ids) == 7
        assert gap(make_model(), request, result) < 1e-4
        assert server.asked("/abort_request")
        late = sample(engine, GenerationRequest([5, 6], 110, timeout=0.0))
        assert (list(late.ids), late.finish_reason) == ([], FinishReason.DEADLINE)


def test_cancelling_the_call_aborts_the_request():
    with serving() as (runtime, server, engine):
        runtime.hold_after = 5

        async def cancel():
            task = asyncio.create_task(engine.sample(GenerationRequest([5, 6], 110)))
            await until(lambda: runtime._runs)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not runtime._runs)

        asyncio.run(asyncio.wait_for(cancel(), 60))
        (body,) = server.asked("/generate")
        assert server.asked("/abort_request") == [{"rid": body["rid"]}]
        assert len(sample(engine, GenerationRequest([5, 6], 3)).ids) == 3


def test_a_full_context_ends_the_turn_with_its_own_reason():
    with serving() as (_, server, engine):
        assert engine.context_length == 121  # of 128: SGLang keeps some for itself
        result = sample(engine, GenerationRequest([1] * 113, 50))
        assert (len(result.ids), result.finish_reason) == (8, FinishReason.CONTEXT)
        full = sample(engine, GenerationRequest([1] * 125, 50))
        assert (list(full.ids), full.finish_reason) == ([], FinishReason.CONTEXT)
        assert len(server.asked("/generate")) == 1
        assert len(asyncio.run(engine.score([1] * 121, 1))) == 120


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_token_outside_the_vocabulary_never_reaches_the_server(token):
    with serving() as (runtime, _, engine):
        with pytest.raises(ConfigError, match=f"got the token {token}"):
            sample(engine, GenerationRequest([5, token, 6], 3))
        with pytest.raises(ConfigError, match="vocabulary"):
            asyncio.run(engine.score([5, token, 6], 1))
        assert len(sample(engine, GenerationRequest([5, VOCABULARY - 1], 3)).ids) == 3
        assert not runtime.is_dead


def test_min_p_would_end_a_deterministic_server_and_is_refused():
    with serving(deterministic=True) as (runtime, _, engine):
        with pytest.raises(ConfigError, match=r"min_p got 0\.1"):
            sample(engine, GenerationRequest([5, 6], 3, SamplingParams(min_p=0.1)))
        assert not runtime.is_dead


def test_an_error_of_the_server_is_passed_on_and_the_engine_lives_on():
    with serving() as (_, _, engine):
        with pytest.raises(EngineError, match=r"/generate answered 400: .*at most 32 stop strings"):
            sample(engine, GenerationRequest([5], 3, stop_strings=("x",) * 33))
        assert len(sample(engine, GenerationRequest([5], 3)).ids) == 3


def test_no_server_at_the_address_is_said_at_once():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(EngineError, match=f"no server answers at http://127.0.0.1:{port}"):
        SGLangServerEngine(f"http://127.0.0.1:{port}", tokenizer=TOKENIZER)
    with pytest.raises(ConfigError, match="localhost:30000"):
        SGLangServerEngine("localhost:1", tokenizer=TOKENIZER)
    with pytest.raises(ConfigError, match="Did you mean 'overflow'"):
        SGLangServerEngine("http://localhost:1", tokenizer=TOKENIZER, overflw="error")


def test_a_server_that_exits_in_the_middle_is_an_error_and_closing_still_works():
    with serving() as (runtime, _, engine):
        runtime.freeze_after = 5

        async def sample_while_it_dies():
            task = asyncio.create_task(engine.sample(GenerationRequest([5, 6], 110)))
            await until(lambda: runtime._runs)
            runtime.is_dead = True
            await task

        with pytest.raises(EngineError, match="broke off"):
            asyncio.run(sample_while_it_dies())
        engine.close()


def test_a_model_that_is_not_on_a_disk_here_leaves_the_tokenizer_to_say_its_size(tmp_path):
    make_model().config.save_pretrained(tmp_path)
    runtime = TinySGLang(make_model(), TOKENIZER, "elsewhere")
    with SGLangServer(runtime) as server:
        with pytest.raises(ConfigError, match=r"Pass model_path= or tokenizer="):
            SGLangServerEngine(server.url)
        with SGLangServerEngine(server.url, tokenizer=TOKENIZER) as engine:
            with pytest.raises(ConfigError, match="vocabulary"):
                sample(engine, GenerationRequest([len(TOKENIZER)], 2))
            with pytest.raises(ConfigError, match="Pass model_path="):
                engine.update_weights(make_model().state_dict())
        with SGLangServerEngine(server.url, model_path=str(tmp_path)) as engine:
            assert engine.update_weights(make_model(seed=1).state_dict()) == 1


def test_closing_ends_every_turn_with_what_it_has():
    with serving() as (runtime, _, engine):
        runtime.hold_after = 5

        async def close_early():
            tasks = [
                asyncio.create_task(engine.sample(GenerationRequest([i], 110))) for i in (5, 6)
            ]
            await until(lambda: [len(run.output) for run in list(runtime._runs.values())] == [5, 5])
            await asyncio.to_thread(engine.close)
            return await asyncio.gather(*tasks)

        for result in asyncio.run(close_early()):
            assert result.finish_reason is FinishReason.ABORTED
            assert len(result.ids) == 5
        engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            sample(engine, GenerationRequest([5], 1))
        assert not runtime.is_dead  # the server is not ours to end
