"""Checks the files of a model that would take all memory or never end when they are loaded.

Both checks read JSON only, before transformers or the `tokenizers` library build anything of it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.bounded_files import read_json_object
from turnwise.errors import ConfigError

_MAX_BYTES = 200 * 2**20
# The largest models have 126 layers, vocabularies of a million and widths of a hundred thousand.
_LARGEST = (
    (re.compile(r"layers?$|blocks$|depth$"), 2_000),
    (re.compile(r"size|dim|heads|experts|embd|hidden|inner|d_model|d_ff|channels|rank"), 10**7),
    (re.compile(r""), 2**40),
)
"""For names of numbers that match; the first applies."""
_MOST_GROWTH = 64.0
"""How many times longer a tokenizer may make a text; SentencePiece writes 3 bytes for a space."""


def check_model_files(source: str) -> None:
    """Raise ConfigError for a config.json or tokenizer.json that nothing should be built of.

    `source` is a folder, or a hub id, whose files are taken from the cache or downloaded.
    """
    for name, check in (("config.json", _check_config), ("tokenizer.json", _check_tokenizer)):
        path: Path | None = Path(source) / name
        if not Path(source).is_dir():
            from transformers.utils.hub import cached_file

            cached = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
            path = None if cached is None else Path(cached)
        # Without one the hub cannot be reached, or the tokenizer has other files.
        if path is not None and path.is_file():
            check(path, read_json_object(path, _MAX_BYTES))


def _check_config(path: Path, config: dict[str, Any]) -> None:
    for part in _dicts(config):  # also those inside it, such as `text_config`
        for name, value in part.items():
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            most = next(limit for pattern, limit in _LARGEST if pattern.search(name))
            if abs(value) > most:
                raise ConfigError(
                    f"{path} has {name}: {value}, expected at most {most:,}. No model is that "
                    "large; the file is damaged, or made to fill the memory."
                )


def _check_tokenizer(path: Path, tokenizer: dict[str, Any]) -> None:
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1.0  # how many times longer a text of a thousand bytes becomes, at most
        for step in _dicts(tokenizer.get(section)):
            if step.get("type") == "Prepend":
                growth *= 1 + len(str(step.get("prepend", ""))) / 1000
            elif step.get("type") == "Replace":
                pattern = step.get("pattern")
                if not isinstance(pattern, dict) or not any(pattern.values()):
                    raise ConfigError(
                        f"{path} replaces an empty pattern, expected a text or a regular "
                        "expression. The tokenizers library fails at it."
                    )
                # A regular expression may match a single character.
                literal = str(pattern.get("String", "")).encode()
                content = str(step.get("content", "")).encode()
                growth *= max(1.0, len(content) / max(len(literal), 1))
        if growth > _MOST_GROWTH:
            raise ConfigError(
                f"the {section} of {path} makes a text {growth:,.0f} times longer, expected at "
                f"most {_MOST_GROWTH:.0f} times. No tokenizer needs that; it would fill the memory."
            )


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a dict and all that are inside it, without recursion."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
