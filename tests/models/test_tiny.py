"""The built-in model `tiny`: the same everywhere, and able to read and write any text."""

import torch
from hypothesis import given, strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.models.tiny import make_tiny, make_tiny_tokenizer

TOKENIZER = make_tiny_tokenizer()


@given(st.text())
def test_any_text_comes_back_as_it_was(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert len(ids) <= len(text.encode())


@given(st.text(), st.text())
def test_what_follows_does_not_change_the_tokens_before_it(before, after):
    pieces = [TOKENIZER.encode(piece) for piece in (before, "é", after)]
    assert TOKENIZER.encode(f"{before}é{after}") == [i for piece in pieces for i in piece]


def test_special_tokens_are_tokens_and_not_text():
    ids = TOKENIZER.encode("a<|im_end|>")
    assert ids[1:] == [TOKENIZER.eos_token_id]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "a"
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id


def test_the_seed_decides_the_weights_and_nothing_else_is_touched():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second, other = (make_tiny(seed)[0] for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    pairs = list(zip(first.parameters(), second.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)


def test_it_is_an_ordinary_model_in_a_folder(tmp_path):
    model, tokenizer = make_tiny(seed=3)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    back = AutoModelForCausalLM.from_pretrained(tmp_path)
    words = AutoTokenizer.from_pretrained(tmp_path)
    text = "<|im_start|>user\nWie heißt du? 12<|im_end|>\n"
    ids = torch.tensor([tokenizer.encode(text)])
    assert words.encode(text) == ids[0].tolist()
    assert words.decode(ids[0]) == text
    for name in ("pad_token", "eos_token", "bos_token", "chat_template"):
        assert getattr(words, name) == getattr(tokenizer, name)
    with torch.no_grad():
        assert torch.equal(back(ids).logits, model(ids).logits)
