"""Learners that split the tokens of episodes compute what one learner computes."""

import pytest

from inference.tiny_models import make_model
from scale.children import run_learners
from turnwise import ConfigError
from turnwise.learner import PolicyValueModel
from turnwise.learner.workers import Context


@pytest.mark.parametrize("world", [2, 4])
def test_learners_that_split_episodes_do_what_one_does(tmp_path, world):
    run_learners("context_child.py", world, tmp_path)


def test_heads_that_cannot_be_divided_are_an_error():
    with pytest.raises(ConfigError, match="got 3, and LlamaForCausalLM has 4 attention heads"):
        PolicyValueModel(make_model("llama"), None).split_over(Context(3))
