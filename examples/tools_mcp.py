"""Tools of an MCP server, which this file starts as a process and uses over stdio.

A guest asks for a price. The server has the price list and one tool: the agent has to call it
with the right item and to repeat the result.

    pip install 'turnwise[mcp]'
    python examples/tools_mcp.py            a few minutes on two cores
    python examples/tools_mcp.py --quick    a few steps in seconds, to see that it runs
    python examples/tools_mcp.py serve      the server alone, for any MCP client

It prints the number of calls per episode (tool_calls), how many of them fail (tool_failures), and
the reward. Random play gives the right price once in ten times.
"""

import os
import sys

from turnwise import BaseEnvironment, ConfigStore, Trainer
from turnwise.tools import MCPTools, ToolCall, get_parser

PRICES = {"tea": 3, "jam": 7, "egg": 1, "oil": 9, "fig": 4, "nut": 6}
WRITE = get_parser("react").render  # the format of tool calls here


def serve():
    """Runs the MCP server on standard input and output."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("prices")

    @server.tool()
    def price(item: str) -> str:
        """Return the price of an item."""
        return str(PRICES[item])

    server.run("stdio")


class Guest(BaseEnvironment):
    """Answer with the price: one digit."""

    max_steps = 3
    quick = True

    def reset(self):
        self._done = False
        self.item = self.rng.choice(sorted(PRICES))
        return f"What is {self.item}?"

    def step(self, action):  # every turn that is not a tool call
        self._done = True
        is_right = action.strip() == str(PRICES[self.item])
        return "Thank you.", float(is_right), True, {"success": is_right}

    def get_state_description(self):
        return f"asked for {self.item}"

    def sample_action(self, rng):  # random calls and answers, to teach the format
        if rng.random() < 0.5:
            return WRITE(ToolCall("price", {"item": rng.choice(sorted(PRICES))}))
        return str(rng.randrange(10))


def settings(quick):
    config = ConfigStore()
    config.inference.max_tokens = 48  # a tool call; a token of the tiny model is a byte
    config.inference.max_turns = 3
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
    command = [__file__, "serve"]
    with (  # the server gets few environment variables: API keys stay here
        MCPTools.stdio(sys.executable, command, env=dict(os.environ)) as source,
        Trainer(settings(quick), Guest, tools=source.tools, parser="react") as trainer,
    ):
        history = trainer.fit()
        for name in ("reward", "tool_calls", "tool_failures"):
            first, last = (step.get(name, 0.0) for step in (history[0], history[-1]))
            print(f"{name} {first:.2f} -> {last:.2f}")


if __name__ == "__main__":
    if "serve" in sys.argv:
        serve()
    else:
        main(quick="--quick" in sys.argv)
