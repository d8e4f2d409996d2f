"""Which code may be run: what the user named, and what a trusted run folder names.

Code that a user names in a command or in Python is run. A run folder names code too: environment,
reward, tools, the model's own code. The folder may come from another person, so while its settings
are in use (`settings_from`) code is run only if the user allowed it for this command, or has run
the same code from the same place before. That is remembered outside the folder, in
`$XDG_STATE_HOME/turnwise/trusted-code`.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from turnwise.errors import ConfigError
from turnwise.whole_files import write_whole

_MAX_REMEMBERED = 2000


@dataclass(frozen=True)
class _Source:
    """A folder whose settings are in use."""

    folder: Path
    is_trusted: bool


_sources: list[_Source] = []
"""The innermost is last. Process-wide, so that it holds in threads that play episodes too."""
_remembered: set[str] = set()
"""The code that was run in this process."""


@contextlib.contextmanager
def settings_from(folder: str | os.PathLike[str] | None, *, is_trusted: bool) -> Iterator[None]:
    """Treat settings in this block as read from a run folder; None: as the user's own."""
    if folder is None:
        yield
        return
    source = _Source(Path(folder), is_trusted)
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


def require_code(target: str, folder: Path | None = None) -> None:
    """Refuse `file.py:Name` or `module:Name` if a folder named it that the user does not trust.

    `folder` is where a module will be looked for first; without it, it is looked for in `sys.path`.
    """
    _require(_location(target, folder), target)


def remember_code(target: str) -> None:
    """Record that the user ran this code: a run folder that names it may use it later."""
    if not _sources:
        _remember(_location(target))


def require_model_code(name_or_path: str | os.PathLike[str]) -> None:
    """Refuse, in the same way, the Python code that comes with a model."""
    what = f"the Python code that comes with the model {os.fspath(name_or_path)}"
    _require(_model_location(name_or_path), what)


def require_use(what: str) -> None:
    """Refuse, in the same way, anything else that runs code: a command, a server, a cluster."""
    _require(f"use {what}", what)


def remember_use(what: str) -> None:
    """Record that the user used this, as `remember_code` does for code."""
    if not _sources:
        _remember(f"use {what}")


def server_use(url: str) -> str:
    """Return an inference server in the words of `require_use`."""
    return f"the inference server {url}"


def allows_model_code(name_or_path: str | os.PathLike[str]) -> bool:
    """Return whether `require_model_code` would allow it."""
    return _is_allowed(_model_location(name_or_path))


def is_in_run(path: Path) -> bool:
    """Return whether a file is in the folder of a run or of a checkpoint."""
    return any(
        (folder / "run.json").is_file()
        or ((folder / "manifest.json").is_file() and (folder / "state.json").is_file())
        for folder in path.parents
    )


def _require(location: str, what: str) -> None:
    if not _is_allowed(location):
        named = what if location.startswith("use ") else f"code that would be run: {what}"
        raise ConfigError(
            f"the settings in {_sources[-1].folder} name {named}. Nobody has used it from there on "
            "this machine before, so it may be another person's. If you trust it, add "
            "--trust-remote-code (in Python: trust_remote_code=True)."
        )
    _remember(location)


def _is_allowed(location: str) -> bool:
    if all(source.is_trusted for source in _sources):
        return True
    return location in _remembered or location in _read()


def _location(target: str, folder: Path | None = None) -> str:
    """Return a text that identifies the code, independent of the working directory."""
    source, _, name = target.rpartition(":")
    if source.endswith(".py"):
        return f"file {Path(source).resolve()}:{name}"
    # The location of the outermost package; to find an inner one would import it.
    top = source.partition(".")[0]
    first = [] if folder is None else [str(folder)]
    spec = PathFinder.find_spec(top, [*first, *sys.path])
    inner = list(spec.submodule_search_locations or []) if spec else []
    origin = (inner[0] if inner else spec.origin) if spec else None
    return f"module {source}:{name} in {None if origin is None else Path(origin).resolve()}"


def _model_location(name_or_path: str | os.PathLike[str]) -> str:
    path = Path(name_or_path).expanduser()
    return f"model {path.resolve() if path.is_dir() else os.fspath(name_or_path)}"


def _remember(location: str) -> None:
    """Save it for later commands; if it cannot be saved, they will ask again."""
    if location in _remembered:
        return
    _remembered.add(location)
    kind, _, path = location.partition(" ")
    path = path.rpartition(":")[0] if kind == "file" else path
    path = path.rpartition(" in ")[2] if kind == "module" else path
    known = _read()
    # Code in a run folder may be replaced together with the folder, so it is not saved.
    if location in known or (kind != "use" and is_in_run(Path(path, "x"))):
        return
    with contextlib.suppress(OSError, RuntimeError):
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(entry) for entry in [*known, location][-_MAX_REMEMBERED:]]
        write_whole(file, ("\n".join(lines) + "\n").encode())


def _read() -> list[str]:
    try:
        lines = _file().read_text(encoding="utf-8").splitlines()
        return [entry for line in lines if isinstance(entry := json.loads(line), str)]
    except (OSError, ValueError, RuntimeError):  # no file yet, no home, or not our format
        return []


def _file() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "turnwise" / "trusted-code"
