"""Text into ids and back without a tokenizer's Python wrapper, where that gives the same."""

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


def stands_alone(tokenizer: Any, text: str) -> bool:
    """Whether `text` has the same tokens at the end of any other text.

    So it is if it begins with a token that is cut out before all else and looks at no neighbour.
    """
    core: Any = getattr(tokenizer, "_tokenizer", None)
    if type(core).__module__ != "tokenizers" or core.encode_special_tokens:
        return False
    ids = tokenizer.encode(text, add_special_tokens=False)
    first = core.get_added_tokens_decoder().get(ids[0]) if ids else None
    if first is None or not text.startswith(first.content):
        return False
    if first.lstrip or first.single_word or first.normalized:
        return False
    return all(
        tokenizer.encode(probe + text, add_special_tokens=False)
        == tokenizer.encode(probe, add_special_tokens=False) + ids
        for probe in _PROBES
    )


def quick_decoder(
    tokenizer: Any, skip_special_tokens: bool = True
) -> Callable[[Sequence[int]], str]:
    """`tokenizer.decode` by the shortest way that gives the same."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    core: Any = getattr(tokenizer, "_tokenizer", None)
    if type(core).__module__ != "tokenizers" or tokenizer.clean_up_tokenization_spaces:
        return decode

    def decode_quickly(ids: Sequence[int]) -> str:
        text: str = core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    probes = [tokenizer.encode(text, add_special_tokens=False) for text in _PROBES]
    probes += [list(tokenizer.all_special_ids), [i for ids in probes for i in ids[1:]]]
    same = all(decode(ids) == decode_quickly(ids) for ids in probes)
    return decode_quickly if same else decode
