"""A real vLLM server, and the engine that speaks with it."""

import asyncio

import pytest
import torch

from beside_vllm.cases import (
    CONTEXT,
    SAMPLING,
    TOLERANCE,
    make_prompt,
    make_requests,
    sample,
    sample_all,
    tokenizer,
    until,
)
from turnwise import ConfigError, create_inference_engine
from turnwise.errors import EngineError
from turnwise.inference import FinishReason, GenerationRequest
from turnwise.inference.vllm import VLLMServerEngine


@pytest.fixture(scope="module")
def bare(servers):
    return servers[1]


def free_turn(client, **options):
    return sample(client, GenerationRequest([5, 6], 60, seed=4, **options))


def test_out_of_time_gives_what_there_is(client, first):
    request = GenerationRequest([5, 6, 7], CONTEXT - 3, seed=1, timeout=1.0)
    result = sample(client, request)
    assert result.finish_reason is FinishReason.DEADLINE
    assert len(result.ids) < CONTEXT - 3
    if result.ids:  # a machine that stalls may have had no time for the first
        assert first.gap(request, result) < TOLERANCE


def test_cancelling_aborts_on_the_server(client, server):
    before = server.metric("generation_tokens_total")
    request = GenerationRequest([5, 6, 7], CONTEXT - 3, seed=1)

    async def cancel():
        tasks = [asyncio.create_task(client.sample(request)) for _ in range(3)]
        await until(lambda: server.metric("num_requests_running") == 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        await until(lambda: server.metric("num_requests_running") == 0)

    asyncio.run(cancel())
    assert server.metric("generation_tokens_total") - before < 3 * (CONTEXT - 3)
    assert len(free_turn(client).ids) == 60


def test_new_weights_are_loaded_counted_and_waited_for(client, first, second, tmp_path):
    early = GenerationRequest([9] * 40, 150, seed=1)
    late = make_requests(8, 20)
    sample_all(client, late)  # their prefixes are cached
    assert client.weight_version == 0

    async def update_in_the_loop():
        turn = asyncio.create_task(client.sample(early))
        await asyncio.sleep(0.05)
        version = client.update_weights(second.model.state_dict())
        return await turn, version

    old, version = asyncio.run(update_in_the_loop())
    assert (old.weight_version, version) == (0, 1)
    assert first.gap(early, old) < TOLERANCE
    for request, result in zip(late, sample_all(client, late), strict=True):
        assert result.weight_version == 1
        assert second.gap(request, result) < TOLERANCE
    assert client.update_weights(first.folder) == 2
    for request, result in zip(late, sample_all(client, late), strict=True):
        assert first.gap(request, result) < TOLERANCE


def test_in_flight_turns_are_cut_and_go_on_with_the_new_weights(client, server, first, second):
    """Each token has the version and the log-prob of the weights that sampled it."""
    length = 1200  # long enough for both updates, however busy the machine is
    requests = [
        GenerationRequest([5 + i] * 40, length, SAMPLING[name], seed=i, timeout=240)
        for i, name in enumerate(("plain", "cold", "top-k", "greedy"))
    ]
    version = client.weight_version

    async def update_in_between():
        begun = [asyncio.create_task(client.sample(request)) for request in requests]
        for saved in (second, first):
            enough = server.metric("generation_tokens_total") + 80
            await until(lambda least=enough: server.metric("generation_tokens_total") > least)
            await asyncio.to_thread(client.update_weights, saved.model.state_dict())
        late = GenerationRequest([5] * 40, 20, seed=9)  # its prompt was in the cache
        return await asyncio.gather(*begun), late, await client.sample(late)

    client.in_flight = "recompute"
    try:
        results, late, last = asyncio.run(update_in_between())
    finally:
        client.in_flight = None
    assert last.weight_version == version + 2
    assert first.gap(late, last) < TOLERANCE
    for request, result in zip(requests, results, strict=True):
        assert (len(result.ids), result.finish_reason) == (length, FinishReason.LENGTH)
        assert result.weight_version == version
        (one, new), (two, newest) = result.later_versions
        assert (new, newest) == (version + 1, version + 2)
        assert 0 < one < two < length
        whole = torch.tensor(result.log_probs)
        parts = ((first, slice(0, one)), (second, slice(one, two)), (first, slice(two, None)))
        for saved, part in parts:
            expected = saved.log_probs(request, result.ids)[part]
            torch.testing.assert_close(whole[part], expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("transfer", "log"), [("auto", "by broadcast: gloo, to 1 workers"), ("disk", "by disk: chosen")]
)
def test_tensors_are_broadcast_or_written(server, first, second, transfer, log, caplog):
    with (
        caplog.at_level("INFO", "turnwise"),
        VLLMServerEngine(server.url, transfer=transfer) as client,
    ):
        for round, saved in enumerate((second, first)):
            assert client.update_weights(saved.model.state_dict()) == round + 1
            request = GenerationRequest(make_prompt(50, 3), 20, seed=5)
            assert saved.gap(request, sample(client, request)) < TOLERANCE
    assert caplog.text.count(log) == 1


def test_weights_that_do_not_fit_are_not_sent(client, first, tmp_path):
    version = client.weight_version
    lacking = dict(first.model.state_dict())
    del lacking["model.norm.weight"]
    with pytest.raises(ConfigError, match="missing"):
        client.update_weights(lacking)
    with pytest.raises(ConfigError, match="no safetensors"):
        client.update_weights(tmp_path)
    with pytest.raises(ConfigError, match="weights of its own"):
        client.update_weights(None)
    assert client.weight_version == version


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:9.*vllm serve"):
        VLLMServerEngine("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="localhost"):
        VLLMServerEngine("localhost:8000")


def test_a_server_without_the_mode_serves_only_what_is_right_there(bare, first):
    """Its log-probs are the model's own: right without temperature and filters, else wrong."""
    with create_inference_engine(bare.url + "/v1", "vllm", tokenizer=tokenizer()) as client:
        for name in ("plain", "greedy"):
            request = GenerationRequest([5, 6, 7], 30, SAMPLING[name])
            assert first.gap(request, sample(client, request)) < TOLERANCE
        for name in ("cold", "top-k"):
            with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
                sample(client, GenerationRequest([5, 6, 7], 30, SAMPLING[name]))


def test_a_server_that_takes_no_weights_says_how_to_start_it(bare, first):
    with VLLMServerEngine(bare.url) as client:
        with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1"):
            client.update_weights(first.model.state_dict())
        assert client.weight_version == 0
        assert len(sample(client, GenerationRequest([5, 6, 7], 3)).ids) == 3  # as before
