"""A user's script: `user_script.py ENGINE CONFIG`; nothing in it is about one engine or another.

All of it is in `__main__`: the environment, its tool, the parser and the reward. The environment
writes down what happened in it, so that the tests can compare with what was trained on. Words
after the config are overrides of VERL's, for the tests.
"""

from __future__ import annotations

import json
import sys
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
            with open(self.config["log"], "a") as file:
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


if __name__ == "__main__":
    engine, config_file, *overrides = sys.argv[1:]
    trainer = create_trainer(
        ConfigStore.load(config_file),
        Letters,
        doubled,
        engine=engine,
        tools=[],
        parser=CallsOfEvenLength(),
        **({"verl_overrides": overrides} if overrides else {}),
    )
    with trainer:
        trainer.fit()
