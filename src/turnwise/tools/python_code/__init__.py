"""`PythonCodeTool`: runs Python code that a model wrote, in a sandbox."""

import asyncio
import os
import signal
import site
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from turnwise.deadlines import call_with_deadline
from turnwise.errors import ConfigError, ToolError
from turnwise.tools.base import Tool
from turnwise.tools.python_code.runner import CodeLimits, CodeRun, run_code, why_not_isolated

__all__ = ["CodeLimits", "CodeRun", "PythonCodeTool", "run_code", "why_not_isolated"]


class PythonCodeTool(Tool):
    """Run a Python program and read what it prints. It starts afresh each time, with the standard
    library only, no network, no other processes, and an empty folder.

    The program runs in a process of its own, which cannot see the machine's files, processes or
    network, and has limited time, memory, files, threads and output. Where the machine cannot
    isolate it, creating this tool is an error; `allow_unsafe=True` takes the risk, and then limits
    only time, memory and output.

    `packages=True` makes the site packages available too, or a list of folders. For root, which
    drops its rights to run the program, they must be readable by everybody.
    """

    name = "python"
    timeout = None  # CodeLimits.seconds instead; waiting for a slot must not count

    def __init__(
        self,
        limits: CodeLimits | Mapping[str, Any] | None = None,
        *,
        packages: bool | Sequence[str] = False,
        allow_unsafe: bool = False,
        max_at_once: int | None = None,
    ) -> None:
        if isinstance(limits, Mapping):  # from the settings
            limits = CodeLimits(**limits)
        self.limits = limits or CodeLimits()
        self.packages = package_folders(packages)
        reason = why_not_isolated()
        if reason is not None and not allow_unsafe:
            fix = "PythonCodeTool(allow_unsafe=True) runs it all the same, with your rights."
            raise ToolError(f"a model's code cannot be run safely on this machine: {reason} {fix}")
        self.isolated = reason is None
        self.max_at_once = max_at_once or os.cpu_count() or 1
        # A semaphore belongs to one event loop.
        self._slots: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
        self.max_output = 2 * self.limits.output_characters
        self.description = (
            "Run a Python program and read what it prints. Each run starts afresh, in an empty "
            "folder, with the standard library"
            f"{' and the installed packages' if self.packages else ' only'}, without network, and "
            f"may take {self.limits.seconds:g} seconds and {self.limits.memory_mb} MB."
        )

    async def execute(self, code: str) -> str:
        """Run it.

        Args:
            code: The whole program. Print what you want to see.
        """
        stop = threading.Event()
        loop = asyncio.get_running_loop()
        slots = self._slots.setdefault(loop, asyncio.Semaphore(self.max_at_once))
        try:
            async with slots:
                run: CodeRun = await call_with_deadline(
                    run_code,
                    code,
                    self.limits,
                    packages=self.packages,
                    isolated=self.isolated,
                    stop=stop,
                    timeout=None,
                    waiting_for="a Python program",
                )
        finally:
            stop.set()  # a cancelled episode ends its program
        if run.ok:
            return run.output or "(The program printed nothing. Print what you want to see.)"
        if run.problem is not None:
            raise RuntimeError(f"the program could not be started: {run.problem}")
        if run.exceeded == "time":
            end = f"was stopped after {self.limits.seconds:g} seconds"
        elif run.exceeded == "output":
            end = "was stopped: it printed without end"
        elif run.exit_code is None:
            end = f"was stopped: it used more {run.exceeded} than it may"
        elif run.exit_code < 0:
            end = f"was ended by {signal.Signals(-run.exit_code).name}"
        else:
            end = f"ended with exit code {run.exit_code}"
        raise ToolError(f"{run.output.rstrip()}\nThe program {end}.".lstrip())


def package_folders(packages: bool | Sequence[str]) -> list[str]:
    if isinstance(packages, bool):
        return [path for path in site.getsitepackages() if os.path.isdir(path)] if packages else []
    if isinstance(packages, str):
        raise ConfigError(f"packages is a list of folders, or True, got the text {packages!r}")
    for path in packages:
        if not os.path.isdir(path):
            raise ConfigError(f"packages names {path!r}, which is not a folder")
    return [os.path.abspath(path) for path in packages]
