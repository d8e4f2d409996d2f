"""A custom tool with state for each episode.

A coin is under one of three cups. The agent may look under two of them with a tool, and then has
to say where the coin is. Concurrent episodes share the tool; `context.store` belongs to one
episode and counts its looks.

    python examples/own_tool.py            a few minutes on two cores
    python examples/own_tool.py --quick    a few steps in seconds, to see that it runs

The model starts from random play, where it ignores what it sees and is right once in three times.
Training teaches it to look first and to use the result.
"""

import sys

from turnwise import BaseEnvironment, ConfigStore, ToolError, Trainer, tool
from turnwise.tools import ToolCall, ToolContext, get_parser

CUPS = "abc"
NUM_LOOKS = 2
WRITE = get_parser("react").render  # the format of tool calls here


@tool(inline=True)  # it never blocks: called without a thread
def look(cup: str, context: ToolContext) -> str:
    """Look under a cup.

    Args:
        cup: a, b or c.
    """
    if cup not in CUPS:
        raise ToolError(f"there is no cup {cup}: a, b or c")  # the model reads this text
    context.store["looks"] = context.store.get("looks", 0) + 1  # empty at the start of each episode
    if context.store["looks"] > NUM_LOOKS:
        raise ToolError("no more looks")
    return "coin" if context.environment.cup == cup else "empty"


class Cups(BaseEnvironment):
    """Say under which cup the coin is: a, b or c."""

    max_steps = 4
    quick = True

    def reset(self):
        self._done = False
        self.cup = self.rng.choice(CUPS)
        return "Which cup?"

    def step(self, action):  # every turn that is not a tool call
        self._done = True
        is_right = action.strip() == self.cup
        return f"It was {self.cup}.", float(is_right), True, {"success": is_right}

    def get_state_description(self):
        return f"the coin is under {self.cup}"

    def sample_action(self, rng):
        cup = rng.choice(CUPS)
        return WRITE(ToolCall("look", {"cup": cup})) if rng.random() < 0.5 else cup


def settings(quick):
    config = ConfigStore()
    config.inference.max_tokens = 44  # a tool call; a token of the tiny model is a byte
    config.inference.max_turns = 4
    config.training.warm_start = "random"
    config.training.warm_start_steps = 60
    config.training.warm_start_learning_rate = 3e-3
    config.training.batch_size = 8 if quick else 48
    config.training.update_epochs = 2
    config.training.learning_rate = 1e-3
    config.training.kl_loss_coef = 0.02
    config.training.steps_per_epoch = 2 if quick else 10
    config.training.num_epochs = 1 if quick else 6
    return config


def main(quick):
    with Trainer(settings(quick), Cups, tools=[look], parser="react") as trainer:
        history = trainer.fit()
        for name in ("reward", "tool_calls", "tool_failures"):
            first, last = (step.get(name, 0.0) for step in (history[0], history[-1]))
            print(f"{name} {first:.2f} -> {last:.2f}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
