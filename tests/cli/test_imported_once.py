"""A user's file is imported once by each command that needs it, and never run as a script."""

import sys
from pathlib import Path

import pytest

SCRIPT = '''
from turnwise import BaseEnvironment, Trainer

with open("imports.txt", "a") as file:
    file.write(__name__ + "\\n")


class Door(BaseEnvironment):
    max_steps = 1

    def reset(self):
        return "Say open."

    def step(self, action):
        return "", float(action == "open"), True, {"success": action == "open"}

    def get_state_description(self):
        return ""

    def expert_action(self):
        return "open"


def score(trajectory):
    return trajectory.total_reward


def knock(times: int) -> str:
    """Knock at the door."""
    return "knock " * times


'''
SETTINGS = """
environment: {name: door.py:Door}
reward: door.py:score
tools: [door.py:knock]
inference: {max_tokens: 2}
training: {num_epochs: 1, steps_per_epoch: 1, batch_size: 2}
"""


@pytest.fixture
def imports(turnwise, tmp_path, monkeypatch):
    """Run a command as in a process of its own; return its result and who imported the file."""
    monkeypatch.chdir(tmp_path)
    Path("door.yaml").write_text(SETTINGS)

    def run(*command):
        for name in [name for name in sys.modules if name.startswith("turnwise_user_door")]:
            del sys.modules[name]
        Path("imports.txt").write_text("")
        return turnwise(*command), Path("imports.txt").read_text().splitlines()

    return run


def test_each_command_imports_the_file_once(imports):
    Path("door.py").write_text(f'{SCRIPT}if __name__ == "__main__":\n    raise SystemExit(9)\n')
    for command in (
        ("check-env", "door.py:Door", "--episodes", "2"),
        ("play", "door.py:Door", "--player", "expert"),
        ("train", "door.yaml"),
        ("eval", "runs/Door", "--episodes", "2"),
        ("play", "runs/Door", "--player", "expert"),
    ):
        ran, names = imports(*command)
        assert ran.code == 0, f"{command}: {ran.err}"
        assert len(names) == 1, command
        assert names[0] != "__main__"


def test_a_script_that_would_train_is_refused_by_each_command(imports):
    Path("door.py").write_text(f"{SCRIPT}Trainer(environment=Door).fit()\n")
    for command in (
        ("check-env", "door.py:Door"),
        ("play", "door.py:Door", "--player", "expert"),
        ("train", "door.yaml"),
        ("eval", "tiny", "--env", "door.py:Door"),
    ):
        ran, _ = imports(*command)
        assert ran.code == 2, command
        assert "door.py starts training" in ran.err
        assert 'if __name__ == "__main__":' in ran.err
    assert not Path("runs").exists()
