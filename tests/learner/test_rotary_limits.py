"""Rotary embeddings that change with the length: engine and learner use one set of frequencies."""

import pytest
import torch
from transformers import Gemma3TextConfig

from inference.zoo import _BASE, _MIXED, SUPPORTED, make
from learner.test_packed_models import log_probs, random_episodes
from turnwise import ConfigError
from turnwise.inference.local import LocalEngine
from turnwise.learner import PolicyValueModel

LIMITS = {"phi3, longrope": 80, "llama, dynamic rope": _BASE["max_position_embeddings"]}


def nested_rope(**full_attention):
    """A model whose rotary parameters are given for each type of layer."""
    default = {"rope_type": "default", "rope_theta": 1e4}
    rope = {"sliding_attention": default, "full_attention": {"rope_theta": 1e4, **full_attention}}
    return make(Gemma3TextConfig(**_MIXED, head_dim=16, rope_parameters=rope))


@pytest.mark.parametrize("name", LIMITS)
def test_log_probs_do_not_depend_on_the_length_of_the_others(name):
    model, limit = PolicyValueModel(make(SUPPORTED[name]()), None), LIMITS[name]
    short, long = random_episodes(30, limit)
    alone = log_probs(model, [short])[0]
    together = log_probs(model, [short, long])[0, :30]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LIMITS)
def test_an_episode_beyond_the_limit_is_an_error(name):
    model, limit = PolicyValueModel(make(SUPPORTED[name]()), None), LIMITS[name]
    short, long = random_episodes(30, limit + 1)
    with pytest.raises(ConfigError, match=rf"has {limit + 1} tokens.*limits\.max_tokens={limit}\."):
        log_probs(model, [short, long])


def test_parameters_of_one_type_of_layer_are_read():
    longrope = {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8, "factor": 2.0}
    models = {
        40: nested_rope(rope_type="longrope", original_max_position_embeddings=40, **longrope),
        128: nested_rope(rope_type="dynamic", factor=2.0),
    }
    for limit, model in models.items():
        with LocalEngine(model) as engine:
            assert engine.context_length == limit
        (long,) = random_episodes(limit + 1)
        with pytest.raises(ConfigError, match=f"up to {limit}"):
            log_probs(PolicyValueModel(model, None), [long])
