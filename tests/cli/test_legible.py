"""No command lets foreign text act on a terminal, and none lets it into a log as it is."""

import json
import logging

import pytest
import yaml

from turnwise.legible import LegibleFormatter, legible

# Clears the screen, writes into the clipboard, goes back in the line; one of them in eight bits,
# and one that turns the order of writing round.
ACTING = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\rforged\x9b31m\u202e"
HOSTILE = f"""
from turnwise.env import BaseEnvironment

ACTING = {ACTING!r}


class Loud(BaseEnvironment):
    max_steps = 2

    def get_prompt_prefix(self):
        return "rules " + ACTING

    def reset(self):
        self.taken = 0
        return "reset " + ACTING

    def step(self, action):
        self.taken += 1
        if self.config.get("crashes"):
            raise ValueError("crash " + ACTING)
        return "step " + ACTING, 0.5, self.taken > 1, {{"success": True, "note": ACTING}}

    def get_state_description(self):
        return "state " + ACTING

    def sample_action(self, rng):
        return "random " + ACTING

    def expert_action(self):
        return "expert " + ACTING


class Broken(Loud):
    def reset(self):
        raise RuntimeError("reset " + ACTING)


class Unmade(Loud):
    def __init__(self, config=None):
        raise RuntimeError("made " + ACTING)
"""
SETTINGS = {
    "environment": {"name": "loud.py:Loud"},
    "inference": {"max_turns": 2, "max_tokens": 2},
    "training": {"num_epochs": 1, "steps_per_epoch": 1, "batch_size": 2, "eval_episodes": 2},
    "checkpoint": {"run_name": "loud"},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text(HOSTILE)
    (tmp_path / "loud.yaml").write_text(yaml.safe_dump(SETTINGS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def acts(text: str) -> list[str]:
    return [c for c in text if c not in "\n\t" and legible(c) != c]


def test_environments_say_what_they_want(turnwise, folder):
    for command in (
        ["check-env", "loud.py:Loud"],
        ["check-env", "loud.py:Broken"],
        ["check-env", "loud.py:Unmade"],
        ["check-env", "loud.py:Loud", "--param", "crashes=true", "--json"],
        ["play", "loud.py:Loud", "--player", "random"],
        ["play", "loud.py:Loud", "--player", "expert", "--json"],
        ["play", "loud.py:Broken", "--player", "random"],
        ["play", "loud.py:Unmade", "--player", "random"],
        ["eval", "tiny", "--env", "loud.py:Loud", "--episodes", "1", "--show", "1"],
        ["eval", "tiny", "--env", "loud.py:Broken", "--episodes", "1"],
        ["eval", "tiny", "--env", "loud.py:Unmade", "--episodes", "1"],
    ):
        ran = turnwise(*command)
        assert ran.out + ran.err, command
        assert not acts(ran.out + ran.err), (command, ran)


def test_a_run_and_its_log(turnwise, folder):
    for more in ([], ["--fresh", "--name", "crashing", "environment.params.crashes=true"]):
        ran = turnwise("train", "loud.yaml", *more)
        assert not acts(ran.out + ran.err), ran
    logs = [path.read_text() for path in folder.glob("runs/*/log.txt")]
    assert len(logs) == 2
    assert not [log for log in logs if acts(log)]
    assert any("crash ␛[2J" in log for log in logs)
    (folder / "runs/loud/metrics.jsonl").write_text(json.dumps({"step": 1, f"x{ACTING}": 1.0}))
    for command in ("doctor", "plot"):
        ran = turnwise(command, "runs/loud")
        assert not acts(ran.out + ran.err), (command, ran)


def test_a_record_stays_one():
    record = logging.LogRecord("turnwise", logging.INFO, "", 0, "a\n2026 INFO b\x1b", (), None)
    text = LegibleFormatter("%(levelname)s %(message)s").format(record)
    assert text == "INFO a\n    2026 INFO b␛"


def test_half_a_character_is_shown_as_one_that_is_unknown(turnwise, folder):
    (folder / "half.py").write_text(
        "from loud import Loud\n\nclass Half(Loud):\n"
        "    def reset(self):\n        self.taken = 0\n        return 'a\\ud800b'\n"
    )
    assert "a\ufffdb" in turnwise("play", "half.py:Half", "--player", "random").out
