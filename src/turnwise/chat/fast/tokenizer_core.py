"""Encoding and decoding by direct calls into the `tokenizers` library.

transformers' own methods around it take several times as long for a short text. Each function here
is compared with the tokenizer's own method before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_PROBES = (
    "",
    " ",
    "Hello, world!",
    "  two\n\nlines ",
    "é 🍵 ﬁ \u200b",
    "<s> </s> <|im_end|> [INST]",
)


def core_of(tokenizer: Any) -> Any:
    """Return the object of the `tokenizers` library inside; None for a tokenizer in Python."""
    core = getattr(tokenizer, "_tokenizer", None)
    return core if type(core).__module__ == "tokenizers" else None


def core_encoder(tokenizer: Any, encode: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
    """Return a faster function with the results of `encode`, or `encode` itself."""
    core = core_of(tokenizer)
    if core is None or not hasattr(core, "encode_batch_fast"):
        return encode

    def encode_by_core(text: str) -> list[int]:
        # Other users of the tokenizer may have turned on truncation or padding.
        if core.truncation is not None or core.padding is not None or core.encode_special_tokens:
            return encode(text)
        ids: list[int] = core.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    texts = [*_PROBES, *tokenizer.all_special_tokens]
    return encode_by_core if all(encode(t) == encode_by_core(t) for t in texts) else encode


def core_decoder(
    tokenizer: Any, decode: Callable[[Sequence[int]], str], skip_special_tokens: bool
) -> Callable[[Sequence[int]], str]:
    """Return a faster function with the results of `decode`, or `decode` itself."""
    core = core_of(tokenizer)
    if core is None or tokenizer.clean_up_tokenization_spaces:
        return decode

    def decode_by_core(ids: Sequence[int]) -> str:
        text: str = core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    probes = [tokenizer.encode(text, add_special_tokens=False) for text in _PROBES]
    probes += [list(tokenizer.all_special_ids), [i for ids in probes for i in ids[1:]]]
    return decode_by_core if all(decode(p) == decode_by_core(p) for p in probes) else decode
