"""What runs inside an episode worker, here in this process: engines that load their own model."""

import asyncio

import pytest

from inference.sglang_cases import GREEDY, TOKENIZER, gap, make_model
from inference.test_sglang_in_process import stand_in_for_sglang
from trainer.worlds import Memory
from turnwise.config import ConfigStore
from turnwise.episode.options import CollectorOptions
from turnwise.errors import ConfigError
from turnwise.inference import GenerationRequest
from turnwise.learner.sharding import split_shards
from turnwise.scale.ray import assemble
from turnwise.scale.ray.episode_worker import EpisodeSpec, EpisodeWorker
from turnwise.scale.ray.transfer import ModelSource, Weights, to_arrays
from turnwise.trainer.components import UserComponents


@pytest.fixture
def folder(tmp_path):
    make_model().config.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    return str(tmp_path)


def spec_for(folder, *overrides):
    config = ConfigStore.load(overrides=[f"model.local_path={folder}", *overrides])
    parts = UserComponents(Memory)
    return EpisodeSpec(ModelSource(config), TOKENIZER, parts.factory(config), CollectorOptions())


@pytest.fixture
def sglang(monkeypatch):
    stand_in_for_sglang(monkeypatch)


async def arrived(part):
    """As a reference into the object store is: something to wait for."""
    return to_arrays(part)


def test_an_engine_with_a_model_of_its_own_gets_the_weights_in_parts(folder, sglang):
    request = GenerationRequest([5, 6, 7], 9, GREEDY)
    models = [make_model(seed=seed) for seed in (1, 2)]

    async def use():
        worker = EpisodeWorker(0)
        assert await worker.prepare(spec_for(folder, "inference.backend=sglang")) > 0
        results = []
        for version, model in enumerate(models, 7):
            parts = split_shards(model.state_dict(), 2)
            weights = Weights(version, tuple(asyncio.ensure_future(arrived(p)) for p in parts))
            results += [await worker.sample(request, weights) for _ in range(2)]
        worker._engine.close()
        return results

    results = asyncio.run(use())
    assert [result.weight_version for result in results] == [7, 7, 8, 8]
    for model, result in zip([models[0]] * 2 + [models[1]] * 2, results, strict=True):
        assert gap(model, request, result) < 1e-4


def test_too_few_gpus_for_one_copy_of_the_model_are_told():
    config = ConfigStore.load(
        overrides=[
            "inference.backend=vllm",
            "model.tensor_parallel_size=4",
            "ray.use_ray=true",
            "ray.gpus_per_worker=1",
        ]
    )
    with pytest.raises(ConfigError, match=r"each worker has 1 GPUs.*ray\.gpus_per_worker=4"):
        assemble(config, UserComponents(Memory))
