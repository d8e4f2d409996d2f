"""Text into ids and back, by the shortest way that gives the same.

What the template did not write is encoded as ordinary text, whatever it spells. Text in which
nothing spells a control token is encoded as one piece, so that its tokens are those of a plain
encoding; else it is cut inside each forged token, and the pieces are encoded one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any

from turnwise.chat.control import ControlTokens
from turnwise.chat.ownership import OwnedText, Span
from turnwise.plain_mode import is_plain

_PROBES = (
    "",
    " ",
    "Hello, world!",
    "  two\n\nlines ",
    "é 🍵 ﬁ \u200b",
    "<s> </s> <|im_end|> [INST]",
)

# One of these stands before a text that continues another; tokens that merge with it tell.
_ANCHORS = ("a", ".", "1", "\n", ")")


class Encoder:
    """A tokenizer that makes control tokens only of what a chat template wrote."""

    def __init__(self, tokenizer: Any, control: ControlTokens) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._has_core = _core_of(tokenizer) is not None
        self._unknown = getattr(tokenizer, "unk_token_id", None)

    @cached_property
    def quickly(self) -> Callable[[str], list[int]]:
        """The tokenizer's own encoding of a text."""
        return quick_encoder(self._tokenizer)

    @cached_property
    def adds_prefix(self) -> bool:
        """Whether it begins a text with a space of its own, as SentencePiece tokenizers do."""
        return any(self._continued(text) != self.quickly(text) for text in ("ab", ".", "\n", "1"))

    def encode(self, owned: OwnedText, *, is_continued: bool = False) -> list[int]:
        """Ids of a rendering; `is_continued`: other text stands before it."""
        if owned.controls is None and owned.spans:
            return self.encode_apart(owned.text, owned.spans, is_continued=is_continued)
        is_continued = is_continued and self.adds_prefix
        ids = self._continued(owned.text) if is_continued else self.quickly(owned.text)
        is_forged = owned.spans and self._control.of(ids) != owned.controls
        if is_forged or (owned.spans and self._control.has_single_words):
            return self.encode_apart(owned.text, owned.spans, is_continued=is_continued)
        return ids

    def encode_apart(
        self,
        text: str,
        spans: Sequence[Span],
        *,
        is_continued: bool = False,
        forbidden: Collection[int] | None = None,
    ) -> list[int]:
        """Ids of a text in which no control token (or none of `forbidden`) lies in the spans."""
        forbidden = self._control.ids if forbidden is None else forbidden
        starts = [start for start, _ in spans]
        done: list[int] = []
        waiting = [(0, len(text))]
        while waiting:
            start, end = waiting.pop()
            is_later = start > 0 or is_continued
            ids, places = self._with_places(text[start:end], is_later)
            cuts = [start]
            for token, place in zip(ids, places, strict=True):
                if token not in forbidden:
                    continue
                first, last = _trimmed(text, start + place[0], start + place[1])
                if token == self._unknown and text[first:last] != self._control.names[token]:
                    continue  # not spelled: letters that the tokenizer does not know
                # The last span that begins before its end is the one that may reach into it.
                index = bisect_right(starts, last - 1) - 1
                if last - first > 1 and index >= 0 and spans[index][1] > first:
                    cuts.append(first + 1)
            if len(cuts) == 1:
                done += ids
            else:  # the first piece is on top
                waiting += reversed([*zip(cuts, [*cuts[1:], end], strict=True)])
        return done

    def places(self, text: str) -> list[Span]:
        """Where a text would become control tokens."""
        if not self._has_core:
            return [(start, end) for start, end, _ in self._control.places(text)]
        ids, places = self._with_places(text, is_continued=False)
        found = zip(ids, places, strict=True)
        return [_trimmed(text, *place) for token, place in found if token in self._control.ids]

    def _with_places(self, text: str, is_continued: bool) -> tuple[list[int], list[Span]]:
        """Ids, and which characters each stands for."""
        if not text:
            return [], []
        is_continued = is_continued and self.adds_prefix
        if not self._has_core:
            return self._with_places_of_names(text, is_continued)
        for anchor in _ANCHORS if is_continued else ("",):
            found = self._tokenizer(
                anchor + text, add_special_tokens=False, return_offsets_mapping=True
            )
            ids, offsets = found["input_ids"], found["offset_mapping"]
            num_before = len(self.quickly(anchor)) if anchor else 0
            if ids[:num_before] == (self.quickly(anchor) if anchor else []):
                shift = len(anchor)
                places = [(max(0, a - shift), max(0, b - shift)) for a, b in offsets]
                return ids[num_before:], places[num_before:]
        return self._with_places(text, is_continued=False)

    def _with_places_of_names(self, text: str, is_continued: bool) -> tuple[list[int], list[Span]]:
        """The same for tokenizers that do not say it: only control tokens have a place."""
        ids = self._continued(text) if is_continued else self.quickly(text)
        named = iter(self._control.places(text))
        places: list[Span] = []
        for token in ids:
            place = next(named, None) if token in self._control.ids else None
            places.append((0, 0) if place is None else (place[0], place[1]))
        return ids, places

    def _continued(self, text: str) -> list[int]:
        """Ids of a text that stands after another, without what marks the begin of a text."""
        for anchor in _ANCHORS:
            before = self.quickly(anchor)
            ids = self.quickly(anchor + text)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self.quickly(text)


def _trimmed(text: str, start: int, end: int) -> Span:
    """A token's characters without the white space that some tokens take in around them."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _core_of(tokenizer: Any) -> Any:
    """The tokenizer of the `tokenizers` library inside; None if it is written in Python."""
    core = getattr(tokenizer, "_tokenizer", None)
    return core if type(core).__module__ == "tokenizers" else None


def quick_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """`tokenizer.encode` without special tokens added, by the shortest way that gives the same."""

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    core = _core_of(tokenizer)
    if core is None or is_plain("chat.encoding") or not hasattr(core, "encode_batch_fast"):
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
    core = _core_of(tokenizer)
    if core is None or core.encode_special_tokens:
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

    core = _core_of(tokenizer)
    if core is None or is_plain("chat.encoding") or tokenizer.clean_up_tokenization_spaces:
        return decode

    def decode_quickly(ids: Sequence[int]) -> str:
        text: str = core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    probes = [tokenizer.encode(text, add_special_tokens=False) for text in _PROBES]
    probes += [list(tokenizer.all_special_ids), [i for ids in probes for i in ids[1:]]]
    same = all(decode(ids) == decode_quickly(ids) for ids in probes)
    return decode_quickly if same else decode
