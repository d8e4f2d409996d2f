"""A command line to call in the tests, and an environment of a user's own."""

import functools
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import typer.main
import yaml

from cli.three_runs import three_runs as three_runs
from turnwise.cli import main

COINS = '''
from turnwise.env import BaseEnvironment


class Coins(BaseEnvironment):
    """Take exactly as many coins as asked for."""

    max_steps = 4

    def get_prompt_prefix(self):
        return "Say take or stop. [bold]Be quick.[/bold]"

    def reset(self):
        self.num_asked = self.config.get("num_asked", 1 + self.rng.randrange(2))
        self.num_taken = 0
        return f"Take {self.num_asked}."

    def step(self, action):
        if action == "crash":
            return {}[action]
        if action == "take":
            self.num_taken += 1
            return f"You have {self.num_taken}.", -0.1, False, {}
        if action == "stop":
            success = self.num_taken == self.num_asked
            return "The end.", float(success), True, {"success": success}
        return "What?", 0.0, False, {"invalid_action": True}

    def get_state_description(self):
        return f"taken {self.num_taken} of {self.num_asked}"

    def sample_action(self, rng):
        return rng.choice(["take", "stop"])

    def expert_action(self):
        return "take" if self.num_taken < self.num_asked else "stop"


class Mute(Coins):
    def sample_action(self, rng):
        return None

    def expert_action(self):
        return None
'''


# Typer makes all commands anew for every call, which takes longer than most of what is called.
get_command = functools.cache(typer.main.get_command)


@dataclass
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def turnwise(monkeypatch, capsys):
    """Run a command in this process, as a shell would: arguments, piped input, exit code."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(typer.main, "get_command", get_command)

    def run(*arguments: str, typed: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as left:
            main(arguments)
        captured = capsys.readouterr()
        return Ran(int(left.value.code or 0), captured.out, captured.err)

    return run


def figures(turnwise: Callable[..., Ran], *arguments: str) -> dict:
    """What `turnwise eval` says with --json."""
    ran = turnwise("eval", *arguments, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.fixture
def runs(three_runs, monkeypatch):
    """The user is in the folder where the three runs were trained."""
    monkeypatch.chdir(three_runs.folder)
    return three_runs


@pytest.fixture
def my_yaml(tmp_path, monkeypatch):
    """The user's folder, which holds the settings of a run of one step, and the user is in it."""
    monkeypatch.chdir(tmp_path)
    settings = {
        "environment": {"name": "guess-number", "params": {"high": 7}, "max_steps": 2},
        "inference": {"max_tokens": 3},
        "training": {"batch_size": 2, "steps_per_epoch": 1, "num_epochs": 1, "eval_episodes": 2},
        "checkpoint": {"run_name": "mine"},
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path


@pytest.fixture
def run(turnwise, my_yaml):
    """That run, trained."""
    ran = turnwise("train", "my.yaml")
    assert ran.code == 0, ran.err
    return "runs/mine"


@pytest.fixture
def coins(tmp_path, monkeypatch):
    """The user's folder holds coins.py, and the user is in it."""
    (tmp_path / "coins.py").write_text(COINS)
    monkeypatch.chdir(tmp_path)
    return "coins.py:Coins"
