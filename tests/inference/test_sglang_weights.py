"""New weights for an SGLang server: in time, whole, or not at all."""

import asyncio
from datetime import timedelta

import pytest
import torch
from safetensors.torch import save_file

from inference.sglang_cases import GREEDY, gap, make_model, sample, sample_in_flight, serving, until
from inference.sglang_runtime import Refused
from inference.tiny_models import plain_log_probs
from turnwise import ConfigError
from turnwise.errors import EngineError
from turnwise.inference import FinishReason, GenerationRequest, SamplingParams


def test_new_weights_are_used_from_then_on_and_nothing_that_was_cached(tmp_path):
    with serving(weights_dir=tmp_path) as (runtime, server, engine):
        request = GenerationRequest([5, 6, 7], 9, GREEDY)
        before = sample(engine, request)
        other = make_model(seed=1)
        assert engine.update_weights(other.state_dict()) == 1
        after = sample(engine, request)
        assert (before.weight_version, after.weight_version) == (0, 1)
        assert gap(make_model(), request, before) < 1e-4
        assert gap(other, request, after) < 1e-4
        assert list(before.ids) != list(after.ids)
        (body,) = server.asked("/update_weights_from_disk")
        assert body["model_path"].startswith(str(tmp_path))
        assert runtime.num_flushed == 1
        assert not list(tmp_path.iterdir())


def test_weights_are_broadcast_in_parts_to_a_group_as_sglang_makes_it(monkeypatch, caplog):
    monkeypatch.setattr("turnwise.inference.sglang._BUCKET_BYTES", 20_000)
    request = GenerationRequest([5, 6, 7], 9, GREEDY)
    with (
        caplog.at_level("INFO", "turnwise"),
        serving(transfer="broadcast") as (runtime, server, engine),
    ):
        for version, seed in ((1, 1), (2, 2)):
            other = make_model(seed=seed)
            assert engine.update_weights(other.state_dict()) == version
            assert gap(other, request, sample(engine, request)) < 1e-4
        assert len(server.asked("/init_weights_update_group")) == 1
        flushes = [body["flush_cache"] for body in server.asked("/update_weights_from_distributed")]
        assert len(flushes) > 4
        assert flushes.count(True) == 2
        assert runtime.num_flushed == 2
    assert caplog.text.count("weights reach SGLang by broadcast: gloo, to 1 workers") == 1


def test_a_server_that_cannot_join_gets_files(tmp_path, monkeypatch, caplog):
    def refuse(body):
        raise Refused("Failed to initialize custom process group")

    with (
        caplog.at_level("INFO", "turnwise"),
        serving(transfer="broadcast", weights_dir=tmp_path) as (runtime, server, engine),
    ):
        monkeypatch.setattr(runtime, "init_weights_update_group", refuse)
        monkeypatch.setattr("turnwise.inference.weights._TIMEOUT", timedelta(seconds=1))
        assert engine.update_weights(make_model(seed=1).state_dict()) == 1
        assert len(server.asked("/update_weights_from_disk")) == 1
    assert "weights reach SGLang by disk: a gloo group with its workers failed" in caplog.text


def test_a_server_on_the_learners_gpu_reads_the_weights_there(monkeypatch, caplog):
    refusal = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"

    def refuse(*_):
        raise RuntimeError(f"NCCL error: ncclInvalidUsage. Last error:\n{refusal}")

    request = GenerationRequest([5, 6, 7], 9, GREEDY)
    with (
        caplog.at_level("INFO", "turnwise"),
        serving(transfer="broadcast") as (runtime, server, engine),
    ):
        monkeypatch.setattr("turnwise.inference.weights.WeightSender.send", refuse)
        monkeypatch.setattr(
            runtime,
            "update_weights_from_distributed",
            lambda _: (False, f"Failed to update parameter online: {refusal}."),
        )
        for version in (1, 2):
            other = make_model(seed=version)
            assert engine.update_weights(other.state_dict()) == version
            assert gap(other, request, sample(engine, request)) < 1e-4
        assert len(server.asked("/update_weights_from_distributed")) == 1
        assert len(server.asked("/update_weights_from_tensor")) == 2
        assert runtime.num_flushed == 2
    assert caplog.text.count("weights reach SGLang by ipc: it runs on the learner's GPU") == 1


def test_weights_that_arrived_in_part_are_never_sampled_from(monkeypatch):
    monkeypatch.setattr("turnwise.inference.sglang._BUCKET_BYTES", 20_000)
    request = GenerationRequest([5, 6, 7], 9, GREEDY)
    with serving(transfer="broadcast") as (runtime, server, engine):
        receive = runtime.update_weights_from_distributed

        def fail_at_second(body):
            answer = receive(body)
            is_second = len(server.asked("/update_weights_from_distributed")) == 2
            return (False, "Failed to update parameter online: disk full.") if is_second else answer

        monkeypatch.setattr(runtime, "update_weights_from_distributed", fail_at_second)
        other = make_model(seed=1)
        with pytest.raises(EngineError, match="disk full"):
            engine.update_weights(other.state_dict())
        with pytest.raises(EngineError, match=r"did not reach SGLang.*update_weights again"):
            sample(engine, request)
        with pytest.raises(EngineError, match="did not reach SGLang"):
            asyncio.run(engine.score([5, 6, 7], 1))
        assert engine.update_weights(other.state_dict()) == 1
        assert gap(other, request, sample(engine, request)) < 1e-4


def test_an_engine_sleeps_until_its_next_weights(tmp_path):
    request = GenerationRequest([5, 6, 7], 9, GREEDY)
    with serving(sleep=True, weights_dir=tmp_path) as (runtime, _, engine):
        engine.sleep()
        engine.sleep()
        assert runtime.is_released == {"weights", "kv_cache"}
        with pytest.raises(EngineError, match="sleeps"):
            sample(engine, request)
        with pytest.raises(EngineError, match=r"did not take.*Repo id.*disk that it sees"):
            engine.update_weights(tmp_path / "missing")
        other = make_model(seed=1)
        assert engine.update_weights(other.state_dict()) == 1
        assert not runtime.is_released
        assert gap(other, request, sample(engine, request)) < 1e-4
    with serving() as (runtime, _, engine):
        engine.sleep()  # was not asked to
        assert not runtime.is_released


def test_no_turn_is_sampled_by_two_sets_of_weights():
    models = [make_model(), make_model(seed=1)]
    requests = [GenerationRequest([5, i], 25, GREEDY) for i in range(8)]
    with serving() as (runtime, _, engine):
        runtime.hold_after = 1

        async def sample_across_an_update():
            turns = [asyncio.create_task(engine.sample(request)) for request in requests[:3]]
            await until(lambda: len(runtime._runs) == 3)
            weights = models[1].state_dict()
            update = asyncio.create_task(asyncio.to_thread(engine.update_weights, weights))
            runtime.step_delay, runtime.hold_after = 0.002, None
            for request in requests[3:-1]:
                turns.append(asyncio.create_task(engine.sample(request)))
                await asyncio.sleep(0.01)
            assert await update == 1
            turns.append(asyncio.create_task(engine.sample(requests[-1])))
            return await asyncio.gather(*turns)

        results = asyncio.run(sample_across_an_update())
    assert [result.weight_version for result in results[:3]] == [0, 0, 0]
    assert results[-1].weight_version == 1
    for request, result in zip(requests, results, strict=True):
        assert len(result.ids) == 25
        assert gap(models[result.weight_version], request, result) < 1e-4


def test_in_flight_a_turn_is_cut_and_goes_on_with_the_new_weights():
    """Each token has the version and the log-prob of the weights that sampled it."""
    models = [make_model(), make_model(seed=1), make_model(seed=2)]
    request = GenerationRequest([5, 6, 7], 25, SamplingParams(temperature=0.7, top_k=9), timeout=60)
    with serving() as (runtime, server, engine):
        result = sample_in_flight(engine, runtime, request, models[1:], 4)
        assert len(server.asked("/generate")) == 3
    assert (result.weight_version, result.later_versions) == (0, ((4, 1), (8, 2)))
    assert (len(result.ids), result.finish_reason) == (25, FinishReason.LENGTH)
    given = torch.tensor(result.log_probs)
    parts = (slice(0, 4), slice(4, 8), slice(8, None))
    for model, part in zip(models, parts, strict=True):
        expected = plain_log_probs(model, request, list(result.ids))[part]
        torch.testing.assert_close(given[part], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.update({"model.norm.weight": torch.ones(3)}), r"norm.*\(3,\).*\(32,\)"),
        (lambda w: w.update({"model.norm.weihgt": torch.ones(32)}), "Did you mean"),
        (lambda w: w.pop("model.norm.weight"), "1 weights of the model are missing"),
    ],
)
def test_weights_of_another_model_are_refused_before_they_reach_the_server(change, message):
    with serving() as (_, server, engine):
        weights = dict(make_model().state_dict())
        change(weights)
        with pytest.raises(ConfigError, match=message):
            engine.update_weights(weights)
        assert not server.asked("/update_weights_from_disk")
        assert sample(engine, GenerationRequest([5], 2)).weight_version == 0


def test_a_folder_with_other_or_too_few_weights_is_refused(tmp_path):
    weights = dict(make_model(seed=1).state_dict())
    with serving() as (_, server, engine):
        for name, kept in (
            ("adapters", {"model.layers.0.lora_A.weight": torch.ones(2, 2)}),
            ("shard", {key: weights[key] for key in list(weights)[:3]}),
        ):
            (tmp_path / name).mkdir()
            save_file(kept, tmp_path / name / "model.safetensors")
            with pytest.raises(ConfigError, match="weights of the model are missing"):
                engine.update_weights(tmp_path / name)
        assert not server.asked("/update_weights_from_disk")
        make_model(seed=1).save_pretrained(tmp_path / "whole")
        assert engine.update_weights(tmp_path / "whole") == 1
