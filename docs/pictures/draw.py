"""The display of a run as a picture, from what the run left behind.

PYTHONPATH=src python docs/pictures/draw.py runs/MyEnv docs/pictures/training.svg
"""

import io
import json
import re
import sys
from pathlib import Path

from rich.console import Console

from turnwise.progress.lines import RunState
from turnwise.progress.live import RunView
from turnwise.runs.metrics_log import MetricsLog
from turnwise.trainer.reporter import RunInfo

WIDTH, HEIGHT = 100, 32


def draw(run: Path) -> str:
    """The last picture of a run, in a terminal of a hundred columns."""
    now = 0.0
    state = RunState(clock=lambda: now)
    facts = json.loads((run / "run.json").read_text())
    history = MetricsLog(run / "metrics.jsonl").read()
    state.begin(RunInfo(Path("runs") / run.name, facts["environment"], "tiny", facts["num_steps"]))
    for metrics in history:
        now += sum(metrics.get(f"time/{part}", 0.0) for part in ("step", "evaluate", "checkpoint"))
        state.step(metrics)
    state.end(facts["status"])
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO())
    console.print(RunView(state))
    svg = console.export_svg(title="turnwise train config.yaml", clear=False)
    # Without the fonts, which would come over the network.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(Path(sys.argv[1])))
