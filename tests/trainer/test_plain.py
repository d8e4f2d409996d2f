"""A run on the plain forms alone is the run on the fast ones, up to rounding."""

import pytest
import torch

from trainer.worlds import Memory, small_trainer
from turnwise.plain_mode import plain_mode

SMALL = ("training.batch_size=8", "training.warm_start_steps=3", "training.adv_estimator=gae")
SAME = ["reward", "kl", "entropy", "policy_loss", "value_loss", "grad_norm", "num_sampled_tokens"]


def test_plain_and_fast_runs_are_the_same(tmp_path):
    outcomes = []
    for plain in (True, False):
        with plain_mode(plain):
            trainer = small_trainer(tmp_path / str(plain), Memory, *SMALL, reporter=None)
            history = trainer.fit(1, 2)
            learner = trainer.components.learner
            weights = torch.cat([p.detach().flatten() for p in learner.model.parameters()])
            outcomes.append((history, weights))
    (plain_steps, plain_weights), (fast_steps, fast_weights) = outcomes
    for ours, theirs in zip(plain_steps, fast_steps, strict=True):
        for name in SAME:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
    gap = (plain_weights - fast_weights).abs()
    assert gap.mean() < 1e-6
    # Adam makes a whole step of a gradient that is nothing but rounding.
    assert gap.max() < 1e-3
