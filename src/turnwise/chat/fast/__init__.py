"""Faster forms of rendering and encoding, with the same results as the plain ones.

- `layouts.py`: what a template writes around message contents, rendered once and reused.
- `tokenizer_core.py`: direct calls into the `tokenizers` library.

`TURNWISE_PLAIN=1` leaves them out; `bench/plain.py` measures what they gain.
"""
