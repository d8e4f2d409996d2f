"""Supervised learning as an update: the batch and the options that make it a cross-entropy loss."""

from __future__ import annotations

import dataclasses

import torch

from turnwise.learner.batch import PPOBatch
from turnwise.learner.options import LearnerOptions


def imitation_batch(batch: PPOBatch) -> PPOBatch:
    """Return the same tokens with advantages of one."""
    ones = torch.ones(batch.input_ids.shape)
    return PPOBatch(
        batch.input_ids,
        batch.response_mask,
        batch.attention_mask,
        old_log_probs=torch.zeros_like(ones),
        advantages=ones,
    )


def imitation_options(options: LearnerOptions, learning_rate: float | None) -> LearnerOptions:
    """Return options for −log π, a mean over tokens; a `learning_rate` of its own is constant."""
    found = dataclasses.replace(
        options,
        policy_loss="gpg",
        policy_loss_options={},
        kl_loss_coef=0.0,
        entropy_coef=0.0,
        target_kl=None,
        update_epochs=1,
    )
    if learning_rate is None:
        return found
    return dataclasses.replace(
        found, learning_rate=learning_rate, lr_schedule="constant", warmup_steps=0
    )
