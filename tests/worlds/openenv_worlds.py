"""Servers written with OpenEnv's own package; run by the Python of `requirements/openenv.txt`.

    python openenv_worlds.py WORLD PORT [MAX_SESSIONS]
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


class Quiz(World):
    """Tasks in two splits."""

    TASKS = {"train": list("abcdefgh"), "test": list("xyz")}

    def list_splits(self):
        return list(self.TASKS)

    def list_tasks(self, split):
        return self.TASKS[split]

    def num_tasks(self, split):
        return len(self.TASKS[split])

    def get_task(self, split, index):
        return self.TASKS[split][index]

    def get_task_range(self, split, start=None, stop=None):
        return [{"letter": letter} for letter in self.TASKS[split][start:stop]]

    def reset(self, seed=None, episode_id=None, split=None, index=None, **kwargs):
        self.letter = self.TASKS[split][index]
        return Text(text=f"Say {self.letter}.")

    def step(self, action, timeout_s=None, **kwargs):
        return Text(text="", reward=float(action.message == self.letter), done=True)


class Slow(Repeat):
    """A reset that never ends, in the server's own loop."""

    async def reset_async(self, seed=None, episode_id=None, **kwargs):
        await asyncio.sleep(1000)


WORLDS = {
    "repeat": (Repeat, Reply, Text),
    "line": (Line, Move, Place),
    "count": (Count, Number, Text),
    "shop": (Shop, CallToolAction, CallToolObservation),
    "quiz": (Quiz, Reply, Text),
    "slow": (Slow, Reply, Text),
}

if __name__ == "__main__":
    name, port, *most = sys.argv[1:]
    app = create_app(
        *WORLDS[name], env_name=name, max_concurrent_envs=int(most[0]) if most else 64
    )
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
