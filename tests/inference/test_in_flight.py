"""Weight updates while turns are sampled: a token has the log-prob of the weights that drew it."""

import asyncio
import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from inference.tiny_models import make_model, plain_log_probs
from turnwise.inference import GenerationRequest
from turnwise.inference.local import LocalEngine
from turnwise.inference.transformers import TransformersEngine

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
NUM_TOKENS = 40


class Halts:
    """A tokenizer whose decoding halts the engine at some tokens, until the test lets it go on."""

    eos_token_id = pad_token_id = None

    def __init__(self, *at):
        self.at = at
        self.halted, self.may_go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.num_seen = 0

    def decode(self, ids, **_):
        self.num_seen += 1  # once for each token, since a stop string is looked for
        if self.num_seen in self.at:
            self.halted.release()
            self.may_go_on.acquire()
        return ""


def changed(model, seed):
    """Other weights of the same shapes."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
    }


def sample_through_updates(make_engine, model, halts, weights, in_flight):
    """Samples one turn, in which the engine takes new weights at each halt."""
    engine = make_engine(model, halts)
    engine.in_flight = in_flight
    request = GenerationRequest(PROMPT, NUM_TOKENS, stop_strings=("never",), seed=5, session="a")
    with engine, ThreadPoolExecutor() as pool:
        turn = pool.submit(asyncio.run, engine.sample(request))
        for new in weights:
            halts.halted.acquire()
            update = pool.submit(engine.update_weights, new)
            while engine._arrivals.empty() and not update.done():
                time.sleep(0.001)  # until the update waits for the engine
            halts.may_go_on.release()
            update.result()
        return request, turn.result()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_recomputed_caches_give_the_log_probs_of_the_newest_weights(name):
    model = make_model(name)
    models = [copy.deepcopy(model) for _ in range(3)]
    weights = [changed(model, 1), changed(model, 2)]
    for other, new in zip(models[1:], weights, strict=True):
        other.load_state_dict(new)
    request, result = sample_through_updates(LocalEngine, model, Halts(7, 21), weights, "recompute")
    assert len(result.ids) == NUM_TOKENS
    assert result.weight_version == 0
    (first, _), (second, _) = result.later_versions
    assert [version for _, version in result.later_versions] == [1, 2]
    assert 7 <= first < second <= NUM_TOKENS
    spans = ((0, first), (first, second), (second, NUM_TOKENS))
    for other, (start, end) in zip(models, spans, strict=True):
        expected = plain_log_probs(other, request, result.ids)[start:end]
        torch.testing.assert_close(torch.tensor(result.log_probs[start:end]), expected)


def test_kept_caches_are_those_of_the_weights_that_computed_them():
    model = make_model()
    old, new = copy.deepcopy(model), copy.deepcopy(model)
    weights = changed(model, 1)
    new.load_state_dict(weights)
    request, result = sample_through_updates(LocalEngine, model, Halts(7), [weights], "keep")
    ((first, version),) = result.later_versions
    assert version == 1
    before = plain_log_probs(old, request, result.ids)
    torch.testing.assert_close(torch.tensor(result.log_probs[:first]), before[:first])
    # The old model computed all tokens but the last one of those that it sampled.
    ids = torch.tensor([[*PROMPT, *result.ids]])
    num_old = len(PROMPT) + first - 1
    with torch.no_grad():
        cache = old(ids[:, :num_old], use_cache=True).past_key_values
        logits = new(ids[:, num_old:-1], past_key_values=cache).logits[0]
    after = torch.log_softmax(logits, -1).gather(1, ids[0, num_old + 1 :, None]).squeeze(1)
    torch.testing.assert_close(torch.tensor(result.log_probs[first:]), after)
    assert not torch.allclose(after, plain_log_probs(new, request, result.ids)[first:])


@pytest.mark.parametrize("make_engine", [LocalEngine, TransformersEngine])
def test_otherwise_an_update_waits_for_the_end_of_the_turn(make_engine):
    model = make_model()
    old, weights = copy.deepcopy(model), [changed(model, 1)]
    request, result = sample_through_updates(make_engine, model, Halts(7), weights, None)
    assert (result.weight_version, result.later_versions) == (0, ())
    expected = plain_log_probs(old, request, result.ids)
    torch.testing.assert_close(torch.tensor(result.log_probs), expected)


def test_a_new_conversation_never_starts_from_the_cache_of_older_weights():
    model = make_model()
    weights = changed(model, 1)
    new = copy.deepcopy(model)
    new.load_state_dict(weights)
    halts = Halts(7)
    engine = LocalEngine(model, halts)
    engine.in_flight = "keep"
    long = GenerationRequest(PROMPT, NUM_TOKENS, stop_strings=("never",), seed=5, session="a")
    short = GenerationRequest(PROMPT, 5, seed=6, session="b")
    with engine, ThreadPoolExecutor() as pool:
        turn = pool.submit(asyncio.run, engine.sample(long))
        halts.halted.acquire()
        update = pool.submit(engine.update_weights, weights)
        halts.may_go_on.release()
        update.result()
        result = asyncio.run(engine.sample(short))  # the same prompt, which was in the cache
        turn.result()
    expected = plain_log_probs(new, short, result.ids)
    torch.testing.assert_close(torch.tensor(result.log_probs), expected)
    assert result.weight_version == 1


def test_a_paused_engine_computes_nothing():
    halts = Halts()
    engine = LocalEngine(make_model(), halts)
    request = GenerationRequest(PROMPT, 100, stop_strings=("never",))
    with engine, ThreadPoolExecutor() as pool:
        engine.pause()
        engine.pause()  # before each step of an update
        turn = pool.submit(asyncio.run, engine.sample(request))
        asyncio.run(engine.score(PROMPT, 1))  # tasks of its thread still run
        while not engine._waiting:
            time.sleep(0.001)
        assert halts.num_seen == 0
        engine.update_weights(None)
        assert len(turn.result().ids) == 100
        assert turn.result().weight_version == 1
    with pytest.raises(RuntimeError, match="closed"):
        engine.pause()
