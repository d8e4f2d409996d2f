"""A user's script, as the tests run it: `user_script.py ENGINE OUTPUT ESTIMATOR STEPS OVERRIDE...`.

All of it is in `__main__`: the environment, its tool, the parser and the reward. The environment
writes down what happened in it, so that the tests can compare with what VERL trained on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from turnwise import (
    ActionParser,
    BaseEnvironment,
    ConfigStore,
    ParseResult,
    ToolCall,
    create_trainer,
    tool,
)

OUTPUT = Path(sys.argv[2]).absolute()
MOST_ACTIONS = 2


class Letters(BaseEnvironment):
    """Two actions, each worth its length and its letters; a tool that counts in between."""

    def reset(self, seed: int | None = None) -> str:
        self.start = seed
        self.events: list[list[Any]] = []
        return f"Say something, number {seed}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        reward = len(action) / 10 + action.count("e") / 2
        number = 1 + sum(event[0] == "step" for event in self.events)
        observation = f"That was action {number}."
        self.events.append(["step", action, reward, observation])
        return observation, reward, number == MOST_ACTIONS, {"success": reward > 0.5}

    @tool
    def count(self, text: str) -> int:
        """How many characters a text has."""
        self.events.append(["tool", text, 0.0, str(len(text))])
        return len(text)

    def get_state_description(self) -> str:
        return f"{len(self.events)} events"

    def close(self) -> None:
        if self.events:
            with open(OUTPUT / "environments.jsonl", "a") as file:
                file.write(json.dumps({"seed": self.start, "events": self.events}) + "\n")
        self.events = []


class CallsOfEvenLength(ActionParser):
    """A model that has learned nothing calls no tool by itself; half of what it says counts."""

    def parse(self, text: str) -> ParseResult:
        if len(text) % 2:
            return ParseResult(text=text)
        return ParseResult([ToolCall("count", {"text": text})])

    def render(self, call: ToolCall) -> str:
        return " ".join(map(str, call.arguments.values()))


def doubled(trajectory: Any) -> list[float]:
    return [2 * reward for reward in trajectory.rewards]


def settings(estimator: str, num_steps: int) -> ConfigStore:
    config = ConfigStore()
    config.training.adv_estimator = estimator
    config.training.batch_size = 3
    config.training.group_size = 2
    config.training.num_epochs = num_steps
    config.training.steps_per_epoch = 1
    config.training.learning_rate = 1e-3
    config.training.kl_loss_coef = 0.01 if estimator == "grpo" else 0.0
    config.inference.max_tokens = 8
    config.inference.max_turns = 4
    config.checkpoint.output_dir = str(OUTPUT / "runs")
    config.checkpoint.run_name = "run"
    return config


if __name__ == "__main__":
    engine, estimator, num_steps = sys.argv[1], sys.argv[3], int(sys.argv[4])
    options = {"verl_overrides": sys.argv[5:]} if engine == "verl" else {}
    trainer = create_trainer(
        settings(estimator, num_steps),
        Letters,
        doubled,
        engine=engine,
        tools=[],
        parser=CallsOfEvenLength(),
        **options,
    )
    history = trainer.fit()
    trainer.cleanup()
    (OUTPUT / "history.json").write_text(json.dumps(history))
