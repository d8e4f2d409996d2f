"""Encodes rendered conversations, so that control tokens come from the template alone.

Text that the template did not write is encoded as ordinary text, whatever it spells. A rendering in
which no such text spells a control token is encoded in one call, so that its tokens are those of
the tokenizer; otherwise it is cut inside each forged token, and the pieces are encoded one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from turnwise.chat.control import ControlTokens
from turnwise.chat.ownership import RenderedText, Span
from turnwise.errors import ConfigError

# One of these precedes a text that continues another; one whose token does not merge with it works.
_ANCHORS = ("a", ".", "1", "\n", ")")


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Encode a text as the tokenizer does, control tokens included and none added."""
    with _readable_panics():
        # Not verbose: it warns of texts longer than the model's context, which callers count.
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)
    return ids


@contextmanager
def _readable_panics() -> Iterator[None]:
    """Turn a panic of the `tokenizers` library, which no `except Exception` sees, into an error."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ConfigError(f"the tokenizer cannot encode a text: {error}") from error


class Encoder:
    """A tokenizer that makes control tokens only of what a chat template wrote."""

    def __init__(self, tokenizer: Any, control: ControlTokens) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._has_offsets = bool(getattr(tokenizer, "is_fast", False))
        self._unknown = getattr(tokenizer, "unk_token_id", None)

    def encode_text(self, text: str) -> list[int]:
        """Encode a text as the tokenizer does, control tokens included."""
        return encode_text(self._tokenizer, text)

    @cached_property
    def adds_prefix(self) -> bool:
        """Whether the tokenizer starts each text with a space, as SentencePiece does."""
        texts = ("ab", ".", "\n", "1")
        return any(self._continued(text) != self.encode_text(text) for text in texts)

    def encode(self, rendered: RenderedText, *, is_continued: bool = False) -> list[int]:
        """Return the ids of a rendering; `is_continued` says that other text precedes it."""
        if rendered.spans:
            return self.encode_apart(rendered.text, rendered.spans, is_continued=is_continued)
        is_continued = is_continued and self.adds_prefix
        return self._continued(rendered.text) if is_continued else self.encode_text(rendered.text)

    def encode_apart(
        self,
        text: str,
        spans: Sequence[Span],
        *,
        is_continued: bool = False,
        forbidden: Collection[int] | None = None,
    ) -> list[int]:
        """Return ids without a control token (or one of `forbidden`) inside the spans."""
        forbidden = self._control.ids if forbidden is None else forbidden
        starts = [start for start, _ in spans]
        done: list[int] = []
        waiting = [(0, len(text))]
        while waiting:
            start, end = waiting.pop()
            is_later = start > 0 or is_continued
            ids, places = self._with_spans(text[start:end], is_later)
            cuts = [start]
            for token, place in zip(ids, places, strict=True):
                if token not in forbidden:
                    continue
                first, last = _trimmed(text, start + place[0], start + place[1])
                if token == self._unknown and text[first:last] != self._control.names[token]:
                    continue  # characters that the tokenizer does not know
                # Only the last span that starts before the token's end can overlap it.
                index = bisect_right(starts, last - 1) - 1
                if last - first > 1 and index >= 0 and spans[index][1] > first:
                    cuts.append(first + 1)
            if len(cuts) == 1:
                done += ids
            else:  # the first piece is on top
                waiting += reversed([*zip(cuts, [*cuts[1:], end], strict=True)])
        return done

    def control_tokens(self, rendered: RenderedText) -> tuple[int, ...]:
        """Return the control tokens that a rendering is encoded to."""
        return self._control.of(self.encode(rendered))

    def control_spans(self, text: str) -> list[Span]:
        """Return the spans of a text that would become control tokens."""
        if not self._has_offsets:
            return [(start, end) for start, end, _ in self._control.spans(text)]
        ids, places = self._with_spans(text, is_continued=False)
        found = zip(ids, places, strict=True)
        return [_trimmed(text, *place) for token, place in found if token in self._control.ids]

    def _with_spans(self, text: str, is_continued: bool) -> tuple[list[int], list[Span]]:
        """Return ids, and the span of characters of each."""
        if not text:
            return [], []
        is_continued = is_continued and self.adds_prefix
        if not self._has_offsets:
            return self._with_places_names(text, is_continued)
        for anchor in _ANCHORS if is_continued else ("",):
            ids, offsets = self._with_offsets(anchor + text)
            if not anchor:
                return ids, offsets
            before = self.encode_text(anchor)
            if ids[: len(before)] == before:
                shift = len(anchor)
                places = [(max(0, a - shift), max(0, b - shift)) for a, b in offsets]
                return ids[len(before) :], places[len(before) :]
        return self._with_spans(text, is_continued=False)

    def _with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        with _readable_panics():
            encoded = self._tokenizer(
                text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
        return encoded["input_ids"], encoded["offset_mapping"]

    def _with_places_names(self, text: str, is_continued: bool) -> tuple[list[int], list[Span]]:
        """The same for tokenizers without offsets: only control tokens get a span."""
        ids = self._continued(text) if is_continued else self.encode_text(text)
        named = iter(self._control.spans(text))
        places: list[Span] = []
        for token in ids:
            place = next(named, None) if token in self._control.ids else None
            places.append((0, 0) if place is None else (place[0], place[1]))
        return ids, places

    def _continued(self, text: str) -> list[int]:
        """Return the ids of a text that follows another, without the mark of a text's start."""
        for anchor in _ANCHORS:
            before = self.encode_text(anchor)
            ids = self.encode_text(anchor + text)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        return self.encode_text(text)


def _trimmed(text: str, start: int, end: int) -> Span:
    """Return a token's span without the white space that some tokens include."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
