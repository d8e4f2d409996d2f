"""Faster forms of the local engine, equal to the plain ones up to rounding.

- `fused_forward.py`, `fused_linear.py`: a fused forward for models of Llama's architecture.
- `cpu_attention.py`: attention on a CPU, sequences of similar length in one batch.
- `cpu_decode.py`: several decode steps on a CPU with one plan.
- `cuda_graphs.py`, `kernels.py`: several decode steps on a GPU as a captured graph; Triton kernels.

`TURNWISE_PLAIN=1` leaves them out; `bench/plain.py` measures what they gain.
"""
