"""Episodes that begin with the same tokens compute them once, and nothing changes but time."""

import dataclasses
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st

from inference.tiny_models import make_model
from learner.episodes import ALL_TERMS, double_model, largest_difference, weights, with_targets
from turnwise.learner import Learner, PolicyValueModel, PPOBatch
from turnwise.learner.packing import make_packs


def grouped_batch(num_groups=3, size=3, prompt=6, width=15, seed=0, left_padded=False):
    """Groups whose members share a prompt and go on in their own ways, with observations."""
    generator = torch.Generator().manual_seed(seed)
    rows = num_groups * size
    ids = torch.randint(0, 30, (rows, width), generator=generator)
    for group in range(num_groups):
        ids[group * size : (group + 1) * size, :prompt] = ids[group * size, :prompt].clone()
    lengths = torch.randint(prompt + 1, width + 1, (rows,), generator=generator)
    present = torch.arange(width) < lengths[:, None]
    sampled = (torch.rand(rows, width, generator=generator) < 0.6) & present
    sampled[:, :prompt] = False
    sampled[:, prompt] = True
    if left_padded:
        ids, present, sampled = ids.flip(1), present.flip(1), sampled.flip(1)
        for row in range(rows):  # the tokens in their order, at the right end
            n = int(lengths[row])
            for grid in (ids, sampled):
                grid[row, width - n :] = grid[row, width - n :].flip(0)
    return PPOBatch(ids, sampled, present)


def tree_batch(width=24):
    """Turns that were sampled alike and part later; two equal episodes, and one that ends early."""
    generator = torch.Generator().manual_seed(0)
    a, b, c = torch.randint(0, 30, (3, width), generator=generator)
    early = torch.cat([a[:9], b[9:]])
    late = torch.cat([a[:17], c[17:]])
    other = torch.cat([a[:5], c[5:]])  # the system prompt alone is the same
    ids = torch.stack([b, late, a, early, a, other, late, a])
    present = torch.arange(width) < torch.tensor([20, 24, 24, 22, 24, 18, 24, 13])[:, None]
    sampled = torch.zeros_like(present)
    sampled[:, 7:10] = sampled[:, 12:14] = sampled[:, 16:19] = True
    return PPOBatch(ids, sampled & present, present)


BATCHES = {"groups": grouped_batch, "tree": tree_batch}


def without_sharing(learner):
    learner.model.__class__ = type("Plain", (PolicyValueModel,), {"shares_prefixes": False})
    return learner


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "gemma"])
@pytest.mark.parametrize(
    "make_batch", [*BATCHES.values(), partial(grouped_batch, left_padded=True)]
)
def test_scores_are_the_same(family, make_batch):
    batch = make_batch()
    learner = Learner(double_model(family))
    if not learner.model.shares_prefixes:
        pytest.skip("this family is computed padded")
    shared = learner.score(batch)
    plain = without_sharing(learner).score(batch)
    for name in ("log_probs", "entropy", "values", "last_values"):
        torch.testing.assert_close(shared[name], plain[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("budget", [25, 8192])
@pytest.mark.parametrize("make_batch", BATCHES.values(), ids=BATCHES)
def test_the_update_is_the_same(make_batch, budget, checkpointing):
    options = dataclasses.replace(ALL_TERMS, micro_batch_tokens=budget)
    after = []
    for prepare in (lambda x: x, without_sharing):
        learner = Learner(
            double_model(gradient_checkpointing=checkpointing),
            options,
            reference=make_model("gpt2").double(),
        )
        batch = with_targets(make_batch(), learner)
        prepare(learner).update(batch)
        after.append(weights(learner.model))
    assert largest_difference(*after) < 1e-9


def test_turns_that_were_sampled_alike_are_computed_once():
    batch = tree_batch()
    every = torch.arange(len(batch))
    (pack,) = make_packs(batch.attention_mask, batch.response_mask, every, 10_000, batch.input_ids)
    # `a`, the ends of `late`, `early` and `other`, and `b`, which begins in its own way.
    assert pack.num_tokens == 24 + (24 - 17) + (22 - 9) + (18 - 5) + 20
    assert pack.num_policy_tokens == batch.num_policy_tokens


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 7), st.integers(8, 80), st.integers(0, 99)
)
def test_every_policy_token_is_predicted_by_the_one_before_it(groups, size, prompt, budget, seed):
    batch = grouped_batch(groups, size, prompt, prompt + 6, seed)
    names = torch.arange(batch.input_ids.numel()).view(batch.input_ids.shape)
    trained = []
    packs = make_packs(
        batch.attention_mask, batch.response_mask, torch.arange(len(batch)), budget, batch.input_ids
    )
    for pack in packs:
        ids = pack.take(batch.input_ids)
        for source, target, index, column in zip(
            pack.sources, pack.targets, pack.target_rows, pack.target_columns, strict=True
        ):
            row = pack.rows[index]
            assert ids[target] == batch.input_ids[row, column]
            assert ids[source] == batch.input_ids[row, column - 1]
            assert pack.positions[source] == pack.positions[target] - 1
            trained.append(int(names[row, column]))
        for row, end in zip(pack.rows.tolist(), pack.ends.tolist(), strict=True):
            assert pack.positions[end] == batch.attention_mask[row].sum() - 1
    assert sorted(trained) == names[batch.response_mask].tolist()
