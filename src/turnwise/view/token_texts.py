"""The text of each token, so that they give the stream's text when they are joined.

A character can be several tokens, and a model can sample bytes that are no text at all.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.bounded_files import parse_json, read_bytes
from turnwise.errors import import_extra

_MAX_BYTES = 2**27


class TokenTexts:
    """The tokenizer of a run, for reading its tokens."""

    def __init__(self, path: Path | None) -> None:
        self.note: str | None = None
        """The reason why there are no texts."""
        self._tokenizer: Any = None
        self._bytes: dict[int, bytes] = {}
        if path is None:
            self.note = (
                "The run's folder has no tokenizer.json: its tokenizer has none. Tokens are shown "
                "by their numbers."
            )
            return
        try:
            self._read(path)
        except BaseException as error:  # the file may hold anything; the rest can still be shown
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise  # Rust's panics are no `Exception`
            self.note = f"The run's tokenizer.json cannot be read: {str(error)[:200]}"

    def _read(self, path: Path) -> None:
        core = import_extra("tokenizers", "view")
        text = read_bytes(path, _MAX_BYTES).decode()
        data = parse_json(text, path.name)
        self._tokenizer = core.Tokenizer.from_str(text)
        kinds = set(_kinds(data.get("decoder")))
        as_bytes = (
            _of_alphabet if "ByteLevel" in kinds else _of_piece if "ByteFallback" in kinds else None
        )
        if as_bytes is not None:
            added = {token["id"]: token["content"] for token in data.get("added_tokens", ())}
            vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
            self._bytes = {
                number: added[number].encode() if number in added else as_bytes(token)
                for token, number in vocabulary.items()
            }

    def texts(self, ids: Sequence[int]) -> list[str] | None:
        """Return a text for each token; None if the texts are not known."""
        if self._tokenizer is None:
            return None
        if self._bytes:
            return joined_bytes([self._bytes.get(number, b"\xff") for number in ids])
        return self._streamed(ids)

    def _streamed(self, ids: Sequence[int]) -> list[str]:
        """Decode by the tokenizer's own decoder, which may use the preceding tokens."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        texts = []
        for number in ids:
            try:
                texts.append(stream.step(self._tokenizer, number) or "")
            except Exception:  # an id that the tokenizer does not know
                stream = DecodeStream(skip_special_tokens=False)
                texts.append("\ufffd")
        return texts


def joined_bytes(tokens: Sequence[bytes]) -> list[str]:
    """Return the text that each token completes; a byte that is not text as its number.

    >>> joined_bytes([b"a", "é".encode()[:1], "é".encode()[1:], bytes([255]), b"b"])
    ['a', '', 'é', '\\\\xff', 'b']
    """
    texts: list[str] = []
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    waiting: list[int] = []
    """Tokens whose bytes begin a character that is not complete."""
    for number, token in enumerate(tokens):
        texts.append("")
        for byte in token:
            try:
                text = decoder.decode(bytes([byte]))
            except UnicodeDecodeError:
                text = _broken(decoder, texts, waiting, number, byte)
            if text:
                texts[number] += text
                waiting.clear()
            elif decoder.getstate()[0]:
                waiting.append(number)
    _write_out(texts, waiting, decoder.getstate()[0])
    return texts


def _broken(
    decoder: codecs.IncrementalDecoder, texts: list[str], waiting: list[int], number: int, byte: int
) -> str:
    """Write the bytes of a character that turned out to be none, and start again at this byte."""
    begun = decoder.getstate()[0]
    decoder.reset()
    _write_out(texts, waiting, begun)
    waiting.clear()
    if not begun:
        return f"\\x{byte:02x}"
    try:
        return decoder.decode(bytes([byte]))
    except UnicodeDecodeError:
        decoder.reset()
        return f"\\x{byte:02x}"


def _write_out(texts: list[str], owners: list[int], begun: bytes) -> None:
    for owner, byte in zip(owners[-len(begun) :] if begun else [], begun, strict=False):
        texts[owner] += f"\\x{byte:02x}"


def _kinds(decoder: Any) -> Iterator[str]:
    """Yield the components of a decoder."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for inner in decoder.get("decoders") or ():
            yield from _kinds(inner)


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes: printable ones stand for
    themselves, the others for those from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _of_alphabet(token: str) -> bytes:
    """Return the bytes of a token whose characters are bytes, as in GPT-2 and Llama 3."""
    if all(character in _ALPHABET for character in token):
        return bytes(_ALPHABET[character] for character in token)
    return token.encode()


def _of_piece(token: str) -> bytes:
    """A piece of text with a mark for spaces, or one byte, as in Llama 2's.

    >>> _of_piece("▁Hello"), _of_piece("<0x0A>")
    (b' Hello', b'\\n')
    """
    if byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
        return bytes.fromhex(byte[1])
    return token.replace("▁", " ").encode()
