"""Runs the model's program as Python runs a file."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import NoReturn

_NAME = "main.py"


def run_program(code: str, packages: list[str]) -> NoReturn:
    """Runs the program as `__main__`, prints an exception as Python does, and ends the process."""
    _forget_ourselves(packages)
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    try:
        exec(compile(code, _NAME, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise  # Python itself turns it into an exit code, after waiting for threads
    except BaseException as error:
        _show(error, code)
        sys.exit(1)
    sys.exit(0)


def _show(error: BaseException, code: str) -> None:
    try:
        import linecache
        import traceback

        # Tracebacks show the lines, although the file does not exist.
        linecache.cache[_NAME] = (len(code), None, code.splitlines(keepends=True), _NAME)
        # The first frame is this file's; a syntax error has no other.
        entry = error.__traceback__
        traceback.print_exception(type(error), error, entry.tb_next if entry else None)
    except (MemoryError, RecursionError):
        os.write(2, f"{type(error).__name__}\n".encode())


def _forget_ourselves(packages: list[str]) -> None:
    """Removes our modules and path, so that the interpreter looks fresh."""
    package = __package__ or ""
    for name in [name for name in sys.modules if name.split(".")[0] == package.split(".")[0]]:
        del sys.modules[name]
    sys.path[:] = [os.getcwd(), *sys.path[1:], *packages]
    sys.argv[:] = [_NAME]
    sys.dont_write_bytecode = True  # its folder holds what it made, nothing else
    for stream in (sys.stdout, sys.stderr):
        # Line by line, so that what was printed before a time limit is not lost.
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
