"""Learners that share a model (FSDP2) and split episodes learn what one learner does."""

import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from inference.tiny_models import make_model
from scale.children import run_learners
from turnwise import ConfigError
from turnwise.learner import PolicyValueModel
from turnwise.learner.sharding import join_shards, split_shards
from turnwise.learner.workers import Context
from turnwise.scale.ray.transfer import lazy_tensors, to_arrays


@pytest.mark.parametrize("world", [2, 4])
def test_learners_that_share_a_model_do_what_one_does(tmp_path, world):
    run_learners("sharded_child.py", world, tmp_path)


def test_heads_that_cannot_be_divided_are_an_error():
    with pytest.raises(ConfigError, match="got 3: LlamaForCausalLM has 4 attention heads"):
        PolicyValueModel(make_model("llama"), None).split_over(Context(3))


def sent(tensors):
    """Once through the object store, which keeps the bytes apart from the rest."""
    buffers = []
    data = pickle.dumps(to_arrays(tensors), protocol=5, buffer_callback=buffers.append)
    return dict(
        lazy_tensors(pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers]))
    )


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=4), st.integers(1, 5))
def test_parts_are_put_together_again(shapes, num_parts):
    tensors = {str(n): torch.randn(shape) for n, shape in enumerate(shapes)}
    parts = [sent(part) for part in split_shards(tensors, num_parts)]
    assert len(parts) == num_parts
    whole = join_shards(parts)
    assert whole.keys() == tensors.keys()
    assert all(torch.equal(whole[name], tensors[name]) for name in tensors)
