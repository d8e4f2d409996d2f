"""Random episodes of several turns, and small models to learn from them."""

import dataclasses

import torch

from inference.tiny_models import VOCABULARY, make_model
from turnwise.learner import LearnerOptions, PolicyValueModel, PPOBatch


def random_batch(num_rows=6, width=14, seed=0):
    """Rows of different lengths: a prompt, then sampled tokens with observations in between."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (num_rows, width), generator=generator)
    lengths = torch.randint(4, width + 1, (num_rows,), generator=generator)
    lengths[0] = width
    present = torch.arange(width) < lengths[:, None]
    sampled = (torch.rand(num_rows, width, generator=generator) < 0.6) & present
    sampled[:, 0] = False
    sampled[:, 2] = True
    return PPOBatch(ids, sampled, present)


def noise(batch, scale=1.0, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(batch.input_ids.shape, generator=generator, dtype=torch.float64)


def with_targets(batch, learner, seed=1):
    """All that an update can need; the old policy is a little away from the learner's."""
    scores = learner.score(batch)
    log_probs = scores.log_probs.double()
    return dataclasses.replace(
        batch,
        sampler_log_probs=log_probs + noise(batch, 0.3, seed),
        advantages=noise(batch, 1.0, seed + 1),
        returns=noise(batch, 1.0, seed + 2),
        values=noise(batch, 0.3, seed + 3),
        ref_log_probs=log_probs + noise(batch, 0.5, seed + 4),
    )


ALL_TERMS = LearnerOptions(
    learning_rate=1e-3, entropy_coef=0.02, kl_loss_coef=0.1, weight_decay=0.01, value_coef=0.7
)


def double_model(family="gpt2", critic="shared", **options):
    """In float64, so that equality to 1e-6 says something about the code, not about rounding."""
    model = PolicyValueModel(make_model(family).double(), critic, **options)
    if model.value_head is not None:  # zeros would hide the trunk's part of its gradient
        torch.manual_seed(3)
        torch.nn.init.normal_(model.value_head.weight, std=0.3)
    return model


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def largest_difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)
