"""A plain script that is interrupted saves its run and ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import turnwise

SCRIPT = """
import logging

from turnwise import ConfigStore, Trainer

logging.basicConfig(level=logging.INFO, format="%(message)s")
config = ConfigStore()
config.environment.params = {"low": 1, "high": 7}
config.inference.max_tokens = 2
config.training.batch_size = 4
config.training.num_epochs = 100_000
config.checkpoint.run_name = "mine"
Trainer(config).fit()
"""


def test_ctrl_c_ends_a_script_after_the_save(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    source = str(Path(turnwise.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-u", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        for line in process.stdout:
            if line.startswith("step 1/"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
    assert process.returncode in (1, -signal.SIGINT), rest
    assert "saving the run first" in rest
    assert any((tmp_path / "runs" / "mine" / "checkpoints").iterdir())
