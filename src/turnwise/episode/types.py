"""What an episode leaves behind: every token, every turn, every reward in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.chat import Message, TokenStream
from turnwise.inference import FinishReason
from turnwise.reward import Reward
from turnwise.tools import ToolCall, ToolResult
from turnwise.types import EpisodeStatus, Trajectory


@dataclass(slots=True)
class TurnRecord:
    """One turn of an agent, and what the world said to it."""

    tokens: tuple[int, int]
    """Where the sampled tokens begin and end in the agent's stream; there is at least one."""
    text: str
    """What they say, thoughts included."""
    finish_reason: FinishReason
    """Why the turn ended."""
    weight_version: int
    """Which weights sampled it."""
    in_thought: bool = False
    """Whether the prompt had opened a thought, so that `text` begins inside of it."""
    state: str = ""
    """`get_state_description()` before the turn."""
    calls: Sequence[ToolCall] = ()
    """The tool calls in it, in order, with what came of each."""
    tool_results: Sequence[ToolResult] = ()
    """Of the calls that were carried out."""
    malformed: str | None = None
    """What was wrong with a call that could not be read."""
    other_format: str | None = None
    """The format of a call to one of the tools that the parser of this run does not read."""
    observation: str = ""
    """What the agent was told then; after the last turn nobody reads it."""
    reward: float = 0.0
    """The environment's, for this turn."""
    done: bool = False
    """Whether the environment said that the episode is over."""
    info: dict[str, Any] = field(default_factory=dict)
    """The environment's; `unanswered` where the episode was cut before it had spoken."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By part: `engine`, `environment`, `tools`."""
    started: float = 0.0
    """Seconds after the episode's beginning."""

    @property
    def tool_call(self) -> ToolCall | None:
        """The last call."""
        return self.calls[-1] if self.calls else None

    @property
    def num_tokens(self) -> int:
        return self.tokens[1] - self.tokens[0]


@dataclass(repr=False)
class AgentRecord:
    """One agent's side of an episode: its own stream, its own mask, its own rewards."""

    name: str = "agent"
    """The player's name, where an environment has several."""
    stream: TokenStream = field(default_factory=TokenStream)
    """Exactly what was sampled and what was put in between."""
    messages: list[Message] = field(default_factory=list)
    """The same as text, for reading."""
    turns: list[TurnRecord] = field(default_factory=list)
    trajectory: Trajectory = field(default_factory=Trajectory)
    """The same as reward functions see it."""
    reward: Reward | None = None
    """None: it was not scored, since the episode failed."""

    @property
    def reward_positions(self) -> list[int]:
        """Where the rewards of the turns sit: each turn's last sampled token."""
        return [end - 1 for _, end in self.stream.turns]

    @property
    def turn_rewards(self) -> list[float]:
        """One reward a turn; the episode's own is on the last one. Empty if there is no reward."""
        return [] if self.reward is None else self.reward.by_turn(len(self.turns))

    @property
    def token_rewards(self) -> list[float]:
        """One number for each token of the stream: 0 but where a reward was earned."""
        rewards = [0.0] * len(self.stream)
        for position, reward in zip(self.reward_positions, self.turn_rewards, strict=False):
            rewards[position] = reward
        return rewards

    @property
    def num_sampled_tokens(self) -> int:
        return sum(end - start for start, end in self.stream.turns)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.turns)} turns, {len(self.stream)} tokens>"


@dataclass(repr=False)
class EpisodeResult:
    """One episode, however it ended.

    With one agent, its stream, turns and so on can be read here too.
    """

    seed: int
    """Of the environment; the members of a group share it."""
    group: int = 0
    """Which group it belongs to, counted from 0."""
    member: int = 0
    """Which one of its group it is, counted from 0."""
    status: EpisodeStatus = EpisodeStatus.DONE
    error: str | None = None
    """What went wrong, or why it was cut."""
    traceback: str | None = None
    """The lines of the user's own code through which a failure came, if it came from there."""
    attempt: int = 1
    """Which try this was."""
    agents: list[AgentRecord] = field(default_factory=list)
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By part: `engine`, `environment`, `tools`, `reward`, and `total`."""
    started: float = 0.0
    """When it began, in seconds since 1970; 0: not known."""
    part: str = ""
    """The environment of a mix that it was played in, by its name; empty without a mix."""
    abandoned_calls: int = 0
    """Calls of async user code that ignored their cancellation, in all tries."""

    @property
    def agent(self) -> AgentRecord:
        """The first agent, which is the only one but in self-play."""
        return self.agents[0]

    @property
    def stream(self) -> TokenStream:
        return self.agent.stream

    @property
    def messages(self) -> list[Message]:
        return self.agent.messages

    @property
    def turns(self) -> list[TurnRecord]:
        return self.agent.turns

    @property
    def trajectory(self) -> Trajectory:
        return self.agent.trajectory

    @property
    def reward(self) -> Reward | None:
        return self.agent.reward

    @property
    def responses(self) -> Sequence[str]:
        """What the agent said, turn by turn."""
        return [turn.text for turn in self.turns]

    @property
    def num_turns(self) -> int:
        """Of all agents together."""
        return sum(len(agent.turns) for agent in self.agents)

    def __repr__(self) -> str:
        error = "" if self.error is None else f" ({self.error})"
        place = f"group {self.group}, member {self.member}, seed {self.seed}"
        return f"<episode: {self.status}{error}, {self.num_turns} turns, {place}>"
