"""Tab: the shell asks, and is offered environments, settings, and folders of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

import turnwise as package
from cli.conftest import get_command
from turnwise.cli import completion


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/one", "runs/two", "elsewhere/deep"):
        Path(name).mkdir(parents=True)
    Path("runs/one/metrics.jsonl").write_text("")
    Path("runs/two/run.json").write_text("{}")
    Path("my.yaml").write_text("")
    Path("mine.py").write_text("")


def words(offers) -> list[str]:
    return [word for word, _ in offers]


def test_environments_are_offered():
    assert words(completion.environments("g")) == ["guess-number", "grid-world", "gym:"]
    assert words(completion.environments("mi")) == ["mine.py:"]


def test_every_setting_is_offered_with_its_help_and_its_choices():
    offers = dict(completion.settings("training.batch"))
    assert list(offers) == ["training.batch_size="]
    assert "one training step" in offers["training.batch_size="]
    assert words(completion.settings("model.dtype=f")) == [
        "model.dtype=float32",
        "model.dtype=float16",
    ]
    assert words(completion.settings("ray.use_ray=")) == ["ray.use_ray=true", "ray.use_ray=false"]
    assert words(completion.settings("training.seed=")) == []
    assert "my.yaml" in words(completion.settings(""))


def test_folders_of_runs_are_offered_and_no_others():
    assert words(completion.runs("")) == ["runs/"]
    assert words(completion.runs("runs/")) == ["runs/one", "runs/two"]
    assert words(completion.runs("runs/t")) == ["runs/two"]
    assert words(completion.runs(f"{Path.cwd()}/runs/o")) == [f"{Path.cwd()}/runs/one"]
    assert words(completion.runs("nowhere/")) == []
    assert words(completion.runs_and_models("t")) == ["tiny"]


def test_the_shell_is_answered():
    """As bash asks: the words so far, and the number of the one that is being written."""

    def ask(*typed: str) -> list[str]:
        code = "import sys; sys.argv = ['turnwise']; from turnwise.cli import main; main()"
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(package.__file__).parents[1]),
            "_TURNWISE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["turnwise", *typed]),
            "COMP_CWORD": str(len(typed)),
        }
        command = [sys.executable, "-c", code]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return ran.stdout.split()

    assert ask("pl") == ["play", "plot"]
    assert ask("play", "sh") == ["shop"]
    assert ask("train", "my.yaml", "training.gam") == ["training.gamma="]
    assert ask("plot", "runs/o") == ["runs/one"]


def test_it_can_be_installed(turnwise, monkeypatch):
    assert "--install-completion" in turnwise("--help").out
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setattr(typer.main, "get_command", get_command.__wrapped__)  # it reads that
    shown = turnwise("--show-completion", "bash")
    assert shown.code == 0, shown.err
    assert "_TURNWISE_COMPLETE=complete_bash" in shown.out or "complete_bash" in shown.out


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["envs"], {"built_in", "forms"}),
        (["config", "training.seed=3"], {"model", "training", "environment"}),
        (["check-env", "guess-number"], {"ok", "findings", "passed"}),
        (["play", "shop", "--player", "expert", "--seed", "1"], {"seed", "reward", "turns"}),
        (["init", "my_env"], {"folder", "files", "environment"}),
        (["doctor"], {"ok", "facts"}),
    ],
)
def test_results_are_told_to_machines_too(turnwise, arguments, keys):
    ran = turnwise(*arguments, "--json")
    assert ran.err == ""
    assert keys <= set(json.loads(ran.out))


def test_json_of_a_finding_has_its_cure(turnwise, coins):
    ran = turnwise("check-env", "coins.py:Coins", "-p", "num_asked=x", "--json")
    assert ran.code == 1
    told = json.loads(ran.out)
    assert told["ok"] is False
    assert told["findings"][0]["fix"]
    refused = turnwise("play", "shop", "--json")
    assert refused.code == 2
    assert "--player expert" in refused.err


@pytest.mark.parametrize(
    "command",
    [
        *("train", "eval", "export", "init", "doctor", "view", "plot"),
        *("play", "check-env", "envs", "config", "chat", "serve"),
    ],
)
def test_help_ends_in_examples_that_are_real(turnwise, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    text = turnwise(command, "--help").out
    options, _, examples = text.rpartition("Examples")
    assert "--help" in options
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert any(line.startswith(f"turnwise {command}") for line in lines)
    known = set(options.replace(",", " ").split())
    for line in lines:
        if line.startswith(f"turnwise {command}"):
            given = [word for word in line.partition(" |")[0].split() if word.startswith("--")]
            assert {word.partition("=")[0] for word in given} <= known, line
