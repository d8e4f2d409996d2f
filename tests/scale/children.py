"""Starts the processes of a torch.distributed group, each a script in this folder."""

import os
import subprocess
import sys
from pathlib import Path

import turnwise

TESTS = Path(__file__).parents[1]


def run_learners(script, world, folder, **environment):
    """Run `script RANK WORLD FOLDER` for every rank, to the end."""
    path = os.pathsep.join([str(Path(turnwise.__file__).parents[1]), str(TESTS)])
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    children = [
        subprocess.Popen(
            [sys.executable, str(TESTS / "scale" / script), str(rank), str(world), str(folder)],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        for child in children:
            output, _ = child.communicate(timeout=600)
            assert child.returncode == 0, output
    finally:
        for child in children:
            child.kill()
