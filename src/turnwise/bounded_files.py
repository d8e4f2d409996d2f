"""Reads untrusted files within limits of kind, size and nesting.

Run folders are copied from other machines and other people, and a crash can leave anything in
them. Whatever is wrong with a file is a `ConfigError` that names the file; a file that is missing
stays a `FileNotFoundError`, since only the caller knows what its absence means.
"""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

MAX_DEPTH = 100
"""The nesting of lists and objects. Files of turnwise have fewer than 30 levels; Python's own
functions fail below 1,000."""
_MAX_MEMBERS = 1000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Other methods cannot be decompressed in pieces of bounded size."""


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


def read_archive(path: Path, wants: Callable[[str], bool], max_bytes: int) -> dict[str, bytes]:
    """Return the wanted members of a zip file, such as numpy's .npz.

    `max_bytes` limits the file, and all members together when unpacked.
    """
    with opened(path, max_bytes) as file:
        try:
            return _members(path, file, wants, max_bytes)
        except ConfigError:
            raise
        except (
            *(zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError),
            *(RuntimeError, NotImplementedError, OverflowError),  # encrypted, or of an odd version
        ) as error:
            raise ConfigError(f"{path} is no whole zip file: {error}") from error


def _members(
    path: Path, file: BinaryIO, wants: Callable[[str], bool], max_bytes: int
) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        members = [member for member in archive.infolist() if wants(member.filename)]
        size = sum(member.file_size for member in members)
        if size > max_bytes or len(members) > _MAX_MEMBERS:
            raise ConfigError(
                f"{path} has {len(members)} members of {size:,} bytes, expected at most "
                f"{_MAX_MEMBERS} of {max_bytes:,}"
            )
        for member in members:
            if member.compress_type not in _METHODS:
                raise ConfigError(
                    f"{path}: {member.filename!r:.80} is compressed by method "
                    f"{member.compress_type}, expected deflate"
                )
        # A member is never larger than its declared size.
        return {member.filename: archive.read(member) for member in members}


def parse_array(data: bytes, place: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Return an array of numbers in numpy's .npy format, as a view of `data`."""
    import numpy as np

    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read_header(file)
        if dtype.kind not in "biuf" or dtype.hasobject or (is_fortran and len(shape) > 1):
            raise ValueError(f"it is of {dtype}, expected numbers in C order")
        rest = np.frombuffer(data, np.uint8, offset=file.tell())
        return rest.view(dtype).reshape(shape)
    except Exception as error:  # the header is Python syntax, which may raise anything
        raise ConfigError(f"{place} is no array of numbers: {error}") from error


def start_of(data: bytes | str) -> str:
    """Return the beginning of data, for one line of an error message."""
    text = data[:240].decode("utf-8", "replace") if isinstance(data, bytes) else data
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _too_deep(place: str, data: bytes | str) -> ConfigError:
    return ConfigError(
        f"{place} is nested too deeply, expected at most {MAX_DEPTH} lists and objects inside "
        f"each other; it begins with {start_of(data)}"
    )
