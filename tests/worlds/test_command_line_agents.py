"""Command-line coding agents from npm, each in a whole training step: it edits a file."""

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from turnwise import Trainer
from turnwise.types import EpisodeStatus
from worlds import coders

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parents[1] / "docs" / "agents.md").read_text("utf-8")
SCRIPTS = dict(re.findall(r'^```sh title="([^"]+)"\n(.*?)^```', PAGE, re.M | re.S))
PACKAGES = {
    "codex": "@openai/codex@0.169.0",
    "claude": "@anthropic-ai/claude-code@2.1.327",
    "qwen": "@qwen-code/qwen-code@0.24.4",
    "gemini": "@google/gemini-cli@0.61.0",
    "opencode": "opencode-ai@1.18.33",
}
BRANCHES = {"claude": 1}
"""Claude Code sends its edits back with an argument that the policy did not write."""
SECONDS = 240


@pytest.fixture
def installed():
    """Install a program, once in the user's cache folder; returns the folder of its command."""

    def install(name):
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("needs node and npm (Debian: apt-get install npm)")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        package = PACKAGES[name]
        folder = cache / "turnwise" / "npm" / f"{name}-{package.rpartition('@')[2]}"
        if not (folder / "ready").exists():
            command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix"]
            subprocess.run([*command, str(folder), package], check=True, timeout=600)
            (folder / "ready").touch()
        return folder / "node_modules" / ".bin"

    return install


@pytest.mark.parametrize("name", PACKAGES)
def test_it_edits_a_file_in_a_training_step(name, installed, tmp_path, monkeypatch):
    work = tmp_path / "repository"
    work.mkdir()
    (work / "sums.py").write_text(f"def add(a, b):\n    return {coders.BUG}\n")
    for script in ("episode.sh", f"{name}.sh"):
        (tmp_path / script).write_text(SCRIPTS[script])
    for variable, value in {
        "PATH": f"{installed(name)}:{os.environ['PATH']}",
        "WORK": str(work),
        "CLIENT": str(tmp_path / f"{name}.sh"),
        # Nothing outside this machine can be reached.
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
    }.items():
        monkeypatch.setenv(variable, value)
    model, tokenizer = coders.make_model()
    config = {
        "agent": f"bash {tmp_path}/episode.sh {{task}}",
        "inference": {
            "backend": f"{HERE}/coders.py:ScriptedCoder", "max_tokens": 1000, "max_turns": 8,
        },
        "training": {"adv_estimator": "grpo", "group_size": 2, "batch_size": 1, "num_epochs": 1},
        "limits": {"max_seconds": SECONDS, "max_tokens": 200_000},
        "checkpoint": {"output_dir": str(tmp_path / "runs")},
    }  # fmt: skip
    with Trainer(
        config,
        model=model,
        tokenizer=tokenizer,
        dataset=[{"prompt": coders.TASK}],
        parser="hermes",
        reporter=None,
    ) as trainer:
        script = type(trainer.components.engine).script = coders.Script()
        episodes = trainer.rollout()
        metrics = trainer.train_step(episodes)
    assert [episode.status for episode in episodes] == [EpisodeStatus.DONE] * 2
    assert sorted(episode.reward.total for episode in episodes) == [0.0, 1.0]
    sampled = [each for episode in episodes for each in in_context(episode.stream)]
    assert Counter(map(str, sampled)) == Counter(map(str, script.sampled))
    for episode in episodes:
        assert len(episode.stream.turns) == 3
        assert len(episode.stream.branches) == BRANCHES.get(name, 0)
        assert sum(len(turn.calls) for turn in episode.turns) == 2
    assert metrics["grad_norm"] > 0
    assert metrics["gap_max"] < 1e-4, "the learner scores the tokens that the engine sampled"


def in_context(stream):
    """What was sampled in each turn, and all that stands before it in its conversation."""
    for begin, end in stream.turns:
        context = [i for a, b in stream.context(begin) for i in stream.ids[a:b]]
        assert all(stream.mask[begin:end])
        yield context, list(stream.ids[begin:end]), list(stream.log_probs[begin:end])
