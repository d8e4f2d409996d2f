"""Three kinds of tiny runs, trained once: a script's environment, one with tools and a JSONL
dataset, a Gymnasium one."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from turnwise import ConfigStore, Trainer
from turnwise.user_code import import_file

GREENHOUSE = '''
from turnwise import BaseEnvironment, tool


class Greenhouse(BaseEnvironment):
    """The door opens to whoever has said the word of the row."""

    max_steps = 3
    said = ""

    def reset(self):
        self.said = ""
        return f"Say the {self.task['kind']}."

    @tool
    def say_word(self, word: str) -> str:
        """Say the word."""
        self.said = word
        return f"You said {word}."

    def step(self, action):
        success = self.said == self.task["word"]
        return "", float(success), True, {"success": success}

    def get_state_description(self):
        return self.said or "silence"

    def expert_action(self):
        if self.said:
            return "done"
        return '{"name": "say_word", "arguments": {"word": "%s"}}' % self.task["word"]


def look_up(kind: str) -> str:
    """Find the word of a kind."""
    return {"flower": "lily", "tree": "oak"}[kind]


def double(trajectory):
    return 2.0 * trajectory.total_reward
'''
ROWS = [{"kind": "flower", "word": "lily"}, {"kind": "tree", "word": "oak"}]


@dataclass(frozen=True)
class ThreeRuns:
    """The folder in which they were trained, and each run."""

    folder: Path
    script: Path
    tools: Path
    gym: Path

    @property
    def checkpoint(self) -> Path:
        """The last one of the run with tools."""
        return sorted(self.tools.glob("checkpoints/step-*"))[-1]


@pytest.fixture(scope="session")
def three_runs(tmp_path_factory):
    from cli.conftest import COINS  # which imports this file

    folder = tmp_path_factory.mktemp("project")
    (folder / "coins.py").write_text(COINS)
    (folder / "greenhouse.py").write_text(GREENHOUSE)
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        coins = import_file(Path("coins.py"))
        greenhouse = import_file(Path("greenhouse.py"))
        _train("script", coins.Coins, system_prompt="Count your coins.")
        _train(
            "tools",
            greenhouse.Greenhouse,
            reward_fn=greenhouse.double,
            dataset="rows.jsonl",
            tools=[greenhouse.look_up],
            parser="json",
            system_prompt="You are a gardener.",
        )
        _train("gym", "gym:FrozenLake-v1", params={"map_name": "4x4"})
    return ThreeRuns(folder, *(folder / "runs" / name for name in ("script", "tools", "gym")))


def _train(name: str, environment: object, *, params: dict | None = None, **parts: object) -> None:
    training = ("num_epochs=1", "steps_per_epoch=1", "batch_size=2", "eval_episodes=0")
    settings = [f"training.{setting}" for setting in training]
    settings += ["inference.max_tokens=4", "inference.max_turns=4", f"checkpoint.run_name={name}"]
    config = ConfigStore.load(overrides=settings)
    config.environment.params = params or {}
    with Trainer(config, environment, **parts) as trainer:
        trainer.fit()
