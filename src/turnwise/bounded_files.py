"""Files that anybody may have written, read within limits of kind, size and nesting.

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
"""Lists and objects inside each other. What turnwise writes has fewer than 30; Python's own
functions fail somewhere below 1,000."""
_MAX_MEMBERS = 1000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The others cannot be read in pieces of bounded size."""


@contextmanager
def opened(path: Path, max_bytes: int) -> Iterator[BinaryIO]:
    """A plain file of at most that size, open for reading; never waits, as for a pipe's writer.

    What goes wrong while it is read is an error about this file, too.
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
    """The content of a plain file of at most that size."""
    with opened(path, max_bytes) as file:
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def parse_json(data: bytes | str, place: str) -> Any:
    """The JSON value in `data`; `place` says in errors where it stands."""
    try:
        value = json.loads(data)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ConfigError(
            f"{place} is no JSON: {error.msg} at {line}column {error.colno}; "
            f"it {'is empty' if not data else f'begins with {start_of(data)}'}"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8: {error}. Save the file as UTF-8.") from None
    except RecursionError:
        raise _too_deep(place, data) from None
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{place} is no JSON that can be read: {error}") from None
    if is_deeper(value, MAX_DEPTH):
        raise _too_deep(place, data)
    return value


def read_json_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """A file that holds one JSON object."""
    data = read_bytes(path, max_bytes)
    value = parse_json(data, str(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {start_of(data)}, expected a JSON object")
    return value


def is_deeper(value: object, max_depth: int) -> bool:
    """Whether lists and dicts lie deeper inside each other than that; level by level, since a
    recursive function would itself be stopped by what it looks for.

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
    """The members of a zip file, such as numpy's .npz, that are wanted; `max_bytes` counts what
    they take unpacked, all together, and the file itself."""
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
        # A member never gives more than the size that it declares.
        return {member.filename: archive.read(member) for member in members}


def parse_array(data: bytes, place: str) -> np.ndarray[Any, np.dtype[Any]]:
    """An array of numbers in numpy's .npy format; it takes no more memory than `data`."""
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
    except Exception as error:  # the header is Python's own syntax: what it raises is not listed
        raise ConfigError(f"{place} is no array of numbers: {error}") from error


def start_of(data: bytes | str) -> str:
    """How something begins, in one line of an error message."""
    text = data[:240].decode("utf-8", "replace") if isinstance(data, bytes) else data
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _too_deep(place: str, data: bytes | str) -> ConfigError:
    return ConfigError(
        f"{place} is nested too deeply, expected at most {MAX_DEPTH} lists and objects inside "
        f"each other; it begins with {start_of(data)}"
    )
