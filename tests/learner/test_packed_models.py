"""Which models compute episodes packed end to end: those whose tokens meet in attention alone."""

import pytest
import torch
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from inference.zoo import REFUSED, SUPPORTED, VOCAB_SIZE, make
from turnwise.learner import PolicyValueModel

MIXING = [
    *("mamba", "jamba", "falcon-h1", "recurrent-gemma", "lfm2", "minimax"),
    *("qwen3-next", "qwen3.5"),
]
"""State or a convolution carries tokens along the sequence."""
OWN_ATTENTION = ["gpt-neo", "bloom", "gptj", "llama4"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def fresh_model(name, dtype=torch.float32):
    """As it is initialised: what flows from one episode into the next has a small effect."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(REFUSED[name][0]()).to(dtype).eval()


def log_probs(model, episodes):
    """The log-probs of all tokens but the first two of each episode, computed together."""
    width = max(map(len, episodes))
    ids = torch.zeros(len(episodes), width, dtype=torch.long)
    for row, episode in enumerate(episodes):
        ids[row, : len(episode)] = episode
    present = torch.arange(width) < torch.tensor([[len(episode)] for episode in episodes])
    sampled = present & (torch.arange(width) > 1)
    return model(ids, present, sampled).log_probs.detach()


def random_episodes(*lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator) for length in lengths]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*MIXING, *OWN_ATTENTION])
def test_nothing_flows_from_one_episode_into_another(name, dtype):
    if (name, dtype) == ("mamba", "bfloat16"):
        pytest.skip("transformers' own forward of it fails on a CPU")
    model = PolicyValueModel(fresh_model(name, DTYPES[dtype]), None)
    assert model.layout == "padded"
    assert not model.shares_prefixes
    before, watched, after = random_episodes(9, 12, 7)
    changed_before, changed_after = random_episodes(9, 7, seed=1)
    expected = log_probs(model, [before, watched, after])[1]
    got = log_probs(model, [changed_before, watched, changed_after])[1]
    assert torch.equal(got, expected)


@pytest.mark.parametrize("name", [*MIXING, *OWN_ATTENTION])
def test_padded_episodes_have_the_log_probs_of_each_alone(name):
    policy = make(REFUSED[name][0]())
    episodes = random_episodes(9, 20, 7)
    got = log_probs(PolicyValueModel(policy, None), episodes)
    for row, ids in enumerate(episodes):
        with torch.no_grad():
            every = policy(ids[None], use_cache=False).logits[0, 1:-1].log_softmax(-1)
        expected = every.gather(1, ids[2:, None]).squeeze(1)
        torch.testing.assert_close(got[row, 2 : len(ids)], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SUPPORTED)
def test_models_that_only_attend_are_packed_and_have_the_same_log_probs(name):
    policy = make(SUPPORTED[name]())
    first, second = random_episodes(25, 9)
    episodes = [first, second, torch.cat([first[:2], second])]  # two with the same prompt
    packed, padded = (PolicyValueModel(policy, None, layout=kind) for kind in (None, "padded"))
    assert packed.layout == "packed"
    assert packed.shares_prefixes
    torch.testing.assert_close(
        log_probs(packed, episodes), log_probs(padded, episodes), rtol=1e-4, atol=2e-4
    )


class ShiftedLlama(LlamaForCausalLM):
    """A model of the user's own: each token sees a trace of the one before it in the MLP."""

    def __init__(self, config, strength):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp.register_forward_hook(
                lambda _module, _inputs, x: x + strength * pad(x, (0, 0, 1, 0))[:, :-1]
            )


@pytest.mark.parametrize("strength", [0.5, 1e-6])
def test_an_unknown_way_between_tokens_is_noticed_however_small_its_effect_is(strength):
    model = ShiftedLlama(SUPPORTED["llama, linear rope"](), strength).eval()
    assert PolicyValueModel(model, None).layout == "padded"
