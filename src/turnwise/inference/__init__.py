"""Engines that generate; for now, the sampling that those which run in this process share."""

from turnwise.inference.sampling import SamplingParams, choose_tokens, sampling_log_probs

__all__ = ["SamplingParams", "choose_tokens", "sampling_log_probs"]
