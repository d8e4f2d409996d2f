"""Norms as one kernel: only where the numbers are the same, and only inside the block."""

import pytest
import torch

from inference.tiny_models import CONFIGS, make_model
from turnwise.learner.fast.modules import fused_norms, replaced_forwards


@pytest.mark.parametrize("family", CONFIGS)
def test_a_norm_is_replaced_only_if_it_computes_the_same(family):
    model = make_model(family)
    norms = fused_norms(model.modules())
    # Gemma adds 1 to its weights, GPT-2 has another kind of norm.
    assert bool(norms) == (family not in ("gemma", "gpt2"))
    ids = torch.tensor([[5, 6, 7, 8]])
    plain = model(ids).logits
    with replaced_forwards(norms):
        fused = model(ids).logits
        assert all("forward" in vars(norm) for norm, _ in norms)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    assert not any("forward" in vars(norm) for norm, _ in norms)


def test_the_model_has_its_own_norms_again_after_an_error():
    norms = fused_norms(make_model("qwen3").modules())
    with pytest.raises(RuntimeError), replaced_forwards(norms):
        raise RuntimeError
    assert not any("forward" in vars(norm) for norm, _ in norms)
