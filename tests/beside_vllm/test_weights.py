"""New weights: in place, counted, used from then on and not before."""

import asyncio
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from beside_vllm.cases import TOLERANCE, make_requests, sample, sample_all, until
from turnwise import ConfigError
from turnwise.inference import GenerationRequest


@pytest.fixture(autouse=True)
def _as_it_was(engine, first):
    yield
    engine.update_weights(first.model.state_dict())


def check(engine, saved, requests):
    for request, result in zip(requests, sample_all(engine, requests), strict=True):
        assert result.weight_version == engine.weight_version
        assert saved.gap(request, result) < TOLERANCE


@pytest.mark.parametrize("source", ["tensors", "folder"])
def test_log_probs_become_those_of_the_new_model(engine, first, second, source):
    requests = make_requests(20, 20)  # prompts of more than one block: prefixes are cached
    assert any(len(request.prompt_ids) > 64 for request in requests)
    check(engine, first, requests)
    before = engine.weight_version
    new = second.model.state_dict() if source == "tensors" else second.folder
    assert engine.update_weights(new) == before + 1
    check(engine, second, requests)
    old = [first.gap(request, sample(engine, request)) for request in requests[:3]]
    assert max(old) > 0.1, "the models must differ for this to say anything"
    ids = list(requests[12].prompt_ids)
    log_probs = torch.log_softmax(second.logits(ids)[:-1], -1)
    expected = log_probs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    scores = torch.tensor(asyncio.run(engine.score(ids, 1)))
    torch.testing.assert_close(scores, expected, atol=TOLERANCE, rtol=0)


def test_in_flight_a_turn_goes_on_with_the_new_weights(engine, first, second):
    """Each token has the version and the log-prob of the weights that sampled it."""
    requests = [GenerationRequest([5 + i] * 40, 200, seed=i) for i in range(4)]
    version, counts = engine.weight_version, [0] * len(requests)

    def note(row):
        return lambda ids: counts.__setitem__(row, len(ids))

    requests = [replace(request, on_tokens=note(i)) for i, request in enumerate(requests)]

    async def update_in_between():
        begun = [asyncio.create_task(engine.sample(request)) for request in requests]
        await until(lambda: min(counts) >= 5)
        await asyncio.to_thread(engine.update_weights, second.model.state_dict())
        later = GenerationRequest([5] * 40, 20, seed=9)  # its prompt was in the cache
        return await asyncio.gather(*begun), later, await engine.sample(later)

    engine.in_flight = "recompute"
    try:
        results, later, last = asyncio.run(update_in_between())
    finally:
        engine.in_flight = None
    assert last.weight_version == version + 1
    assert second.gap(later, last) < TOLERANCE
    for request, result in zip(requests, results, strict=True):
        assert len(result.ids) == 200
        assert result.weight_version == version
        ((start, new),) = result.later_versions
        assert new == version + 1
        assert 5 <= start < 200
        for saved, part in ((first, slice(0, start)), (second, slice(start, None))):
            expected = saved.log_probs(request, result.ids)[part]
            given = torch.tensor(result.log_probs)[part]
            torch.testing.assert_close(given, expected, atol=TOLERANCE, rtol=0)


def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(engine, first, tmp_path):
    good = first.model.state_dict()
    name = "model.layers.1.mlp.up_proj.weight"
    lacking = {key: value for key, value in good.items() if key != name}
    version = engine.weight_version
    with pytest.raises(ConfigError, match=f"1 weights of the model are missing.*{name}"):
        engine.update_weights(lacking)
    with pytest.raises(ConfigError, match=f"no weight 'module.{name}'. Did you mean '{name}'"):
        engine.update_weights({f"module.{name}": good[name], **good})
    with pytest.raises(ConfigError, match=rf"{name}' got the shape \(3,\)"):
        engine.update_weights({**good, name: torch.zeros(3)})
    with pytest.raises(ConfigError, match="no safetensors files"):
        engine.update_weights(tmp_path)
    save_file({name: good[name]}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(ConfigError, match="weights of the model are missing"):
        engine.update_weights(tmp_path)
    with pytest.raises(ConfigError, match="copy of the weights of its own"):
        engine.update_weights(None)
    assert engine.weight_version == version
    check(engine, first, make_requests(3, 20))
