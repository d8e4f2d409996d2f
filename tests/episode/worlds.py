"""Environments and engines for the tests of episodes."""

import asyncio
import contextlib
import random
from functools import cache

from turnwise import BaseEnvironment, ScriptedEngine
from turnwise.inference import FinishReason, GenerationResult
from turnwise.models.tiny import make_tiny, make_tiny_tokenizer


@cache
def tokenizer():
    return make_tiny_tokenizer()


@cache
def model():
    return make_tiny()[0]


class Counting(BaseEnvironment):
    """Says how often it was spoken to; over after `length` actions, each worth its number."""

    length = 3
    quick = True
    num_closed = 0
    max_steps = 100

    def reset(self):
        self.secret = self.rng.randint(0, 999)
        self.heard = []
        return f"Begin {self.secret}."

    def step(self, action):
        self.heard.append(action)
        number = len(self.heard)
        return f"That was {number}.", float(number), number >= self.length, {}

    def get_state_description(self):
        return f"{len(self.heard)} heard"

    def get_prompt_prefix(self):
        return "Count."

    def close(self):
        self.num_closed += 1


class InThreads(Counting):
    quick = False


class Awaited(Counting):
    """The same as `async def`, each call taking a while of its own."""

    async def reset(self):
        await asyncio.sleep(random.random() * 0.003)
        return super().reset()

    async def step(self, action):
        await asyncio.sleep(random.random() * 0.003)
        return super().step(action)


class TicTacToe(BaseEnvironment):
    """Two players, x and o, who write the number of a free field; x begins."""

    quick = True
    max_steps = 20
    players = ("x", "o")
    lines = (
        *((0, 1, 2), (3, 4, 5), (6, 7, 8)),
        *((0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)),
    )

    def reset(self):
        self.board = ["."] * 9
        self.current_player = "x"
        return self.get_state_description()

    def get_prompt_prefix(self):
        return f"You are {self.current_player}. Write a field from 0 to 8."

    def get_state_description(self):
        return "/".join("".join(self.board[i : i + 3]) for i in (0, 3, 6))

    def step(self, action):
        player = self.current_player
        other = "o" if player == "x" else "x"
        if action not in list("012345678") or self.board[int(action)] != ".":
            rewards = {player: -1.0, other: 1.0}
            return "No such move.", -1.0, True, {"rewards": rewards, "invalid_action": True}
        self.board[int(action)] = player
        if any(all(self.board[i] == player for i in line) for line in self.lines):
            rewards = {player: 1.0, other: -1.0}
            return "It is over.", 1.0, True, {"rewards": rewards, "success": True}
        self.current_player = other
        return self.get_state_description(), 0.0, "." not in self.board, {}


class Recording(ScriptedEngine):
    """A script that remembers what it was asked and what it gave, and which sessions ended."""

    def __init__(self, policy=lambda text: "go"):
        super().__init__(tokenizer(), policy)
        self.asked = []
        self.given = []
        self.ended = []

    async def sample(self, request):
        await asyncio.sleep(0)
        result = await super().sample(request)
        log_probs = [-(i + 1) / 8 for i in range(len(result.ids))]
        result = GenerationResult(result.ids, log_probs, result.finish_reason, self.weight_version)
        self.asked.append(request)
        self.given.append(result)
        return result

    def end_session(self, session):
        self.ended.append(session)


class Broken(Recording):
    """An engine that does what it is told at its nth turn."""

    def __init__(self, what, at=1):
        super().__init__()
        self.what, self.at = what, at
        self.num_calls = 0

    async def sample(self, request):
        self.num_calls += 1
        if self.num_calls != self.at + 1:
            return await super().sample(request)
        self.asked.append(request)
        if self.what == "raises":
            raise ConnectionError("the server is away")
        if self.what == "hangs":
            await asyncio.Event().wait()
        while self.what == "hangs and ignores its cancellation":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        if self.what == "says nothing":
            return GenerationResult([], [], FinishReason.STOP, 0)
        if self.what == "not finite":
            return GenerationResult([5], [float("nan")], FinishReason.STOP, 0)
        if self.what == "too few log-probs":
            return GenerationResult([5, 6], [-1.0], FinishReason.STOP, 0)
        return GenerationResult([5], [-1.0], FinishReason(self.what), 0)
