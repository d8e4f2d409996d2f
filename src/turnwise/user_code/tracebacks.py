"""Tracebacks reduced to the lines of the user's own files."""

import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnwise.errors import describe_error
from turnwise.user_code.fingerprint import is_foreign

_MAX_LINES = 8


def user_traceback(error: BaseException) -> str | None:
    """Return the user's own lines of a failure, the innermost last, or None if it has none.

    File "maze.py", line 12, in step
        return 1 / 0
    ZeroDivisionError: division by zero
    """
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    notes = [note for cause in causes for note in getattr(cause, "__notes__", ())]
    for cause in reversed(causes):  # a library that the user called may have causes of its own
        user_frames = [
            (frame, line)
            for frame, line in traceback.walk_tb(cause.__traceback__)
            if not is_foreign(frame.f_code.co_filename)
        ]
        if user_frames:
            break
    else:  # its return value was wrong: then where it is defined
        return "\n".join(dict.fromkeys(notes)) or None
    lines = []
    # `extract` reads the files, so it gets only the user's own.
    for frame in traceback.StackSummary.extract(user_frames)[-_MAX_LINES:]:
        lines.append(f"  {_file_label(frame.filename)}, line {frame.lineno}, in {frame.name}")
        if frame.line:
            lines.append(f"    {frame.line}")
    return "\n".join([*lines, describe_error(cause)])


def definition_note(function: Callable[..., Any]) -> str | None:
    """Return where a user's function is defined, as a note for an error about what it returned."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(plain, "__code__", None)
    if code is None or is_foreign(code.co_filename):
        return None
    return f"  {_file_label(code.co_filename)}, line {code.co_firstlineno}, in {code.co_name}"


def _file_label(file: str) -> str:
    path, here = Path(file), Path.cwd()
    return _cell(file) or f'File "{path.relative_to(here) if path.is_relative_to(here) else file}"'


def _cell(file: str) -> str | None:
    ipython = sys.modules.get("IPython")  # imported by every kernel
    shell = None if ipython is None else ipython.get_ipython()
    # An older IPython, or another shell, has no names of cells: then the file is named.
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = None if name_of is None else name_of(file)
    return None if named is None else " ".join(named)
