"""In half precision the learner computes with the merged weights that engines sample with."""

import copy

import pytest
import torch

from inference.tiny_models import make_model
from learner.episodes import random_batch
from turnwise.learner import Learner, PolicyValueModel, add_lora, merged_weights
from turnwise.learner.lora import merge_lora, without_adapters

pytest.importorskip("peft")


def adapted_model(family="llama", dtype=torch.bfloat16, **options):
    """A model whose adapters are not 0, so small that nearest rounding would lose most of them."""
    torch.manual_seed(1)
    model = add_lora(make_model(family).to(dtype), rank=3, **options)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=3e-3)
    return model


def gradients(model, batch):
    outputs = PolicyValueModel(model, None)(batch.input_ids, batch.attention_mask)
    outputs["log_probs"].float().sum().backward()
    return {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("use_rslora", [False, True])
def test_scores_are_those_of_the_merged_model(family, use_rslora):
    model, batch = adapted_model(family, use_rslora=use_rslora), random_batch()
    learner = Learner(PolicyValueModel(model, None))
    ours = learner.score(batch).log_probs
    with without_adapters(model):
        assert not torch.equal(ours, learner.score(batch).log_probs)
    merged = make_model(family).bfloat16()
    merged.load_state_dict(merged_weights(model))
    assert torch.equal(ours, Learner(PolicyValueModel(merged, None)).score(batch).log_probs)
    exported = merge_lora(model).requires_grad_(True)
    assert torch.equal(ours, Learner(PolicyValueModel(exported, None)).score(batch).log_probs)


def test_gradients_reach_the_adapters_as_without_merging():
    batch, model = random_batch(), adapted_model()
    expected = gradients(copy.deepcopy(model).double(), batch)
    ours = gradients(model, batch)
    assert ours.keys() == expected.keys()
    assert all("lora" in name for name in ours)
    for name, gradient in expected.items():
        gap = (ours[name] - gradient).norm() / gradient.norm()
        assert gap < 0.1, name


@pytest.mark.parametrize("change", ["dropout", "float32", "second adapter"])
def test_other_adapters_are_computed_as_peft_does(change):
    if change == "second adapter":
        from peft import LoraConfig

        model = adapted_model()
        model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"]), "other")
        model.set_adapter(["default", "other"])
    elif change == "dropout":
        model = adapted_model(dropout=0.1)
    else:
        model = adapted_model(dtype=torch.float32)
    batch = random_batch()
    policy = PolicyValueModel(model, None)
    merging = Learner(policy).score(batch).log_probs
    policy.trunk.merges_adapters = False
    unmerged = Learner(policy).score(batch).log_probs
    if change == "second adapter":  # on q_proj alone
        assert not torch.equal(merging, unmerged)
    else:
        assert torch.equal(merging, unmerged)
