"""Every example trains in its quick mode and is listed in examples/README.md."""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import turnwise

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {
    "gymnasium_frozen_lake": "gymnasium",
    "tools_mcp": "mcp",
    "ray_cluster": "ray",
    "agents_sdk": "agents.run",  # tests/agents is a package of that name too
    "langgraph_agent": "langgraph",
}
# The last lines of its output.
SAID = {
    "text_game": r"success \d\.\d\d -> \d\.\d\d",
    "guess_number": r"grpo: \d\.\d\d of the held-out numbers",
    "gymnasium_frozen_lake": r"reward -?\d\.\d\d -> ",
    "tools_mcp": r"tool_calls \d\.\d\d -> ",
    "shop": r"reward -?\d\.\d\d -> ",
    "alphabet_sort": r"reward \d\.\d\d -> ",
    "own_tool": r"tool_calls \d\.\d\d -> ",
    "agents_sdk": r"reward \d\.\d\d -> ",
    "langgraph_agent": r"reward \d\.\d\d -> ",
    "self_play": r"against a random player: \d\.\d\d of the games won before",
    "smollm2": r"quick mode: the tiny model(.|\n)*tokens_per_turn \d",
    "llm_judge": r"the judge's score: \d\.\d\d, then \d\.\d\d",
    "ray_cluster": r"success \d\.\d\d -> ",
    "verl_trainer": r"pip install 'turnwise\[verl\]'|actor_rollout_ref:",
}


def run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--quick"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(turnwise.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES])
def test_an_example_trains_in_its_quick_mode(name, tmp_path):
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    ran = run(name, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert re.search(SAID[name], ran.stdout), ran.stdout
    if name == "verl_trainer":
        return  # it prints a config, or what is missing
    for folder in (tmp_path / "runs").iterdir():
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        assert len(steps) == 2
        assert all(step["num_steps"] > 0 and step["errors"] == 0.0 for step in steps)
        if name in ("tools_mcp", "own_tool"):
            assert sum(step.get("tool_calls", 0.0) for step in steps) > 0.0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_it_shows_and_how_to_run_it(path):
    text = path.read_text()
    about = ast.get_docstring(ast.parse(text)) or ""
    assert f"python examples/{path.name} " in about
    assert "--quick" in about
    assert len(text.splitlines()) <= 130


def test_the_table_lists_every_example_and_no_other():
    table = (ROOT / "examples" / "README.md").read_text()
    assert re.findall(r"^\| \[`(\w+\.py)`\]\(\1\)", table, re.M) == [
        path.name for path in sorted(EXAMPLES, key=lambda path: table.index(f"`{path.name}`"))
    ]
