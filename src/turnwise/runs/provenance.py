"""The provenance of a run: command, commit, packages and machine."""

import contextlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from turnwise.config import setting_types
from turnwise.redaction import without_secrets

_PACKAGES = ("turnwise", "torch", "transformers", "numpy", "peft", "vllm", "sglang", "ray", "verl")
_GIT_SECONDS = 5.0


def provenance() -> dict[str, Any]:
    """Return how and where the current process was started."""
    words = without_secrets(list(sys.orig_argv), known=setting_types())
    commit, git = _git("rev-parse", "HEAD"), None
    if commit is not None:
        changes = _git("status", "--porcelain", "--untracked-files=no")
        git = {"commit": commit, "dirty": bool(changes)}
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    gpus, torch = [], sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        # Without secrets, and without the path of the interpreter.
        "command": shlex.join(["python", *words[1:]] if words else []),
        "working_directory": str(Path.cwd()),
        "git": git,
        "python": platform.python_version(),
        "packages": versions,
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpus": os.cpu_count(),
            "gpus": gpus,
        },
    }


def _git(*words: str) -> str | None:
    # There may be no git, no repository, or a git that hangs.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        output = subprocess.check_output(
            ["git", *words],
            stderr=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
        return output.decode(errors="replace").strip()
    return None
