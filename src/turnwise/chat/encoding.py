"""Text into ids without the detours of a tokenizer's Python wrapper, where that is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PROBES = (
    "",
    " ",
    "Hello, world!",
    "  two\n\nlines ",
    "é 🍵 ﬁ \u200b",
    "<s> </s> <|im_end|> [INST]",
)


def quick_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """`tokenizer.encode` without special tokens added, by the shortest way that gives the same."""

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    core: Any = getattr(tokenizer, "_tokenizer", None)
    if type(core).__module__ != "tokenizers" or not hasattr(core, "encode_batch_fast"):
        return encode

    def encode_quickly(text: str) -> list[int]:
        # Whoever else uses the tokenizer may have told it to cut or to pad.
        if core.truncation is not None or core.padding is not None or core.encode_special_tokens:
            return encode(text)
        ids: list[int] = core.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    texts = [*_PROBES, *tokenizer.all_special_tokens]
    same = all(encode(text) == encode_quickly(text) for text in texts)
    return encode_quickly if same else encode
