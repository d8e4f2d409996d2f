"""Writes what a benchmark measured into bench/results.jsonl, the source of all figures in the docs.

Each line is one work: its name, its figures (units are part of their names), command, machine, date
and commit. Afterwards `python scripts/figures.py` writes the figures into README.md and docs/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results.jsonl"
Figure = float | Sequence[float]


def add_record_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record", action="store_true", help="write the figures to bench/results.jsonl"
    )


def record(work: str, figures: Mapping[str, Figure], device: str = "cpu") -> None:
    """Replaces the line of this work, or adds one. Call it only if `--record` was given."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    entries = {json.loads(line)["work"]: line for line in lines}
    options = [option for option in sys.argv[1:] if option != "--record"]
    entries[work] = json.dumps(
        {
            "work": work,
            "figures": {name: _short(value) for name, value in figures.items()},
            "command": shlex.join(["python", _script(), *options]),
            "machine": describe_machine(device),
            "date": str(date.today()),
            "commit": _commit(),
        },
        ensure_ascii=False,
    )
    RESULTS.write_text("\n".join(entries.values()) + "\n")


def describe_machine(device: str = "cpu") -> str:
    """The name of the GPU, or the number of cores and the name of the processor."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    names = [platform.processor() or platform.machine()]
    for command in (["cat", "/proc/cpuinfo"], ["lscpu"]):
        try:
            output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
        lines = [line.split(":", 1) for line in output.splitlines() if ":" in line]
        names += [value.strip() for key, value in lines if key.strip().lower() == "model name"][:1]
    return f"{os.cpu_count()} cores, {names[1] if len(names) > 1 else names[0]}"


def _short(value: Figure) -> float | list[float]:
    """Three significant digits; whole numbers stay whole."""
    if isinstance(value, Sequence):
        return [_one(each) for each in value]
    return _one(value)


def _one(value: float) -> float:
    if isinstance(value, int) or abs(value) >= 100:
        return round(value)
    return float(f"{value:.3g}")


def _script() -> str:
    path = Path(sys.argv[0]).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def _commit() -> str | None:
    """The commit that was measured; with a plus if files were changed since."""
    answers = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        for words in (
            ["rev-parse", "--short", "HEAD"],
            ["status", "--porcelain", "-uno", "--", ".", f":!{RESULTS.relative_to(ROOT)}"],
        )
    ]
    if any(answer.returncode for answer in answers):
        return None
    return answers[0].stdout.strip() + ("+" if answers[1].stdout.strip() else "")
