"""The provenance of a run: command, commit, packages and machine."""

from __future__ import annotations

import functools
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
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        # Without secrets, and without the path of the interpreter.
        "command": shlex.join(["python", *words[1:]] if words else []),
        "working_directory": str(Path.cwd()),
        "git": git_state(Path.cwd()),
        "python": platform.python_version(),
        "packages": _versions(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpus": os.cpu_count(),
            "gpus": _gpus(),
        },
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the checkout around `folder` and whether it has changes, or None."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes)}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):  # no git, or one that hangs
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
