"""The model: packed episodes give what each gives alone, in every family."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GraniteConfig, LlamaForCausalLM

from inference.tiny_models import CONFIGS, SHAPE, make_model
from learner.episodes import double_model, random_batch, weights
from turnwise.learner import PolicyValueModel, UnsupportedModel
from turnwise.learner.trunk import Trunk


def made(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.mul_(4.0)
    return model.eval()


def plain_outputs(policy, batch, temperature=1.0):
    """Each episode by itself, through the model's own forward."""
    log_probs, entropy = (torch.zeros(batch.input_ids.shape) for _ in range(2))
    for row, mask in enumerate(batch.response_mask):
        present = batch.attention_mask[row]
        ids = batch.input_ids[row][present]
        with torch.no_grad():
            logits = policy(ids[None]).logits[0, :-1].float() / temperature
        every = logits.log_softmax(-1)
        chosen = every.gather(1, ids[1:, None]).squeeze(1)
        columns = present.nonzero().squeeze(1)[1:]
        log_probs[row, columns] = torch.where(mask[columns], chosen, 0.0)
        spread = -(every.exp() * every).sum(-1)
        entropy[row, columns] = torch.where(mask[columns], spread, 0.0)
    return log_probs, entropy


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("family", CONFIGS)
def test_log_probs_and_entropy_are_those_of_each_episode_alone(family, layout):
    model = PolicyValueModel(make_model(family), None, layout=layout, temperature=0.8)
    batch = random_batch()
    batch.attention_mask[3] = batch.attention_mask[3].flip(0)  # padded on the left
    batch.response_mask[3] = batch.response_mask[3].flip(0)
    first = int(batch.attention_mask[3].int().argmax())
    batch.response_mask[3, first] = False
    outputs = model(batch.input_ids, batch.attention_mask, batch.response_mask)
    expected = plain_outputs(model.policy, batch, temperature=0.8)
    torch.testing.assert_close(outputs.log_probs.detach(), expected[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outputs.entropy.detach(), expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=5.0), "padded"),
        (GraniteConfig(**SHAPE, logits_scaling=3.0), "packed"),
        (GraniteConfig(**SHAPE, logits_scaling=1.00001), "packed"),
    ],
    ids=["gemma2", "granite", "granite, nearly 1"],
)
def test_models_that_bound_or_scale_their_numbers_are_computed_as_they_are(config, layout):
    policy = made(config)
    model = PolicyValueModel(policy, None)
    assert model.layout == layout
    batch = random_batch()
    outputs = model(batch.input_ids, batch.attention_mask, batch.response_mask)
    expected, _ = plain_outputs(policy, batch)
    torch.testing.assert_close(outputs.log_probs.detach(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scaling", [1.0, 1.008, 3.0])
def test_the_scale_of_logits_is_exact_in_half_precision(scaling):
    """To measure it by logits that are rounded would give another one."""
    policy = made(GraniteConfig(**SHAPE, logits_scaling=scaling)).bfloat16()
    assert Trunk(policy).head.scale == pytest.approx(1 / scaling, rel=1e-12)


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused():
    class Squashed(LlamaForCausalLM):
        def forward(self, *arguments, **named):
            output = super().forward(*arguments, **named)
            output.logits = 50 * torch.tanh(output.logits / 50)
            return output

    with pytest.raises(UnsupportedModel, match="otherwise than by a factor or a softcap"):
        PolicyValueModel(Squashed(CONFIGS["llama"]), None)


def test_a_model_without_a_body_is_refused():
    model = make_model("llama")
    del model.model
    with pytest.raises(UnsupportedModel, match="has no decoder"):
        PolicyValueModel(model, None)


def test_values_are_zero_at_first_and_of_the_state_before_the_token():
    model = PolicyValueModel(make_model("llama"))
    batch = random_batch()
    assert not model(batch.input_ids, batch.attention_mask, batch.response_mask).values.any()
    model = double_model("llama")
    before = model(batch.input_ids, batch.attention_mask, batch.response_mask)
    ids = batch.input_ids.clone()
    row, column = 0, int(batch.response_mask[0].nonzero()[-1])
    ids[row, column] = (ids[row, column] + 1) % 97
    after = model(ids, batch.attention_mask, batch.response_mask)
    assert after.values[row, column] == before.values[row, column]
    assert after.log_probs[row, column] != before.log_probs[row, column]
    assert after.last_values[row] != before.last_values[row]


def test_a_separate_critic_leaves_the_policy_alone():
    model = double_model("llama", critic="separate")
    batch = random_batch()
    model(batch.input_ids, batch.attention_mask, batch.response_mask).values.sum().backward()
    assert all(p.grad is None for p in model.policy.parameters())
    assert any(p.grad is not None for p in model.critic.parameters())
    shared = double_model("llama", critic=None)
    assert weights(shared.policy).keys() == weights(model.policy).keys()


def test_dropout_stays_off():
    model = double_model("gpt2")  # has dropout by default
    model.train()
    ids = random_batch().input_ids
    torch.testing.assert_close(model(ids).log_probs, model(ids).log_probs, rtol=0, atol=0)
