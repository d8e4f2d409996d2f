"""Checks the files of a model that would take all memory or never end when they are loaded.

Both checks read JSON only, before transformers or the `tokenizers` library build anything of it.
"""

from __future__ import annotations

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
        path = _find_file(source, name)
        if path is None:  # the hub cannot be reached, or the tokenizer has other files
            continue
        check(path, read_json_object(path, _MAX_BYTES))


def _find_file(source: str, name: str) -> Path | None:
    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from transformers.utils.hub import cached_file

    path = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    return None if path is None else Path(path)


def _check_config(path: Path, config: dict[str, Any]) -> None:
    for name, value in _entries(config):
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        most = next(limit for pattern, limit in _LARGEST if pattern.search(name))
        if abs(value) > most:
            raise ConfigError(
                f"{path} has {name}: {value}, expected at most {most:,}. No model is that large; "
                "the file is damaged, or made to fill the memory."
            )


def _check_tokenizer(path: Path, tokenizer: dict[str, Any]) -> None:
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1.0
        for step in _steps(tokenizer.get(section)):
            growth *= _growth(path, step)
        if growth > _MOST_GROWTH:
            raise ConfigError(
                f"the {section} of {path} makes a text {growth:,.0f} times longer, expected at "
                f"most {_MOST_GROWTH:.0f} times. No tokenizer needs that; it would fill the memory."
            )


def _growth(path: Path, step: dict[str, Any]) -> float:
    """Return how many times longer a step makes a text of a thousand bytes, at most."""
    content = str(step.get("content", "")).encode()
    if step.get("type") == "Prepend":
        return 1 + len(str(step.get("prepend", ""))) / 1000
    if step.get("type") != "Replace":
        return 1.0
    pattern = step.get("pattern")
    if not isinstance(pattern, dict) or not any(pattern.values()):
        raise ConfigError(
            f"{path} replaces an empty pattern, expected a text or a regular expression. The "
            "tokenizers library fails at it."
        )
    literal = str(pattern.get("String", ""))
    # A regular expression may match a single character.
    return max(1.0, len(content) / max(len(literal.encode()), 1))


def _steps(section: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer or decoder, also those of sequences in sequences."""
    waiting = [section]
    while waiting:
        step = waiting.pop()
        if isinstance(step, list):
            waiting += step
        elif isinstance(step, dict):
            yield step
            waiting += [step.get(name) for name in ("normalizers", "pretokenizers", "decoders")]


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a config, also of those inside it, such as `text_config`."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield from item.items()
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
