"""Encodes rendered conversations, so that control tokens come from the template alone.

A control token means more to the model than its text: an end of turn, a role, the start or end of a
tool call. Only the chat template may write one into a prompt, and only the policy may sample one.
Text that the template did not write is encoded as ordinary text, whatever it spells. A rendering in
which no such text spells a control token is encoded in one call, so that its tokens are those of
the tokenizer; otherwise it is cut inside each forged token, and the pieces are encoded one by one.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from turnwise.chat.ownership import RenderedText, Span

# Model authors mark only some control tokens as special; most of the others look like these.
_MARKER = re.compile(r"<[^\s<>]+>|<[|｜].+[|｜]>|\[[^\s\[\]]+\]", re.DOTALL)
# Gemma has tokens for HTML tags, which are ordinary text.
_HTML = re.compile(
    r"</?(table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup|code"
    r"|ul|ol|li|p|div|span|br|hr|a|img|pre)>"
)


class ControlTokens:
    """The control tokens of a tokenizer under a chat template.

    These are all special tokens, and other added tokens that the template writes or that have
    brackets around them. Added tokens for ordinary text stay text: runs of spaces, single letters,
    HTML tags.
    """

    def __init__(self, tokenizer: Any, template: str) -> None:
        self.names: dict[int, str] = {}
        special = set(tokenizer.all_special_ids)
        for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
            name = str(token)
            if token.special:
                special.add(token_id)
            elif _HTML.fullmatch(name) or not _MARKER.fullmatch(name):
                # Not in brackets: a control token only if the template writes it, and no word.
                is_word = len(name) == 1 or name.isspace() or name.isalnum()
                if is_word or name not in template:
                    continue
            self.names[token_id] = name
        named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
        self.names |= {token_id: str(name) for token_id, name in named}
        self.special = frozenset(special)
        """Tokens that decoding leaves out."""
        self.ids = frozenset(i for i, name in self.names.items() if len(name.strip()) > 1)
        """Tokens that a text could spell; a single character is always ordinary text."""
        self._by_name = {self.names[i]: i for i in self.ids}
        names = sorted(self._by_name, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def among(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return the control tokens among these, in order."""
        return tuple(filter(self.ids.__contains__, ids))

    def first(self, ids: Iterable[int]) -> int | None:
        return next(filter(self.ids.__contains__, ids), None)

    def named(self, names: Iterable[str]) -> frozenset[int]:
        wanted = set(names)
        return frozenset(i for i, name in self.names.items() if name in wanted)

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return where a text spells control tokens: start, end and id."""
        matches = self._pattern.finditer(text)
        return [(match.start(), match.end(), self._by_name[match[0]]) for match in matches]


def end_ids(tokenizer: Any) -> frozenset[int]:
    """Return a tokenizer's end token, and those that its generation_config.json lists."""
    from transformers import GenerationConfig  # it imports torch

    ends = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    source = str(getattr(tokenizer, "name_or_path", "") or "")
    with suppress(OSError, ValueError):  # the file may be missing or broken
        # Nothing is downloaded.
        listed = GenerationConfig.from_pretrained(source, local_files_only=True).eos_token_id
        numbers = listed if isinstance(listed, list) else [listed]
        ends.update(i for i in numbers if isinstance(i, int) and 0 <= i < len(tokenizer))
    return frozenset(ends)


# One of these precedes a text that continues another; one whose token does not merge with it works.
_ANCHORS = ("a", ".", "1", "\n", ")")


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Encode a text as the tokenizer does, control tokens included and none added."""
    # Not verbose: it warns of texts longer than the model's context, which callers count.
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)
    return ids


class Encoder:
    """A tokenizer that makes control tokens only of what a chat template wrote."""

    def __init__(self, tokenizer: Any, control: ControlTokens) -> None:
        self._tokenizer = tokenizer
        self.encode_text = partial(encode_text, tokenizer)
        self._control = control
        self._has_offsets = bool(getattr(tokenizer, "is_fast", False))
        self._unknown = getattr(tokenizer, "unk_token_id", None)

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
            ids, token_spans = self._with_spans(text[start:end], start > 0 or is_continued)
            cuts = [start]
            for token, span in zip(ids, token_spans, strict=True):
                if token not in forbidden:
                    continue
                first, last = _trimmed(text, start + span[0], start + span[1])
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

    def control_spans(self, text: str) -> list[Span]:
        """Return the spans of a text that would become control tokens."""
        if not self._has_offsets:
            return [(start, end) for start, end, _ in self._control.spans(text)]
        ids, token_spans = self._with_spans(text, is_continued=False)
        pairs = zip(ids, token_spans, strict=True)
        return [_trimmed(text, *span) for token, span in pairs if token in self._control.ids]

    def _with_spans(self, text: str, is_continued: bool) -> tuple[list[int], list[Span]]:
        """Return ids, and the span of characters of each."""
        if not text:
            return [], []
        is_continued = is_continued and self.adds_prefix
        if not self._has_offsets:  # only control tokens get a span
            ids = self._continued(text) if is_continued else self.encode_text(text)
            named = iter(self._control.spans(text))
            spans = (next(named, (0, 0, 0)) if i in self._control.ids else (0, 0, 0) for i in ids)
            return ids, [(start, end) for start, end, _ in spans]
        anchor = self._anchor(text) if is_continued else ""
        encoded = self._tokenizer(
            anchor + text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        first = len(self.encode_text(anchor)) if anchor else 0
        shift = len(anchor)
        offsets = encoded["offset_mapping"][first:]
        token_spans = [(max(0, a - shift), max(0, b - shift)) for a, b in offsets]
        return encoded["input_ids"][first:], token_spans

    def _continued(self, text: str) -> list[int]:
        """Return the ids of a text that follows another, without the mark of a text's start."""
        anchor = self._anchor(text)
        return self.encode_text(anchor + text)[len(self.encode_text(anchor)) :]

    def _anchor(self, text: str) -> str:
        """Return what can precede a text whose tokens do not merge with it; "" if nothing can."""
        for anchor in _ANCHORS:
            before = self.encode_text(anchor)
            if self.encode_text(anchor + text)[: len(before)] == before:
                return anchor
        return ""


def _trimmed(text: str, start: int, end: int) -> Span:
    """Return a token's span without the white space that some tokens include."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
