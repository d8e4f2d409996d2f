"""Memory: how much is computed at once, and an update that runs out of it is computed again."""

import dataclasses
import logging

import pytest
import torch

from learner.episodes import (
    ALL_TERMS,
    double_model,
    largest_difference,
    random_batch,
    weights,
    with_targets,
)
from turnwise.learner import Learner
from turnwise.learner.memory import LayerShape, plan_memory

SEVEN_BILLION = LayerShape(num_layers=28, width=3584, inner=18944)
GIB = 2**30


class OutOfMemoryAt:
    """Raises at the n-th forward, or when the gradient of its log-probs is computed."""

    def __init__(self, model, at, *, in_backward=False, times=1):
        self._forward, self._at, self._in_backward = model.forward_pack, at, in_backward
        self._left, self.num_calls = times, 0
        model.forward_pack = self

    def __call__(self, *args, **options):
        number, self.num_calls = self.num_calls, self.num_calls + 1
        outputs = self._forward(*args, **options)
        if number >= self._at and self._left:
            self._left -= 1
            if not self._in_backward:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            outputs.log_probs.register_hook(self._fail)
        return outputs

    def _fail(self, _):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def learner_and_batch(options, **model_options):
    learner = Learner(double_model("llama", **model_options), options)
    return learner, with_targets(random_batch(), learner)


OPTIONS = dataclasses.replace(ALL_TERMS, micro_batch_tokens=28)


@pytest.mark.parametrize("in_backward", [False, True])
def test_an_update_that_runs_out_of_memory_is_the_one_in_smaller_packs(in_backward, caplog):
    counter, batch = learner_and_batch(OPTIONS)
    probe = OutOfMemoryAt(counter.model, 99)
    counter.update(batch)
    assert probe.num_calls >= 2
    sizes = [pack.num_tokens for pack in counter._packs(batch, torch.arange(len(batch)))]
    small, batch = learner_and_batch(
        dataclasses.replace(OPTIONS, micro_batch_tokens=max(sizes) // 2)
    )
    expected = small.update(batch)
    for at in range(probe.num_calls):
        caplog.clear()
        learner, batch = learner_and_batch(OPTIONS)
        OutOfMemoryAt(learner.model, at, in_backward=in_backward)
        state = torch.get_rng_state()
        with caplog.at_level(logging.WARNING, "turnwise"):
            metrics = learner.update(batch)
        assert torch.equal(torch.get_rng_state(), state)
        assert metrics.pop("num_oom_retries") == 1
        assert metrics == expected
        assert largest_difference(weights(learner.model), weights(small.model)) == 0
        assert torch.equal(learner.log_probs_before_update, small.log_probs_before_update)
        assert len(caplog.messages) == 1
        assert "out of memory" in caplog.messages[0]
        # The next update is computed in the smaller packs at once.
        assert "num_oom_retries" not in learner.update(batch)


def test_an_episode_that_cannot_be_split_is_checkpointed():
    options = dataclasses.replace(OPTIONS, micro_batch_tokens=1)
    plain, batch = learner_and_batch(options)
    expected = plain.update(batch)
    learner, batch = learner_and_batch(options)
    OutOfMemoryAt(learner.model, 1)
    calls = []
    layer = learner.model.policy.model.layers[0]
    layer.input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    metrics = learner.update(batch)
    assert len(calls) == 2 + 2 * len(batch)  # two that failed, then all, and each once more
    assert metrics["policy_loss"] == pytest.approx(expected["policy_loss"])
    assert largest_difference(weights(learner.model), weights(plain.model)) < 1e-9


def test_the_second_time_is_an_error_that_says_what_helps():
    learner, batch = learner_and_batch(OPTIONS)
    before = weights(learner.model)
    OutOfMemoryAt(learner.model, 0, times=2)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        learner.update(batch)
    assert "gradient_checkpointing=true" in caught.value.__notes__[0]
    assert largest_difference(weights(learner.model), before) == 0


def test_more_memory_means_more_tokens_and_fewer_checkpointed_layers():
    plans = [
        plan_memory(size * GIB, [SEVEN_BILLION], 2, longest=8192) for size in (1, 8, 40, 80, 300)
    ]
    tokens, layers = map(list, zip(*plans, strict=True))
    assert layers == sorted(layers, reverse=True)
    assert (layers[0], layers[-1]) == (28, 0)
    assert tokens == sorted(tokens)
    for size, plan in zip((8, 40, 80), plans[1:-1], strict=True):
        assert plan[0] * SEVEN_BILLION.bytes_per_token(2, plan[1]) <= size * GIB / 2
    # Where it is set, nothing is chosen.
    assert plan_memory(40 * GIB, [SEVEN_BILLION], 2, checkpointing=False)[1] == 0
    assert plan_memory(900 * GIB, [SEVEN_BILLION], 2, checkpointing=True)[1] == 28
    assert plan_memory(-GIB, [SEVEN_BILLION], 2)[0] == 256


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_offloaded_optimiser_makes_the_same_steps_and_has_the_same_state(dtype):
    found = []
    for offload in (False, True):
        model = double_model("llama")
        model.to(dtype)
        options = dataclasses.replace(OPTIONS, offload_optimizer=offload, mini_batch_size=3)
        learner = Learner(model, options)
        batch = with_targets(random_batch(), learner)
        metrics = [learner.update(batch) for _ in range(3)]
        state = {name: tensor.clone() for name, tensor in learner.state().rest.items()}
        found.append((metrics, weights(model), state))
    (metrics, plain, state), (other_metrics, offloaded, other_state) = found
    assert other_metrics == metrics
    assert largest_difference(plain, offloaded) == 0
    assert state.keys() == other_state.keys()
    assert all(torch.equal(state[name], other_state[name]) for name in state)
