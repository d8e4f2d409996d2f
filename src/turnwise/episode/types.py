"""`EpisodeTask`, an episode to play; its `EpisodeResult`; the `EpisodeSummary` of many."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from turnwise.chat import Message, TokenStream
from turnwise.inference import FinishReason
from turnwise.reward import Reward
from turnwise.tools import ToolCall, ToolResult
from turnwise.types import EpisodeStatus, Trajectory

TurnKind: TypeAlias = Literal["action", "summary", "sub_agent"]
"""`summary`: the agent summarised its conversation, which had become too long. No environment or
tool reads it, and it is no turn of the trajectory; it is trained on as the turn that follows.
`sub_agent`: a tool asked the policy. It is no turn of the trajectory either, and belongs to the
action before it, whose tool call asked."""


@dataclass(frozen=True)
class EpisodeTask:
    """One episode to play."""

    seed: int
    group: int = 0
    member: int = 0
    prompt: str = ""
    """Precedes the first observation."""
    task: Mapping[str, Any] | None = field(default=None, hash=False)
    """The row of a dataset to play: the environment's `task`, and the trajectory's."""
    part: str = ""
    """The name of the environment in a mix; empty without a mix."""
    sampling_seed: int | None = None
    """Replaces the collector's seed, for tasks that are played again with the same seed."""


@dataclass(slots=True)
class TurnRecord:
    """One turn of an agent, and what carrying it out gave."""

    tokens: tuple[int, int]
    """The span [start, end) of its tokens in the agent's stream; at least one token."""
    text: str
    """The decoded tokens, thoughts included."""
    finish_reason: FinishReason
    """Why the turn ended."""
    weight_version: int
    """The version of the weights that sampled its first token."""
    kind: TurnKind = "action"
    in_thought: bool = False
    """Whether the prompt ends with the start of a thought, so that `text` begins inside it."""
    state: str = ""
    """`get_state_description()` before the turn."""
    calls: Sequence[ToolCall] = ()
    """The tool calls in the turn, in order, each with its result."""
    tool_results: Sequence[ToolResult] = ()
    """The results of the calls that were executed."""
    malformed: str | None = None
    """Why a call could not be read."""
    other_format: str | None = None
    """The format of a call to one of the tools that the parser of this run does not read."""
    observation: str = ""
    """The text after the turn; the agent does not read that of the last turn."""
    reward: float = 0.0
    """The environment's reward for this turn."""
    done: bool = False
    """Whether the environment said that the episode is over."""
    info: dict[str, Any] = field(default_factory=dict)
    """The environment's info; `unanswered` if the episode ended before the turn was carried out."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by component: `engine`, `environment`, `tools`."""
    started: float = 0.0
    """Seconds from the start of the episode."""
    message: int | None = None
    """The place of its message in the agent's messages. None: the last messages of the model are
    those of its turns, in order."""
    later_versions: tuple[tuple[int, int], ...] = ()
    """Weight updates during the turn: the first token, counted from the turn's start, that the new
    weights sampled, and their version."""

    @property
    def tool_call(self) -> ToolCall | None:
        """The last call."""
        return self.calls[-1] if self.calls else None

    @property
    def num_tokens(self) -> int:
        return self.tokens[1] - self.tokens[0]

    @property
    def tokens_by_version(self) -> dict[int, int]:
        """How many of its tokens each version of the weights sampled."""
        changes = [(0, self.weight_version), *self.later_versions]
        ends = [start for start, _ in changes[1:]] + [self.num_tokens]
        return {version: end - start for (start, version), end in zip(changes, ends, strict=True)}


@dataclass(repr=False)
class AgentRecord:
    """One agent of an episode, with its own stream, mask and rewards."""

    name: str = "agent"
    """The player's name, where an environment has several."""
    stream: TokenStream = field(default_factory=TokenStream)
    """The exact tokens: those that were sampled, and the prompt tokens between them."""
    messages: list[Message] = field(default_factory=list)
    """The same as messages, for reading."""
    turns: list[TurnRecord] = field(default_factory=list)
    trajectory: Trajectory = field(default_factory=Trajectory)
    """The same as reward functions get it."""
    reward: Reward | None = None
    """None if the episode failed, and was not scored."""

    @property
    def actions(self) -> list[TurnRecord]:
        """The turns that were carried out: all but summaries and those of sub-agents."""
        return [turn for turn in self.turns if turn.kind == "action"]

    @property
    def action_ends(self) -> list[int]:
        """Where the tokens of each action end, those of the sub-agents that it called included."""
        ends: list[int] = []
        for turn in self.turns:
            if turn.kind == "action":
                ends.append(turn.tokens[1])
            elif turn.kind == "sub_agent":  # it follows the action whose tool asked it
                ends[-1] = turn.tokens[1]
        return ends

    @property
    def branches(self) -> Sequence[tuple[int, int]]:
        """Those of the stream, and one more if it ends with a sub-agent's conversation: back to
        the agent's own, which nothing followed."""
        last = self.turns[-1] if self.turns else None
        if last is None or last.kind != "sub_agent" or last.tokens[1] < len(self.stream):
            return self.stream.branches
        return [*self.stream.branches, (len(self.stream), self.actions[-1].tokens[1])]

    @property
    def action_numbers(self) -> list[int]:
        """For each turn of the stream the number of its action; of a summary that of the next."""
        ends = self.action_ends
        return [min(bisect_left(ends, end), len(ends) - 1) for _, end in self.stream.turns]

    @property
    def reward_positions(self) -> list[int]:
        """The positions of the actions' rewards: each action's last sampled token."""
        return [end - 1 for end in self.action_ends]

    @property
    def turn_rewards(self) -> list[float]:
        """One reward per action, the episode's own on the last one. Empty without a reward."""
        return [] if self.reward is None else self.reward.by_turn(len(self.actions))

    @property
    def token_rewards(self) -> list[float]:
        """One reward per token of the stream, 0 where none was earned."""
        rewards = [0.0] * len(self.stream)
        for position, reward in zip(self.reward_positions, self.turn_rewards, strict=False):
            rewards[position] = reward
        return rewards

    @property
    def num_sampled_tokens(self) -> int:
        return self.stream.num_sampled

    def add_turn(
        self, turn: TurnRecord, tokens: tuple[int, int], asked: Sequence[Message] = ()
    ) -> None:
        """Appends a turn with its span in the stream, and before it the messages it answers."""
        self.messages += asked
        turn.tokens = tokens
        turn.message = len(self.messages)
        self.turns.append(turn)
        self.messages.append({"role": "assistant", "content": turn.text})

    def fill_trajectory(self) -> None:
        """Puts the actions into the trajectory, which reward functions read."""
        turns = self.actions
        self.trajectory.states = [turn.state for turn in turns]
        self.trajectory.actions = [turn.text for turn in turns]
        self.trajectory.observations = [turn.observation for turn in turns]
        self.trajectory.rewards = [turn.reward for turn in turns]
        self.trajectory.dones = [turn.done for turn in turns]
        self.trajectory.infos = [turn.info for turn in turns]

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.turns)} turns, {len(self.stream)} tokens>"


@dataclass(repr=False)
class EpisodeResult:
    """One episode, however it ended. `stream`, `turns` and so on are those of the first agent."""

    seed: int
    """The environment's seed; the members of a group share it."""
    group: int = 0
    """Which group it belongs to, counted from 0."""
    member: int = 0
    """Which one of its group it is, counted from 0."""
    status: EpisodeStatus = EpisodeStatus.DONE
    error: str | None = None
    """What went wrong, or why it was cut."""
    traceback: str | None = None
    """The lines of the user's own code in the traceback of a failure, if there are any."""
    attempt: int = 1
    """The number of the attempt, counted from 1."""
    agents: list[AgentRecord] = field(default_factory=list)
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by component: `engine`, `environment`, `tools`, `reward`; and `total`."""
    started: float = 0.0
    """The start time in seconds since 1970; 0 if unknown."""
    part: str = ""
    """The name of the environment in a mix; empty without a mix."""
    abandoned_calls: int = 0
    """Calls of async user code that ignored their cancellation, in all attempts."""

    @property
    def agent(self) -> AgentRecord:
        """The first agent, which is the only one except in self-play."""
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
        """The texts of the first agent's actions."""
        return [turn.text for turn in self.agent.actions]

    @property
    def num_turns(self) -> int:
        """The actions of all agents together."""
        return sum(len(agent.actions) for agent in self.agents)

    def __repr__(self) -> str:
        error = "" if self.error is None else f" ({self.error})"
        which = f"group {self.group}, member {self.member}, seed {self.seed}"
        return f"<episode: {self.status}{error}, {self.num_turns} turns, {which}>"


@dataclass
class EpisodeSummary:
    """Counts over one or more episodes. Fields can be read by item too."""

    num_episodes: int = 0
    statuses: Counter[EpisodeStatus] = field(default_factory=Counter)
    """How many episodes ended with which status."""
    num_turns: int = 0
    num_sampled_tokens: int = 0
    """Tokens sampled by the policy, which are trained on."""
    num_context_tokens: int = 0
    """Prompt tokens: prompts, template, observations, tool results."""
    tool_calls: Counter[str] = field(default_factory=Counter)
    """Calls that were executed, by the name that the model wrote."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed calls by kind; `malformed_call` are those that could not be read."""
    total_reward: float = 0.0
    """The sum over all agents that have a reward."""
    num_successes: int = 0
    """Agents whose last step reported `success`."""
    seconds: Counter[str] = field(default_factory=Counter)
    """Seconds by component; `total` is the sum over episodes, which run at the same time."""
    errors: Counter[str] = field(default_factory=Counter)
    """Error messages, and how often each occurred."""

    @classmethod
    def of(cls, results: EpisodeResult | Iterable[EpisodeResult]) -> EpisodeSummary:
        """Returns the summary of one result or of many."""
        summary = cls()
        for result in [results] if isinstance(results, EpisodeResult) else results:
            summary.num_episodes += 1
            summary.statuses[result.status] += 1
            summary.seconds.update(result.seconds)
            if result.error is not None:
                summary.errors[result.error] += 1
            for agent in result.agents:
                summary.num_sampled_tokens += agent.num_sampled_tokens
                summary.num_context_tokens += len(agent.stream) - agent.num_sampled_tokens
                summary.num_successes += agent.trajectory.success
                summary.total_reward += 0.0 if agent.reward is None else agent.reward.total
                for turn in agent.actions:
                    summary.add_turn(turn.tool_results, turn.malformed)
        return summary

    def add_turn(self, tool_results: Iterable[ToolResult], malformed: str | None) -> None:
        self.num_turns += 1
        for result in tool_results:
            self.tool_calls[result.name] += 1
            if result.failure is not None:
                self.failures[str(result.failure)] += 1
        if malformed is not None:
            self.failures["malformed_call"] += 1

    @property
    def num_tool_calls(self) -> int:
        return self.tool_calls.total()

    @property
    def num_errors(self) -> int:
        """The number of episodes that failed."""
        return sum(number for status, number in self.statuses.items() if status.is_error)

    @property
    def mean_reward(self) -> float:
        """The mean over episodes that did not fail."""
        num_scored = self.num_episodes - self.num_errors
        return self.total_reward / num_scored if num_scored else 0.0

    def __getitem__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self, name):
            raise KeyError(f"an episode summary has no {name!r}")
        return getattr(self, name)

    def __str__(self) -> str:
        parts = [
            f"{self.num_episodes} episodes ({_listed(self.statuses)})",
            f"{self.num_turns} turns",
            f"{self.num_sampled_tokens} tokens sampled",
            f"mean reward {self.mean_reward:.3f}",
        ]
        if self.tool_calls:
            parts.append(f"tools: {_listed(self.tool_calls)}")
        if self.failures:
            parts.append(f"failed calls: {_listed(self.failures)}")
        return "; ".join(parts)


def _listed(counts: Counter[Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.most_common())
