"""A user's file is imported once by each command that needs it, and never run as a script."""

import sys
from pathlib import Path

import pytest

from cli.conftest import COINS

SCRIPT = f'''
with open("imports.txt", "a") as file:
    file.write(__name__ + "\\n")

{COINS}

def score(trajectory):
    return trajectory.total_reward


def knock(times: int) -> str:
    """Knock at a door."""
    return "knock " * times


'''
SETTINGS = """
environment: {name: coins.py:Coins}
reward: coins.py:score
tools: [coins.py:knock]
inference: {max_tokens: 2}
training: {num_epochs: 1, steps_per_epoch: 1, batch_size: 2}
"""


@pytest.fixture
def imports(turnwise, tmp_path, monkeypatch):
    """Run a command as in a process of its own; return its result and who imported the file."""
    monkeypatch.chdir(tmp_path)
    Path("coins.yaml").write_text(SETTINGS)

    def run(*command):
        for name in [name for name in sys.modules if name.startswith("turnwise_user_coins")]:
            del sys.modules[name]
        Path("imports.txt").write_text("")
        return turnwise(*command), Path("imports.txt").read_text().splitlines()

    return run


def test_each_command_imports_the_file_once(imports):
    Path("coins.py").write_text(f'{SCRIPT}if __name__ == "__main__":\n    raise SystemExit(9)\n')
    for command in (
        ("check-env", "coins.py:Coins", "--episodes", "2"),
        ("play", "coins.py:Coins", "--player", "expert"),
        ("train", "coins.yaml"),
        ("eval", "runs/Coins", "--episodes", "2"),
        ("play", "runs/Coins", "--player", "expert"),
    ):
        ran, names = imports(*command)
        assert ran.code == 0, f"{command}: {ran.err}"
        assert len(names) == 1, command
        assert names[0] != "__main__"
