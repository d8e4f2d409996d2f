"""A game whose actions are calls: look prices up, then buy the right article once.

Prices and stock are hidden until `look_up` tells them; the one `buy` that the shop allows closes
the order. Without looking up, the right article is a guess of one in three.

    python examples/shop.py            a few minutes on two cores
    python examples/shop.py --quick    a few steps in seconds, to see that it runs

`turnwise play examples/shop.py:Shop --player expert -p num_choices=5` plays it without a model.
"""

import random
import sys

from turnwise import BaseEnvironment, ConfigStore, ToolError, ToolRegistry, Trainer
from turnwise.tools import JSONActionParser, ToolCall

KINDS = {
    "fruit": ("apple", "cherry", "fig", "pear", "plum"),
    "drink": ("cocoa", "coffee", "juice", "milk", "tea"),
    "cloth": ("cotton", "felt", "linen", "silk", "wool"),
    "paint": ("black", "blue", "green", "red", "white"),
}
PARSER = JSONActionParser()
RULES = """Fill the order: buy as many as it asks for of the cheapest choice that has enough in \
stock. You can buy once.
{tools}
Write one call a turn, as JSON. You have {max_steps} turns. Examples:
{{"tool": "look_up", "arguments": {{"item": "tea"}}}}
{{"tool": "buy", "arguments": {{"item": "tea", "quantity": 2}}}}"""


class Shop(BaseEnvironment):
    """Buy the asked quantity of the cheapest article of a kind that has enough in stock."""

    max_steps = 8

    def __init__(self, num_choices=3):
        super().__init__()
        self.num_choices = num_choices
        # Not methods with @tool: an episode would call those itself, without step and its reward.
        self.tools = ToolRegistry([self.look_up, self.buy])

    def reset(self):
        self._done, self.filled, self.known = False, False, set()
        rng = random.Random(self.rng.random())  # other numbers than a player with the same seed
        self.kind, self.quantity = rng.choice(list(KINDS)), rng.randint(1, 5)
        items = rng.sample(KINDS[self.kind], self.num_choices)
        self.prices = dict(zip(items, rng.sample(range(1, 10), self.num_choices), strict=True))
        enough = rng.sample(items, rng.randint(1, self.num_choices))
        some, none = (self.quantity, 9), (0, self.quantity - 1)
        self.stock = {item: rng.randint(*(some if item in enough else none)) for item in items}
        self.right = min(enough, key=self.prices.get)
        return f"Order: {self.quantity} of {self.kind}. Choices: {', '.join(items)}."

    def look_up(self, item: str) -> str:
        """Tell the price and the stock of an item."""
        self.known.add(item := self.find(item))
        return f"{item}: price {self.prices[item]}, stock {self.stock[item]}."

    def buy(self, item: str, quantity: int) -> str:
        """Buy an item. This closes the order."""
        item = self.find(item)
        self._done = True
        if quantity > self.stock[item]:
            return f"There are not {quantity} {item}. The order failed."
        self.filled = (item, quantity) == (self.right, self.quantity)
        return f"Bought {quantity} {item}. {'Well done.' if self.filled else 'That was wrong.'}"

    def find(self, item):
        if (name := item.strip().lower()) not in self.stock:
            raise ToolError(f"There is no {item[:20]!r}. Choices: {', '.join(self.stock)}.")
        return name

    def step(self, action):
        parsed = PARSER.parse(action)
        if parsed.malformed is None and len(parsed.calls) == 1:
            call = parsed.calls[0]
            worked, answer = self.tools.execute_tool(call.name, **call.arguments)
        else:
            problem = parsed.malformed or f"found {len(parsed.calls) or 'no'} calls"
            example = write("look_up", item=next(iter(self.stock)))
            worked, answer = False, f"Write one call: {problem}. Example: {example}"
        reward = float(self.filled) if worked else -0.05
        return answer, reward, self._done, {"success": self.filled, "invalid_action": not worked}

    def get_state_description(self):
        known = [self.look_up(item) for item in self.stock if item in self.known]
        return f"Order: {self.quantity} of {self.kind}. Known: {' '.join(known) or 'nothing'}"

    def get_prompt_prefix(self):
        tools = [f"{known.signature}: {known.description}" for known in self.tools.definitions]
        return RULES.format(tools="\n".join(tools), max_steps=self.max_steps)

    def sample_action(self, rng):
        item = rng.choice(list(self.stock))
        if rng.random() < 0.5:
            return write("look_up", item=item)
        return write("buy", item=item, quantity=rng.randint(1, 5))

    def expert_action(self):
        unknown = [item for item in self.stock if item not in self.known]
        if unknown:
            return write("look_up", item=unknown[0])
        return write("buy", item=self.right, quantity=self.quantity)


def write(name, **arguments):
    return PARSER.render(ToolCall(name, arguments))


def main(quick):
    config = ConfigStore.load(overrides=["inference.max_tokens=56", "training.kl_loss_coef=0.02"])
    config.training.warm_start = "random"  # the expert looks everything up: nothing to explore
    config.training.warm_start_steps = 4 if quick else 60
    config.training.batch_size = 8 if quick else 48
    config.training.learning_rate = 1e-3
    config.training.max_steps = 2 if quick else 60
    with Trainer(config, Shop) as trainer:
        history = trainer.fit()
        print(f"reward {history[0]['reward']:.2f} -> {history[-1]['reward']:.2f}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
