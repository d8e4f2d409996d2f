"""A faster form of encoding, with the same results as the plain one.

- `tokenizer_core.py`: direct calls into the `tokenizers` library.

`TURNWISE_PLAIN=1` leaves it out; `bench/plain.py` measures what it gains.
"""
