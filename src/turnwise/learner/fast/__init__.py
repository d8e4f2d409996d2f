"""What makes an update fast: episodes end to end, and kernels for a GPU.

- `packed_attention.py`: episodes laid end to end without padding; a shared prefix is computed once.
- `modules.py`: the modules of a model that have kernels: gated MLPs, RMS norms, rotary embeddings.
- `kernels.py` loads Triton kernels where they compute what torch does; `*_kernels.py` have them.
"""
