"""README and tutorial word by word: their files and commands are run, what they print is compared.

Training is shortened to one small step. What does not depend on it is compared exactly, the
rest with its numbers masked; `make newcomer` runs the tutorial as it is.
"""

import io
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from docs.tutorial import BLOCK
from turnwise.cli import main

ROOT = Path(__file__).resolve().parents[2]
SHORTER = {
    "train": [
        *("training.num_epochs=1", "training.steps_per_epoch=1", "training.batch_size=2"),
        *("training.warm_start_steps=1", "training.eval_episodes=2"),
    ],
    "eval": ["--episodes", "2"],
}
INSTALLS = ("python3", ".", "pip", "pytest")
"""First words of commands that need a machine of their own; `make newcomer` runs them."""
VARIES = re.compile(
    r"(user: |assistant: |(success|reward) .* (training|after) step|runs/MyEnv: 50 steps"
    r"|seeds; highest|step (2|20|36)\b|  |water$|\.\.\.$)"
)
"""Lines that follow from what a whole training run learned, or that stand for others."""


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a line of a shell in this process; return what it prints."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run_line(line):
        typed, _, line = line.rpartition("echo ")[2].rpartition(" | turnwise ")
        words = shlex.split(line.removeprefix("turnwise ").partition(" | ")[0])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as left:
            main([*words, *SHORTER.get(words[0], [])])
        printed = capsys.readouterr()
        assert not left.value.code, f"{line}: {printed.err}"
        return printed.out.splitlines()[-1] if line.endswith("| tail -1") else printed.out

    return run_line


def test_the_tutorial_prints_what_it_says(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed, has_learned, num_compared = [], None, 0
    for kind, title, body in BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text()):
        if title:
            Path(title).write_text(body)
        elif kind == "sh":
            printed, has_learned = [], re.search("turnwise (train|eval|doctor|chat)", body)
            for line in body.splitlines():
                first = line.split()[0]
                if first == "cd":
                    monkeypatch.chdir(line.split()[1])
                elif first not in INSTALLS:
                    printed += run(line).splitlines()
        elif kind == "text":
            assert_printed(body.splitlines(), printed, exactly=not has_learned)
            num_compared += 1
    assert num_compared == 6
    assert Path("gardener/model.safetensors").is_file()
    assert Path("curve.png").is_file()


def assert_printed(shown, printed, *, exactly):
    """Every line of the page is printed, in the same order."""
    left = iter([line if exactly else masked(line) for line in printed])
    for line in shown:
        is_left_out = line in ("", "...") or (VARIES.match(line) and not exactly)
        expected = line if exactly else masked(line)
        assert is_left_out or expected in left, f"{line!r} is not printed, but {printed}"


def masked(line):
    """A line without its numbers; a step as far as its reward."""
    line = re.sub(r"^(step \S+ +reward \S+).*", r"\1", line)
    return " ".join(re.sub(r"\d[\d.]*", "#", line).split())


def test_the_twenty_lines_are_a_script_whose_run_can_be_evaluated(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ((title, text),) = re.findall(
        r'^```python title="([^"]+)"\n(.*?)^```', (ROOT / "README.md").read_text(), re.M | re.S
    )
    for long, short in [
        ("warm_start_steps = 12", "warm_start_steps = 1"),
        ("batch_size = 64", "batch_size = 2"),
        ("fit(num_epochs=2)", "fit(1, 1)"),
        ("evaluate()", "evaluate(2)"),
    ]:
        assert long in text
        text = text.replace(long, short)
    Path(title).write_text(text)
    runpy.run_path(title, run_name="__main__")
    printed = run("turnwise eval runs/Greenhouse")
    assert "runs/Greenhouse on greenhouse.py:Greenhouse, 2 held-out episodes" in printed
    assert re.search(r"^expert +1\.000", printed, re.M)  # in this environment, and in no other
    page = (ROOT / "docs" / "runs.md").read_text()
    example = json.loads(re.search(r"^```json\n(.*?)^```", page, re.M | re.S)[1])
    assert fields(example) == fields(json.loads(Path("runs/Greenhouse/run.json").read_text()))


def fields(value):
    """The names of all fields; of which packages and of git, this machine decides."""
    if not isinstance(value, dict):
        return None
    return {name: name in ("git", "packages") or fields(item) for name, item in value.items()}
