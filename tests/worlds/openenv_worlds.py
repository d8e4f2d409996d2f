"""Servers written with OpenEnv's own package; run by the Python of `requirements/openenv.txt`.

python openenv_worlds.py PORT
"""

import asyncio
import os
import random
import sys
import time
from typing import Literal

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from starlette.applications import Starlette
from starlette.routing import Mount


class World(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(step_count=0)

    @property
    def state(self):
        return self._state


class Reply(Action):
    message: str


class Text(Observation):
    text: str


class Repeat(World):
    """Says a letter, wants it back: ä is a letter, too."""

    def get_metadata(self):
        return EnvironmentMetadata(name="Repeat", description="Say the letter that you read.")

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.letter = random.Random(seed).choice("abcä")
        self._state = State(episode_id=episode_id, step_count=0, letter=self.letter)
        return Text(text=self.letter)

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        if action.message == "crash":
            raise RuntimeError("the world broke")
        if action.message == "hang":
            time.sleep(1000)
        if action.message == "die":
            os._exit(1)
        is_right = action.message[:1] == self.letter
        done = self._state.step_count == 2
        return Text(text=self.letter, reward=float(is_right) if done else None, done=done)


class Move(Action):
    direction: Literal["left", "right"]
    steps: int = 1


class Place(Observation):
    position: int
    goal: int
    note: str = ""


class Line(World):
    """Walks on a line; an action has two fields."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.position, self.goal = 0, random.Random(seed).choice([-3, 3])
        return Place(position=0, goal=self.goal)

    def step(self, action, timeout_s=None, **kwargs):
        self.position += action.steps if action.direction == "right" else -action.steps
        done = self.position == self.goal
        return Place(position=self.position, goal=self.goal, reward=float(done), done=done)


class Number(Action):
    number: int


class Count(World):
    """One field that is no text; `reset` ignores seeds and takes `start`."""

    def reset(self, start: int = 0):
        self.value = start
        return Text(text=f"{start}")

    def step(self, action, timeout_s=None, **kwargs):
        return Text(text=str(action.number), reward=action.number == self.value + 1, done=True)


class Shop(MCPEnvironment):
    """An MCP environment: two tools, of which one ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("shop")

        @server.tool
        def price(item: str) -> str:
            """Tell the price of an item."""
            return f"{item} costs {self.cost}"

        @server.tool
        def buy(item: str, money: int) -> str:
            """Buy an item."""
            self.paid = money
            return "thank you"

        super().__init__(server)
        self.cost, self.paid = 0, None

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.cost, self.paid = random.Random(seed).randint(1, 5), None
        return Observation(metadata={"message": "Buy tea."})

    def step(self, action, timeout_s=None, **kwargs):
        return self._judged(super().step(action, timeout_s=timeout_s, **kwargs))

    async def step_async(self, action, timeout_s=None, **kwargs):
        return self._judged(await super().step_async(action, timeout_s=timeout_s, **kwargs))

    def _judged(self, seen):
        if self.paid is not None:
            seen.reward, seen.done = float(self.paid == self.cost), True
        return seen

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(metadata={"error": "call a tool"})

    @property
    def state(self):
        return State(step_count=0)


TASKS = {"train": list("abcdefgh"), "test": list("xyz")}


class Quiz(World):
    """Tasks in two splits."""

    def list_splits(self):
        return list(TASKS)

    def list_tasks(self, split):
        return TASKS[split]

    def num_tasks(self, split):
        return len(TASKS[split])

    def get_task(self, split, index):
        return TASKS[split][index]

    def get_task_range(self, split, start=None, stop=None):
        return [{"letter": letter} for letter in TASKS[split][start:stop]]

    def reset(self, seed=None, episode_id=None, split=None, index=None, **kwargs):
        self.letter = TASKS[split][index]
        return Text(text=f"Say {self.letter}.")

    def step(self, action, timeout_s=None, **kwargs):
        return Text(text="", reward=float(action.message == self.letter), done=True)


class Slow(Repeat):
    """A reset that never ends, in the server's own loop."""

    async def reset_async(self, seed=None, episode_id=None, **kwargs):
        await asyncio.sleep(1000)


class Letters(World):
    """Rewards small letters: what a model without training can learn in a few steps."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Text(text="Write.")

    def step(self, action, timeout_s=None, **kwargs):
        share = sum(c.islower() for c in action.message) / max(1, len(action.message))
        return Text(text="", reward=share, done=True)


WORLDS = {
    "letters": (Letters, Reply, Text),
    "repeat": (Repeat, Reply, Text),
    "line": (Line, Move, Place),
    "count": (Count, Number, Text),
    "shop": (Shop, CallToolAction, CallToolObservation),
    "quiz": (Quiz, Reply, Text),
    "slow": (Slow, Reply, Text),
}

if __name__ == "__main__":
    # Each world below a path of its own: a second process would need seconds to import OpenEnv.
    apps = [
        Mount(f"/{name}", create_app(*parts, env_name=name, max_concurrent_envs=64))
        for name, parts in WORLDS.items()
    ]
    apps.append(Mount("/single", create_app(*WORLDS["repeat"], max_concurrent_envs=1)))
    apps.append(Mount("/", create_app(*WORLDS["repeat"], max_concurrent_envs=64)))
    uvicorn.run(
        Starlette(routes=apps), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning"
    )
