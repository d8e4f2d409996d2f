"""Sliding windows, softcaps, sinks and layers of several kinds: as a plain forward has them."""

import copy
import logging

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from inference.tiny_models import SHAPE, VOCABULARY
from turnwise.learner import PolicyValueModel
from turnwise.learner.packing import make_packs

WINDOW = 4
TYPES = ["sliding_attention", "full_attention"]
CONFIGS = {
    "mistral": MistralConfig(**SHAPE, sliding_window=WINDOW),
    "qwen2": Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": Qwen3Config(
        **SHAPE, head_dim=8, use_sliding_window=True, sliding_window=WINDOW, layer_types=TYPES
    ),
    "gemma2": Gemma2Config(
        **SHAPE, head_dim=8, sliding_window=WINDOW, layer_types=TYPES, attn_logit_softcapping=2.0
    ),
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=WINDOW, layer_types=TYPES),
    "gpt-oss": GptOssConfig(
        **SHAPE,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=TYPES,
        num_local_experts=2,
        num_experts_per_tok=1,
    ),
}
PACKED = {"mistral", "qwen2", "qwen3", "gemma3"}


def windowed_model(name):
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[name])
    config._attn_implementation = "eager"  # the one that knows softcaps and sinks
    model = AutoModelForCausalLM.from_config(config).eval()
    if name != "gpt-oss":  # its experts take no float64
        model = model.double()
    with torch.no_grad():
        for label, parameter in model.named_parameters():
            if parameter.dim() > 1 or "sinks" in label:
                parameter.normal_(std=0.3)
    return model


def plain_log_probs(model, ids, sampled):
    logits = model(ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
    chosen = logits.gather(1, ids[1:, None]).squeeze(1)
    return torch.where(sampled[1:], chosen, 0.0)


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_and_gradients_past_the_window(name):
    """Packed with others, behind a shared opening that is longer than the window, or alone."""
    generator = torch.Generator().manual_seed(1)
    width, opening = 30, 9
    ids = torch.randint(3, VOCABULARY, (4, width), generator=generator)
    ids[1:3, :opening] = ids[0, :opening]
    present = torch.arange(width) < torch.tensor([30, 21, 27, 12])[:, None]
    sampled = present & (torch.rand(ids.shape, generator=generator) < 0.7)
    sampled[:, :opening] = False
    sampled[:, opening] = True

    expected_model = windowed_model(name)
    total, expected = 0.0, torch.zeros(ids.shape, dtype=torch.float64)
    for row in range(len(ids)):
        length = int(present[row].sum())
        found = plain_log_probs(expected_model, ids[row, :length], sampled[row, :length])
        expected[row, 1:length] = found.detach()
        total = total + (found * torch.arange(1, length)).sum()
    total.backward()

    model = windowed_model(name)
    learner = PolicyValueModel(model, None)
    assert learner.layout == ("packed" if name in PACKED else "padded")
    shared = ids if learner.shares_prefixes else None
    packs = make_packs(present, sampled, torch.arange(4), 80, shared)
    got = torch.zeros_like(expected)
    for pack in packs:
        log_probs = learner.forward_pack(ids, pack).log_probs
        got[pack.rows] = log_probs.detach().double()
        (log_probs * torch.arange(width)).sum().backward()
    # Eager attention takes its softmax in float32.
    assert float((got - expected).abs().max()) < 1e-4
    for (label, ours), (_, theirs) in zip(
        model.named_parameters(), expected_model.named_parameters(), strict=True
    ):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-3, atol=1e-2), label
    # The model that is trained keeps its own window.
    assert model.config.sliding_window == WINDOW


def test_a_layout_that_does_not_fit_is_reported_with_the_reason(caplog):
    with caplog.at_level(logging.WARNING, "turnwise"):
        PolicyValueModel(windowed_model("gemma2"), None)
    (record,) = [r for r in caplog.records if "padded" in r.getMessage()]
    assert "Gemma2ForCausalLM" in record.getMessage()
    assert "softcap" in record.getMessage()
