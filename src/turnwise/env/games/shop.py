"""Fill an order in a shop: look things up with one tool, buy with another."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.games.common import read_params, require
from turnwise.errors import ToolError
from turnwise.tools import FunctionTool, JSONActionParser, ToolCall, ToolRegistry
from turnwise.tools.base import ToolMark

ARTICLES: dict[str, tuple[str, ...]] = {
    "fruit": ("apple", "cherry", "fig", "pear", "plum"),
    "drink": ("cocoa", "coffee", "juice", "milk", "tea"),
    "cloth": ("cotton", "felt", "linen", "silk", "wool"),
    "paint": ("black", "blue", "green", "red", "white"),
}
_MAX_QUANTITY = 5
_MAX_STOCK = 9
_PRICES = range(1, 10)
_INVALID_REWARD = -0.05
_PARSER = JSONActionParser()


@dataclass(frozen=True)
class Article:
    """Price and stock of an article, which the agent must look up."""

    price: int
    stock: int


class ShopEnvironment(BaseEnvironment):
    """Buy the asked quantity of the cheapest article of a kind that has enough in stock.

    Parameter: `num_choices`, how many articles of the kind there are (2 to 5, default 3).

    Prices and stock are hidden until `look_up` tells them, and the one `buy` that the shop
    allows closes the order: without looking up, the right article is a guess of one in
    `num_choices`; without buying, nothing is earned. The right purchase is rewarded with 1.

    >>> env = ShopEnvironment()
    >>> env.seed(1)
    >>> env.reset()
    'Order: 1 of drink. Choices: tea, milk, juice.'
    >>> env.expert_action()
    '{"tool": "look_up", "arguments": {"item": "tea"}}'
    """

    quick = True

    max_steps = 8

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self.num_choices: int = read_params(self, num_choices=3)["num_choices"]
        require(
            2 <= self.num_choices <= 5, f"num_choices must be from 2 to 5, got {self.num_choices}"
        )
        # Not `@tool` methods: an episode would execute those itself, without `step` and its reward.
        # Inline: `step` has a timeout already, and a thread for each call takes time.
        self._tools = ToolRegistry()
        for function in (self.look_up, self.buy):
            self._tools.register(FunctionTool(function, ToolMark(inline=True)))
        self._begin(random.Random(0))  # playable at once; reset draws a new order

    def _begin(self, rng: random.Random) -> None:
        self._done = False
        self.step_count = 0
        self._filled = False
        self._known: set[str] = set()
        # Other random numbers than a player with the same seed.
        rng = random.Random(rng.random())
        self._kind = rng.choice(list(ARTICLES))
        self._quantity = rng.randint(1, _MAX_QUANTITY)
        items = rng.sample(ARTICLES[self._kind], self.num_choices)
        # No two prices are the same, so one article is right; at least that one has enough.
        prices = rng.sample(_PRICES, self.num_choices)
        in_stock = rng.sample(items, rng.randint(1, self.num_choices))
        self._shelf: dict[str, Article] = {}
        for item, price in zip(items, prices, strict=True):
            enough = (self._quantity, _MAX_STOCK) if item in in_stock else (0, self._quantity - 1)
            self._shelf[item] = Article(price, rng.randint(*enough))

    def reset(self) -> str:
        self._begin(self.rng)
        return f"Order: {self._quantity} of {self._kind}. Choices: {', '.join(self._shelf)}."

    def look_up(self, item: str) -> str:
        """Tell the price and the stock of an item.

        Args:
            item: One of the choices.
        """
        item = self._find(item)
        self._known.add(item)
        return self._describe(item)

    def buy(self, item: str, quantity: Annotated[int, Ge(1)]) -> str:
        """Buy an item. This closes the order.

        Args:
            item: One of the choices.
            quantity: As many as the order asks for.
        """
        item = self._find(item)
        self._done = True
        if quantity > self._shelf[item].stock:
            return f"There are not {quantity} {item}. The order failed."
        self._filled = (item, quantity) == (self._best(set(self._shelf)), self._quantity)
        return f"Bought {quantity} {item}. {'Well done.' if self._filled else 'That was wrong.'}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self.is_done():
            return "The order is closed.", 0.0, True, {}
        self.step_count += 1
        parsed = _PARSER.parse(action)
        if parsed.malformed is not None or len(parsed.calls) != 1:
            problem = parsed.malformed or f"found {len(parsed.calls) or 'no'} calls"
            example = _write("look_up", item=next(iter(self._shelf)))
            return self._refuse(f"Write one call: {problem}. Example: {example}", None)
        call = parsed.calls[0]
        worked, answer = self._tools.execute_tool(call.name, **call.arguments)
        if not worked:
            return self._refuse(answer, call.name)
        info = {"success": self._filled, "invalid_action": False, "tool": call.name}
        return answer, float(self._filled), self._done, info

    def _refuse(self, problem: str, name: str | None) -> tuple[str, float, bool, dict[str, Any]]:
        """Returns an error message, in ASCII as all texts of the shop."""
        text = problem.encode("ascii", "backslashreplace").decode()
        info = {"success": False, "invalid_action": True, "tool": name}
        return text, _INVALID_REWARD, False, info

    def _find(self, item: str) -> str:
        if self._done:
            raise ToolError("The order is closed.")
        name = item.strip().lower()
        if name not in self._shelf:
            raise ToolError(f"There is no {item[:20]!r}. Choices: {', '.join(self._shelf)}.")
        return name

    def _describe(self, item: str) -> str:
        return f"{item}: price {self._shelf[item].price}, stock {self._shelf[item].stock}."

    def _best(self, items: set[str]) -> str | None:
        """Returns the cheapest of `items` that has enough in stock."""
        enough = [item for item in items if self._shelf[item].stock >= self._quantity]
        return min(enough, key=lambda item: self._shelf[item].price, default=None)

    def get_state_description(self) -> str:
        shelf = [
            self._describe(item) if item in self._known else f"{item}: unknown."
            for item in self._shelf
        ]
        closed = ["Closed."] if self._done else []
        return " ".join([f"Order: {self._quantity} of {self._kind}.", *shelf, *closed])

    def get_prompt_prefix(self) -> str:
        tools = [f"{known.signature}: {known.description}" for known in self._tools.definitions]
        return "\n".join(
            [
                "Fill the order: buy as many as it asks for of the cheapest choice that has "
                "enough in stock. You can buy once.",
                *tools,
                f"Write one call a turn, as JSON. You have {self.max_steps} turns. Examples:",
                _write("look_up", item="tea"),
                _write("buy", item="tea", quantity=2),
            ]
        )

    def sample_action(self, rng: random.Random) -> str:
        item = rng.choice(list(self._shelf))
        if rng.random() < 0.5:
            return _write("look_up", item=item)
        return _write("buy", item=item, quantity=rng.randint(1, _MAX_QUANTITY))

    def expert_action(self) -> str:
        """Looks everything up, then buys; in the last turn it buys the best known article."""
        unknown = [item for item in self._shelf if item not in self._known]
        if unknown and self.step_count < self.max_steps - 1:
            return _write("look_up", item=unknown[0])
        best = self._best(self._known) or (unknown or list(self._shelf))[0]
        return _write("buy", item=best, quantity=self._quantity)


def _write(name: str, **arguments: Any) -> str:
    return _PARSER.render(ToolCall(name, arguments))
