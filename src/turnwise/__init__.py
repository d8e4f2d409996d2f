"""turnwise: train language-model agents by reinforcement learning in your own environments."""

__version__ = "0.1.0"
