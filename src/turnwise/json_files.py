"""Reads JSON files. Whatever is wrong with one is a `ConfigError` that names it.

A file that is missing stays a `FileNotFoundError`: only the caller knows what its absence means.
"""

import json
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError


def read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # `ValueError`: a NUL in the name
        raise ConfigError(f"cannot read {path}: {error}") from error


def parse_json(data: bytes | str, where: str) -> Any:
    """Return the JSON value in `data`; `where` is its location in errors."""
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8: {error}. Save the file as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        begin = show_start(data)
        raise ConfigError(f"{where} is not JSON: {error}; it begins with {begin}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds."""
    data = read_bytes(path)
    value = parse_json(data, str(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {show_start(data)}, expected a JSON object")
    return value


def show_start(data: bytes | str) -> str:
    """Return the beginning of data, for one line of an error message."""
    text = data[:240].decode("utf-8", "replace") if isinstance(data, bytes) else data
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
