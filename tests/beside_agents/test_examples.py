"""The examples with agents train in their quick mode."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import turnwise

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["agents_sdk", "langgraph_agent"])
def test_an_example_trains_in_its_quick_mode(name, tmp_path):
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--quick"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(turnwise.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "warm start on expert: 2 steps" in ran.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert len(steps) == 2
    assert all(step["num_steps"] > 0 and step["errors"] == 0.0 for step in steps)
