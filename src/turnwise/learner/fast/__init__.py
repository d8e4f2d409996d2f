"""Faster forms of what the learner computes, equal to the plain ones up to rounding.

- `packed_attention.py`: episodes laid end to end without padding; a shared prefix is computed once.
- `log_probs.py`: log-probs of chosen tokens without ever holding [tokens x vocabulary];
  `log_prob_kernels.py`: the same on a GPU, in one pass over the logits.
- `modules.py`: RMS norms as one kernel on a GPU; gated MLPs that save less for the backward.

`TURNWISE_PLAIN=1` disables them; `bench/plain.py` measures what they gain.
"""
