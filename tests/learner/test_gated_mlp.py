"""MLPs that keep less compute the same, forward and back."""

import pytest
import torch

from inference.tiny_models import CONFIGS, make_model
from turnwise.learner.fast.gated_mlp import lean_mlps
from turnwise.learner.fast.replaced import replaced_forwards


def gradients(model, ids):
    model.zero_grad()
    logits = model(ids, use_cache=False).logits
    logits.square().mean().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("family", CONFIGS)
def test_the_same_numbers_and_gradients(family):
    model = make_model(family).double()
    mlps = lean_mlps(model.modules())
    # Gemma's gate is a gelu, GPT-2 has none.
    assert bool(mlps) == (family not in ("gemma", "gpt2", "wide-llama"))
    ids = torch.arange(14).view(2, 7) % 50
    logits, expected = gradients(model, ids)
    with replaced_forwards(mlps):
        assert all("forward" in vars(mlp) for mlp, _ in mlps)
        got, found = gradients(model, ids)
    assert not any("forward" in vars(mlp) for mlp, _ in mlps)
    torch.testing.assert_close(got, logits, rtol=0, atol=0)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-12)


def test_they_keep_a_good_part_less():
    model = make_model("llama")
    ids = torch.arange(60).view(2, 30) % 50

    def kept():
        sizes = {}

        def note(tensor):
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            logits = model(ids, use_cache=False).logits
        assert logits.requires_grad
        return sum(sizes.values())

    before = kept()
    with replaced_forwards(lean_mlps(model.modules())):
        after = kept()
    inner, num_layers = model.config.intermediate_size, model.config.num_hidden_layers
    assert before - after >= 2 * inner * ids.numel() * num_layers


def test_an_mlp_of_other_layers_is_left_alone():
    model = make_model("llama")
    model.model.layers[0].mlp.down_proj = torch.nn.Sequential(model.model.layers[0].mlp.down_proj)
    assert len(lean_mlps(model.modules())) == model.config.num_hidden_layers - 1
