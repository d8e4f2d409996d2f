"""The learner: policy and value model, packing, log-probs, the update.

Its input is token streams: ids, the mask of sampled tokens, log-probs, advantages. It is
independent of environments.
"""

from turnwise.learner.batch import PPOBatch, on_last_token
from turnwise.learner.build import make_learner
from turnwise.learner.lora import (
    add_configured_lora,
    add_lora,
    has_adapters,
    merge_lora,
    merged_weights,
    without_adapters,
)
from turnwise.learner.model import Outputs, PolicyValueModel
from turnwise.learner.optimizer import MasterOptimizer
from turnwise.learner.options import LearnerOptions
from turnwise.learner.update import Learner
from turnwise.models.probing import UnsupportedModel

__all__ = [
    "Learner",
    "LearnerOptions",
    "MasterOptimizer",
    "Outputs",
    "PPOBatch",
    "PolicyValueModel",
    "UnsupportedModel",
    "add_configured_lora",
    "add_lora",
    "has_adapters",
    "make_learner",
    "merge_lora",
    "merged_weights",
    "on_last_token",
    "without_adapters",
]
