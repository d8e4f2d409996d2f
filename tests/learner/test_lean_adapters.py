"""LoRA in fewer passes computes the same, forward and back."""

import pytest
import torch

from inference.tiny_models import make_model
from turnwise.learner import add_lora
from turnwise.learner.fast.adapters import lean_adapters
from turnwise.learner.fast.gated_mlp import lean_mlps
from turnwise.learner.fast.replaced import replaced_forwards
from turnwise.learner.lora import without_adapters
from turnwise.models.adapters import adapted_layers

pytest.importorskip("peft")
IDS = torch.arange(14).view(2, 7) % 50


def adapted_model(family="llama", **options):
    """A model whose adapters are not 0."""
    torch.manual_seed(1)
    model = add_lora(make_model(family).double(), rank=3, **options)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def logits_and_gradients(model):
    model.zero_grad()
    logits = model(IDS, use_cache=False).logits
    logits.square().mean().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if "lora" in n}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("use_rslora", [False, True])
def test_the_same_numbers_and_gradients(family, use_rslora):
    model = adapted_model(family, use_rslora=use_rslora)
    layers = lean_adapters(model.modules())
    mlps = lean_mlps(model.modules())
    assert len(layers) == len(adapted_layers(model))
    assert len(mlps) == model.config.num_hidden_layers
    logits, expected = logits_and_gradients(model)
    with replaced_forwards([*layers, *mlps]):
        got, found = logits_and_gradients(model)
    torch.testing.assert_close(got, logits, rtol=1e-10, atol=1e-12)
    assert len(found) == 2 * len(layers)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)


def test_adapters_that_are_switched_off_stay_off():
    model = adapted_model()
    with without_adapters(model):
        plain = model(IDS).logits
        with replaced_forwards(lean_adapters(model.modules())):
            torch.testing.assert_close(model(IDS).logits, plain, rtol=0, atol=0)
    assert not torch.allclose(model(IDS).logits, plain)


def test_a_second_adapter_counts_too():
    from peft import LoraConfig

    model = adapted_model()
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj"]), "other")
    for name, parameter in model.named_parameters():
        if "lora_B.other" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.set_adapter(["default", "other"])
    plain = model(IDS).logits
    with replaced_forwards(lean_adapters(model.modules())):
        torch.testing.assert_close(model(IDS).logits, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("change", ["dropout", "dora", "trained base", "other precision"])
def test_other_layers_are_left_alone(change):
    options = {"dropout": 0.1} if change == "dropout" else {}
    model = adapted_model(**options)
    layer = adapted_layers(model)[0]
    expected = len(adapted_layers(model)) - 1
    if change == "dropout":
        expected = 0
    elif change == "dora":
        layer.use_dora["default"] = True
    elif change == "trained base":
        layer.get_base_layer().weight.requires_grad_(True)
    else:
        layer.lora_A["default"].float()
    assert len(lean_adapters(model.modules())) == expected


def test_fewer_tensors_are_kept():
    model = adapted_model()
    parameters = {parameter.data_ptr() for parameter in model.parameters()}

    def kept():
        sizes = {}

        def note(tensor):
            if tensor.data_ptr() not in parameters:
                sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            logits = model(IDS, use_cache=False).logits
        assert logits.requires_grad
        return sum(sizes.values())

    before = kept()
    modules = list(model.modules())
    with replaced_forwards([*lean_adapters(modules), *lean_mlps(modules)]):
        after = kept()
    inner, num_layers = model.config.intermediate_size, model.config.num_hidden_layers
    assert before - after >= inner * IDS.numel() * num_layers
