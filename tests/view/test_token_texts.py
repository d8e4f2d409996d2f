"""The texts of tokens, joined, are the text of the stream."""

from hypothesis import example, given, strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from turnwise.view.payloads import TokenTexts, joined_bytes
from view.runs_to_view import TOKENIZER


def texts_of(tokenizer, folder):
    path = folder / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    return TokenTexts(path)


@given(st.lists(st.binary(max_size=4), max_size=12))
@example([b"\xf0", b"\x9f", b"A"])
@example([b"\xe2\x82", b"\xe2\x82\xac"])
@example([b"\xff\xfe"])
@example([bytes([byte]) for byte in "aé数😀b".encode()])
def test_any_bytes_are_shown_and_none_twice(tokens):
    texts = joined_bytes(tokens)
    assert len(texts) == len(tokens)
    expected = b"".join(tokens).decode("utf-8", "backslashreplace")
    assert "".join(texts) == expected


def test_a_tokenizer_of_bytes(tmp_path):
    texts = texts_of(TOKENIZER.backend_tokenizer, tmp_path)
    words = "<|im_start|>user\nÄ 😀<|im_end|>"
    ids = TOKENIZER.encode(words)
    found = texts.texts(ids)
    assert "".join(found) == words
    assert found[0] == "<|im_start|>"
    assert texts.texts([99_999]) == ["\\xff"]


def test_a_tokenizer_of_pieces_with_byte_fallback(tmp_path):
    """As Llama 2's: a mark for spaces, and tokens that stand for one byte."""
    pieces = ["<unk>", "▁Hello", "▁world", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    core = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, []))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    texts = texts_of(core, tmp_path)
    euro = [4 + byte for byte in "€".encode()]
    found = texts.texts([1, 2, *euro, 2])
    assert found == [" Hello", " world", "", "", "€", " world"]
    assert texts.texts([1, 4 + 0xFF, 2]) == [" Hello", "\\xff", " world"]


def test_a_tokenizer_of_merged_bytes(tmp_path):
    """As GPT-2's: tokens of several bytes, a character between two of them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: n for n, symbol in enumerate([*alphabet, "ĠÃ"])}
    core = Tokenizer(models.BPE(vocabulary, [("Ġ", "Ã")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    texts = texts_of(core, tmp_path)
    ids = core.encode("a é").ids
    assert texts.texts(ids) == ["a", " ", "é"]  # the space stands before its own half of é


def test_a_file_that_is_no_tokenizer(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    texts = TokenTexts(path)
    assert texts.texts([1]) == ["⟨1⟩"]
    assert "cannot be read" in texts.note
