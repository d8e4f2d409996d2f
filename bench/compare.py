"""Compares two commits: runs the same benchmarks on both, alternating, and prints the ratios.

    python bench/compare.py OLD NEW                                   the default works, 3 rounds
    python bench/compare.py OLD NEW --rounds 5 decode.py --batches 32 --only-local

Each commit is checked out into a temporary folder and gets the benchmarks of this checkout, so that
both run the same code. With several rounds a slow phase of the machine affects both commits. The
median of each figure is printed with new / old: below 1 is better for times and memory, above 1 for
tokens/s.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = [
    "algo.py --repeats 7",
    "decode.py --only-local --batches 1 32",
    "overhead.py --sides turnwise",
    "parsers.py --inputs 20000",
    "train_step.py --sides turnwise --rounds 1 --turns both",
]
Figures = dict[tuple[str, str], list[float]]
"""By work and name of the figure: one value for each round."""


@contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """Checks out a commit with the benchmarks of this checkout; removes it afterwards."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        shutil.rmtree(folder / "bench", ignore_errors=True)
        shutil.copytree(ROOT / "bench", folder / "bench")
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def run(command: str, folder: Path) -> dict[tuple[str, str], float]:
    """Runs a benchmark once; returns its figures, of lists the mean."""
    results = folder / "bench" / "results.jsonl"
    results.write_text("")
    script, *options = shlex.split(command)
    done = subprocess.run(
        [sys.executable, str(folder / "bench" / script), *options, "--record"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    entries = [json.loads(line) for line in results.read_text().splitlines()]
    if not entries:
        print(f"{command} recorded nothing on the {folder.name} commit:\n{done.stdout[-1500:]}")
    return {
        (entry["work"], name): sum(value) / len(value) if isinstance(value, list) else value
        for entry in entries
        for name, value in entry["figures"].items()
    }


def show(old: Figures, new: Figures) -> None:
    print(f"{'':58}{'old':>10}{'new':>10}{'new / old':>12}")
    for key in new:
        if key in old:
            before, after = median(old[key]), median(new[key])
            ratio = f"{after / before:.2f}" if before else ""
            label = f"{key[0]}: {key[1]}"
            print(f"{label:58}{before:>10.4g}{after:>10.4g}{ratio:>12}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of two commits.")
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", help="another commit")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each commit, alternating")
    parser.add_argument("bench", nargs=argparse.REMAINDER, help="a script of bench/, its options")
    options = parser.parse_args()
    commands = [shlex.join(options.bench)] if options.bench else DEFAULT
    with (
        tempfile.TemporaryDirectory() as scratch,
        checkout(options.old, Path(scratch) / "old") as old_folder,
        checkout(options.new, Path(scratch) / "new") as new_folder,
    ):
        for command in commands:
            found: dict[Path, Figures] = {
                folder: defaultdict(list) for folder in (old_folder, new_folder)
            }
            for _ in range(options.rounds):
                for place, figures in found.items():
                    for key, value in run(command, place).items():
                        figures[key].append(value)
            print(f"\n{command}", flush=True)
            show(found[old_folder], found[new_folder])


if __name__ == "__main__":
    main()
