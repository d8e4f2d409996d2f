"""Decides which tokens of a tokenizer are control tokens.

A control token means more to the model than its text: an end of turn, a role, the start or end of a
tool call. Only the chat template may write one into a prompt, and only the policy may sample one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

# Model authors mark only some control tokens as special; most of the others look like these.
_MARKER = re.compile(r"<[^\s<>]+>|<[|｜].+[|｜]>|\[[^\s\[\]]+\]", re.DOTALL)
# Gemma has tokens for HTML tags, which are ordinary text.
_HTML = re.compile(
    r"</?(table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup|code"
    r"|ul|ol|li|p|div|span|br|hr|a|img|pre)>"
)
# Ends of a turn that only a generation_config lists; templates do not write them.
_KNOWN_ENDS = ("<|eom_id|>", "<|call|>")


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
            elif not (_is_marker(name) or (_has_symbol(name) and name in template)):
                continue
            self.names[token_id] = name
        named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
        self.names |= {token_id: str(name) for token_id, name in named}
        self.special = frozenset(special)
        """Tokens that decoding leaves out."""
        self.ids = frozenset(i for i, name in self.names.items() if len(name.strip()) > 1)
        """Tokens that a text could spell; a single character is always ordinary text."""

    def of(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Return the control tokens among these, in order."""
        return tuple(filter(self.ids.__contains__, ids))

    def first(self, ids: Iterable[int]) -> int | None:
        return next(filter(self.ids.__contains__, ids), None)

    def named(self, names: Iterable[str]) -> frozenset[int]:
        wanted = set(names)
        return frozenset(i for i, name in self.names.items() if name in wanted)

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return where a text spells control tokens: start, end and id."""
        return [
            (match.start(), match.end(), self._by_name[match[0]])
            for match in self._pattern.finditer(text)
        ]

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {self.names[i]: i for i in self.ids}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        names = sorted(self._by_name, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")


def end_ids(tokenizer: Any, control: ControlTokens) -> frozenset[int]:
    """Return the tokens that end a turn according to the model's files.

    They are the tokenizer's end token, the list of its generation_config.json, and tokens that end
    a turn in every model that has them.
    """
    ends = {*configured_ends(tokenizer), *control.named(_KNOWN_ENDS)}
    if tokenizer.eos_token_id is not None:
        ends.add(tokenizer.eos_token_id)
    return frozenset(ends)


def configured_ends(tokenizer: Any) -> list[int]:
    """Return the end tokens in the generation_config.json of a tokenizer; none without one."""
    path = _generation_config(str(getattr(tokenizer, "name_or_path", "") or ""))
    if path is None:
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):  # the file may be missing or broken
        return []
    numbers = found if isinstance(found, list) else [found]
    size = len(tokenizer)
    return [i for i in numbers if isinstance(i, int) and 0 <= i < size]


def _generation_config(source: str) -> Path | None:
    """Return the file in the tokenizer's folder or in the hub's cache; nothing is downloaded."""
    if not source:
        return None
    path = Path(source) / "generation_config.json"
    if path.is_file():
        return path
    if Path(source).exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source, "generation_config.json")
    return Path(cached) if isinstance(cached, str) else None


def _is_marker(name: str) -> bool:
    return _MARKER.fullmatch(name) is not None and _HTML.fullmatch(name) is None


def _has_symbol(name: str) -> bool:
    return len(name) > 1 and not name.isspace() and not name.isalnum()
