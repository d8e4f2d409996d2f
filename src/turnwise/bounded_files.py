"""Reads untrusted files within limits of kind, size and nesting.

Run folders are copied from other machines and other people, and a crash can leave anything in
them. Whatever is wrong with a file is a `ConfigError` that names the file; a file that is missing
stays a `FileNotFoundError`, since only the caller knows what its absence means.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from turnwise.errors import ConfigError

MAX_DEPTH = 100
"""The nesting of lists and objects. Files of turnwise have fewer than 30 levels; Python's own
functions fail below 1,000."""


@contextmanager
def opened(path: Path, max_bytes: int) -> Iterator[BinaryIO]:
    """Open a regular file of at most that size for reading, without waiting for a pipe's writer.

    Errors while it is read name the file too.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ConfigError(f"{path} is a pipe or a device, expected a file")
            if about.st_size > max_bytes:
                raise ConfigError(
                    f"{path} has {about.st_size:,} bytes, expected at most {max_bytes:,}"
                )
            yield file
    except (FileNotFoundError, ConfigError):
        raise
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, expected a file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from error


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file of at most that size."""
    with opened(path, max_bytes) as file:
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def parse_json(data: bytes | str, place: str) -> Any:
    """Return the JSON value in `data`; `place` is its location in errors."""
    try:
        value = json.loads(data)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ConfigError(
            f"{place} is not JSON: {error.msg} at {line}column {error.colno}; "
            f"it {'is empty' if not data else f'begins with {start_of(data)}'}"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8: {error}. Save the file as UTF-8.") from None
    except RecursionError:
        raise _too_deep(place, data) from None
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{place} is not JSON that can be read: {error}") from None
    if is_deeper(value, MAX_DEPTH):
        raise _too_deep(place, data)
    return value


def read_json_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object that a file holds."""
    data = read_bytes(path, max_bytes)
    value = parse_json(data, str(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {start_of(data)}, expected a JSON object")
    return value


def is_deeper(value: object, max_depth: int) -> bool:
    """Return whether lists and dicts are nested deeper; level by level, without recursion.

    >>> is_deeper([[1], {"a": 2}], 2), is_deeper([[1], {"a": [2]}], 2)
    (False, True)
    """
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(max_depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def start_of(data: bytes | str) -> str:
    """Return the beginning of data, for one line of an error message."""
    text = data[:240].decode("utf-8", "replace") if isinstance(data, bytes) else data
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _too_deep(place: str, data: bytes | str) -> ConfigError:
    return ConfigError(
        f"{place} is nested too deeply, expected at most {MAX_DEPTH} lists and objects inside "
        f"each other; it begins with {start_of(data)}"
    )
