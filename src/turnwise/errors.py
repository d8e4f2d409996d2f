"""The errors that turnwise raises on purpose, and helpers for their messages.

One base, few categories, each also a standard type, so that `except ValueError` in user code keeps
working. A message says what was wrong, what was given, what was expected, and the fix.
"""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class TurnwiseError(Exception):
    """Base of all errors that turnwise raises on purpose."""


class ConfigError(TurnwiseError, ValueError):
    """A setting, a name or an argument is not valid."""


class EnvironmentFault(TurnwiseError, RuntimeError):
    """An environment broke its contract: wrong type, wrong shape, or it raised."""


class RewardError(TurnwiseError, RuntimeError):
    """A reward function raised, timed out, or returned something that is not a finite number."""


class ToolError(TurnwiseError, RuntimeError):
    """A tool was defined or called in a way that cannot work."""


class EngineError(TurnwiseError, RuntimeError):
    """An engine in another process could not be reached, or refused a request."""


class EngineStalled(EngineError):
    """No result arrived from an engine, or user code blocked, for `inference.stall_timeout`."""


class CheckpointError(TurnwiseError, RuntimeError):
    """A checkpoint could not be saved, is damaged, or is not one."""


class DeadlineExceeded(TurnwiseError, TimeoutError):
    """A call took longer than its time limit."""


class TrainingStopped(TurnwiseError, RuntimeError):
    """A run was stopped, because continuing would have been useless."""


class MissingExtraError(TurnwiseError, ImportError):
    """An optional package is needed, but not installed."""


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional package; the error names the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        # A broken import inside an installed package must not be reported as "not installed".
        if error.name is None or error.name.split(".")[0] != package:
            raise
        fix = f"Install it with: pip install 'turnwise[{extra}]'"
        raise MissingExtraError(f"{package} is not installed, and this needs it. {fix}") from None


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known name, or else all names."""
    known = sorted(options)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Known: {', '.join(known)}." if known else "None exist."


def describe_error(error: BaseException) -> str:
    """Return the type and message of an exception.

    >>> describe_error(ValueError("no such move"))
    'ValueError: no such move'
    >>> describe_error(SystemExit())
    'SystemExit'
    """
    try:
        message = str(error)
    except Exception as failure:  # of the user's class
        message = f"its __str__ raised {type(failure).__name__}"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
