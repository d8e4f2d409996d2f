"""Tools of an MCP server: a real one, over stdio, that this file starts as a process of its own.

A guest asks what something costs. The price list is at the server, which has one tool: the agent
has to call it with the right thing and to repeat what it answers.

    pip install 'turnwise[mcp]'
    python examples/tools_mcp.py            some minutes on two cores
    python examples/tools_mcp.py --quick    seconds: a few steps, to see that it runs
    python examples/tools_mcp.py serve      the server alone, for any MCP client

One sees how many calls an episode makes (tool_calls), how many of them fail (tool_failures: a
thing that the list does not have) and, in full, how both and the reward change. Random play tells
the right price once in ten times.
"""

import os
import sys

from turnwise import BaseEnvironment, ConfigStore, Trainer
from turnwise.tools import MCPTools, ToolCall, get_parser

PRICES = {"tea": 3, "jam": 7, "egg": 1, "oil": 9, "fig": 4, "nut": 6}
WRITE = get_parser("react").render  # the form in which calls are written and read here


def serve():
    """The other process: it knows the prices, and speaks MCP on its standard input and output."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("prices")

    @server.tool()
    def price(item: str) -> str:
        """Tell what an item costs."""
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

    def step(self, action):  # whatever is not a call of a tool
        self._done = True
        is_right = action.strip() == str(PRICES[self.item])
        return "Thank you.", float(is_right), True, {"success": is_right}

    def get_state_description(self):
        return f"asked for {self.item}"

    def sample_action(self, rng):  # calls and answers at random: the form, not the sense
        if rng.random() < 0.5:
            return WRITE(ToolCall("price", {"item": rng.choice(sorted(PRICES))}))
        return str(rng.randrange(10))


def settings(quick):
    config = ConfigStore()
    config.inference.max_tokens = 48  # a call, letter by letter
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
    with (  # of our environment a server gets little, unless it is given more: keys stay here
        MCPTools.stdio(sys.executable, command, env=dict(os.environ)) as source,
        Trainer(settings(quick), Guest, tools=source.tools, parser="react") as trainer,
    ):
        history = trainer.fit()
        for name in ("reward", "tool_calls", "tool_failures"):
            first, last = (step.get(name, 0.0) for step in (history[0], history[-1]))
            print(f"{name} {first:.2f} at first, {last:.2f} at last")


if __name__ == "__main__":
    if "serve" in sys.argv:
        serve()
    else:
        main(quick="--quick" in sys.argv)
