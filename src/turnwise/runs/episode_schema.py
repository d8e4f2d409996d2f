"""Stored episodes: the schema of their JSON, which is checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypeAlias

import numpy as np
from annotated_types import Ge, Le
from pydantic import AfterValidator, ConfigDict, InstanceOf, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from turnwise.errors import ConfigError
from turnwise.reward import Reward
from turnwise.runs.episode_branches import turn_tree
from turnwise.runs.episode_columns import Array, TokenColumns
from turnwise.types import EpisodeStatus

FORMAT = 1

# Texts may have half a surrogate pair, which pydantic's `str` refuses.
Text = InstanceOf[str]
Whole = Annotated[int, Strict()]
Count = Annotated[int, Strict(), Ge(0), Le(2**53)]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Seconds = dict[Text, Number]
Phase: TypeAlias = tuple[Text, Number, Number]
"""A phase of a step: its name, and its start and end in seconds since the step began."""
_FORBID = ConfigDict(extra="forbid", defer_build=True)


class _Reward(TypedDict):
    __pydantic_config__ = _FORBID  # type: ignore[misc] # pydantic's own way
    total: Number
    per_turn: NotRequired[tuple[Number, ...] | None]
    parts: NotRequired[dict[Text, Number]]


class _Message(TypedDict):
    """A message of a conversation; other keys belong to the chat template."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    role: Text
    content: NotRequired[Any]


if TYPE_CHECKING:
    StoredReward: TypeAlias = Reward
    StoredMessage: TypeAlias = dict[str, Any]
else:
    StoredReward = Annotated[_Reward, AfterValidator(lambda reward: Reward(**reward))]
    StoredMessage = _Message


@dataclass(config=_FORBID)
class StoredCall:
    """A tool call and its result."""

    name: Text
    arguments: Any = field(default_factory=dict)
    result: Any = None
    """The result of the tool, or the error."""
    success: Flag | None = None
    """None: it was not executed."""
    failure: Text | None = None
    """A `ToolFailure`."""
    seconds: Number = 0.0


@dataclass(config=_FORBID)
class StoredTurn:
    """One turn of an agent, and the response of the environment."""

    tokens: tuple[Count, Count]
    """Start and end of its sampled tokens."""
    finish_reason: Text
    weight_version: Whole
    kind: Text = "action"
    """A `TurnKind`."""
    text: Text = ""
    """In the file only where the messages have another one, as `observation`."""
    observation: Text = ""
    state: Text = ""
    calls: list[StoredCall] = field(default_factory=list)
    malformed: Text | None = None
    reward: float = 0.0
    """One that is not finite is text in the file."""
    done: Flag = False
    info: dict[Text, Any] = field(default_factory=dict)
    seconds: Seconds = field(default_factory=dict)
    message: Count | None = None
    """The place of its message, as in `TurnRecord`."""
    later_versions: list[tuple[Whole, Whole]] = field(default_factory=list)
    """Weight updates during the turn, as in `TurnRecord`."""
    branch: int = field(init=False)
    """The branch of the conversation that it is on, from 0."""
    follows: int | None = field(init=False)
    """The turn that it follows, from 0; None at the beginning of a conversation."""


@dataclass(config=_FORBID, repr=False)
class StoredAgent:
    """One agent's side of an episode."""

    name: Text
    messages: list[StoredMessage]
    turns: list[StoredTurn]
    reward: StoredReward | None = None
    """None: it was not scored."""
    branches: list[tuple[Count, Count]] = field(default_factory=list)
    """Where each branch begins, and how many tokens stand before what it follows, as in
    `TokenStream.branches`. Empty for a conversation that only grows."""
    result: Any = None
    """What an agent that owns its loop returned; cut if it is long."""
    ids: Array = field(init=False)
    """Every token, sampled or prompt."""
    mask: Array = field(init=False)
    """True for sampled tokens."""
    columns: dict[str, Array] = field(init=False)
    """`sampler_log_probs` and others, with one number per sampled token."""

    def column(self, name: str) -> Array:
        """Return a column aligned with `ids`; NaN for tokens that were not sampled."""
        aligned = np.full(len(self.ids), np.nan, np.float32)
        aligned[self.mask] = self.columns[name]
        return aligned


@dataclass(config=_FORBID, repr=False)
class StoredEpisode:
    """One episode, however it ended."""

    seed: Whole
    group: Count
    member: Count
    status: EpisodeStatus
    seconds: Seconds
    agents: list[StoredAgent]
    error: Text | None = None
    attempt: Count = 1
    traceback: Text | None = None
    """The lines of the user's code in which an episode failed."""
    part: Text = ""
    """The name of the environment in a mix; empty without a mix."""
    task: dict[Text, Any] | None = None
    """The row of the dataset, if there is one; long rows are cut."""
    task_id: Text | None = None
    """A hash of the whole row, the same in all steps."""

    @property
    def agent(self) -> StoredAgent:
        """The first agent; in self-play there are others."""
        return self.agents[0]

    def __repr__(self) -> str:
        place = f"group {self.group}, member {self.member}, seed {self.seed}"
        return f"<stored episode: {self.status}, {place}>"


@dataclass(config=_FORBID, repr=False)
class StoredText:
    """The whole text of a file."""

    format: Whole
    episodes: list[StoredEpisode]
    phases: list[Phase] = field(default_factory=list)
    baselines: dict[Text, Number] | None = None
    """The rewards of greedy episodes by group and agent (`0/agent`), for estimators that need
    them."""


def check_text(data: Any, place: str) -> StoredText:
    """Return the content of a file of episodes; raise `ConfigError` if it is invalid."""
    if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
        raise ConfigError(
            f"{place} has format {data['format']!r:.80}, expected {FORMAT}: a newer turnwise "
            "wrote it"
        )
    try:
        return _adapter().validate_python(data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=True)[0]
        where = ".".join(map(str, problem["loc"])) or "it"
        raise ConfigError(
            f"{place} is not a text of episodes: {where:.200} got {problem['input']!r:.80}. "
            f"{problem['msg']:.200}."
        ) from None


@cache
def _adapter() -> TypeAdapter[StoredText]:
    return TypeAdapter(StoredText)


def complete(
    agent: StoredAgent, data: Mapping[str, Any], row: TokenColumns, place: str = "the file"
) -> None:
    """Add to an agent its tokens, and what follows from its messages and branches.

    `data` is the agent's JSON: a turn that has no text in it has that of its message.
    """
    num_tokens = len(row.ids)
    for turn in agent.turns:
        start, end = turn.tokens
        if not start <= end <= num_tokens:
            raise ConfigError(f"{place}: a turn has the tokens {start} to {end} of {num_tokens}")
    _check_branches(agent.branches, num_tokens, place)
    agent.ids, agent.mask, agent.columns = row.ids, row.mask, row.columns
    said = said_by_turn(agent.messages, len(agent.turns))
    tree = turn_tree([turn.tokens for turn in agent.turns], agent.branches)
    for number, (turn, written) in enumerate(zip(agent.turns, data["turns"], strict=True)):
        text, observation = said[number]
        turn.text = written.get("text", text)
        turn.observation = written.get("observation", observation)
        turn.branch, turn.follows = tree.branches[number], tree.follows[number]


def _check_branches(branches: Sequence[tuple[int, int]], num_tokens: int, place: str) -> None:
    last = 0
    for start, after in branches:
        if not after < start <= num_tokens or start < last:
            raise ConfigError(
                f"{place}: a branch begins at the token {start} of {num_tokens} and follows the "
                f"first {after}, expected earlier ones, and branches in order"
            )
        last = start


def said_by_turn(messages: Sequence[Mapping[str, Any]], num_turns: int) -> list[tuple[str, str]]:
    """Return the text and the observation of each turn that follow from the messages.

    A turn stores its own text or observation only if it differs from these.
    """
    spoke = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    said = [
        (_content(messages[start]), "\n\n".join(map(_content, messages[start + 1 : end])))
        for start, end in pairwise([*spoke, len(messages)])
    ]
    missing = [("", "")] * (num_turns - len(said))
    return [*missing, *said[len(said) - num_turns + len(missing) :]]


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
