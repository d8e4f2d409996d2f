"""What newcomer.sh needs: the tutorial as a script, and a look at what came of it.

    tutorial.py script PAGE STAGES     the page's files and commands as a bash script
    tutorial.py watch FOLDER STARTED   waits until a reward has risen; prints how long after STARTED
    tutorial.py check FOLDER           fails unless the runs learned and left what the page says

Needs nothing but Python's standard library.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import fmean

# The last five steps against the first two; chance alone moves them by a tenth or so.
RISE = 0.2
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.M | re.S)


def make_script(page: str, stages: str) -> str:
    """Sections in their order: each file that has a title is written, each line of `sh` is run."""
    lines = ["begun=$(date +%s)"]
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        heading, _, body = section.partition("\n")
        commands = [line for block in BLOCK.findall(body) for line in block_lines(*block)]
        if commands:
            lines += [f"printf '\\n== %s\\n' {shlex.quote(heading)}", *commands]
            lines.append(
                f"now=$(date +%s); printf '%6d s  %s\\n' $((now - begun)) "
                f"{shlex.quote(heading)} >> {shlex.quote(stages)}; begun=$now"
            )
    return "\n".join(lines) + "\n"


def block_lines(kind: str, title: str, body: str) -> list[str]:
    if title:
        return [f"cat > {shlex.quote(title)} <<'END OF THE FILE'\n{body}END OF THE FILE"]
    if kind != "sh":
        return []
    return [f"echo {shlex.quote('$ ' + line)}\n{line}" for line in body.splitlines() if line]


def rewards(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["reward"] for line in lines if line.endswith("}")]


def has_risen(run: Path) -> bool:
    values = rewards(run)
    return len(values) >= 10 and fmean(values[-5:]) >= fmean(values[:2]) + RISE


def watch(folder: Path, started: float) -> None:
    while not any(has_risen(file.parent) for file in folder.glob("*/runs/*/metrics.jsonl")):
        time.sleep(0.5)
    print(time.time() - started)


def check(folder: Path) -> None:
    runs = [folder / "runs" / name for name in ("MyEnv", "Greenhouse")]
    for run in runs:
        assert has_risen(run), f"the reward of {run} has not risen: {rewards(run)}"
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG"), "curve.png is no picture"
    model = json.loads((folder / "gardener" / "config.json").read_text())
    assert model["architectures"]
    assert (folder / "gardener" / "model.safetensors").stat().st_size
    look_at(runs)


def look_at(runs: list[Path]) -> None:
    """The viewer serves its page, and it knows the runs."""
    command = ["turnwise", "view", "--no-open", *map(str, runs)]
    viewer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = None
        while address is None:
            line = viewer.stdout.readline()
            assert line, "turnwise view ended before it said where its page is"
            address = re.search(r"http://[\w.:]+", line)
        page = urllib.request.urlopen(address[0] + "/", timeout=30).read().decode()
        assert "<html" in page.lower()
        known = json.load(urllib.request.urlopen(address[0] + "/api/runs", timeout=30))["runs"]
        assert {run["name"] for run in known} == {run.name for run in runs}
    finally:
        viewer.send_signal(signal.SIGINT)
        viewer.wait(timeout=30)


if __name__ == "__main__":
    action, first, *rest = sys.argv[1:]
    if action == "script":
        print(make_script(Path(first).read_text(), rest[0]), end="")
    elif action == "watch":
        watch(Path(first), float(rest[0]))
    else:
        check(Path(first))
