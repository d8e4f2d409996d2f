"""The data types that all packages use: statuses, steps and trajectories of episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypedDict, overload

from turnwise.errors import ConfigError, did_you_mean


class TextPart(TypedDict):
    """A text in the content of a message."""

    type: Literal["text"]
    text: str


class ImagePart(TypedDict):
    """A picture in the content of a message; the models so far read texts only, and refuse it."""

    type: Literal["image"]
    image: Any
    """A path, an address, bytes, or an object of PIL."""


Content: TypeAlias = str | Sequence[TextPart | ImagePart]
"""What a message or an observation says: a text, or parts."""


class NotText(ValueError):
    """A content has a part that is no text."""


def read_content(content: Content, between: str = "") -> str:
    """Return a content as text, its parts joined.

    >>> read_content([{"type": "text", "text": "Which "}, {"type": "text", "text": "way?"}])
    'Which way?'
    """
    if isinstance(content, str):
        return content
    texts = []
    part: Any
    for part in content:
        kind, text, is_text = type(part).__name__, part, False
        if isinstance(part, Mapping):
            kind = part.get("type", "text")
            is_text = str(kind).endswith("text")  # input_text, output_text
            text = part.get("text") if is_text else None
        if not isinstance(text, str):
            why = ", which has no 'text'" if is_text else "; this model takes text only"
            raise NotText(f"a part of type {kind!r}{why}")
        texts.append(text)
    return between.join(texts)


class EpisodeStatus(StrEnum):
    """How an episode ended. A failed episode has a status, never a silent reward of 0."""

    DONE = "done"
    TRUNCATED_BY_ENVIRONMENT = "truncated_by_environment"
    TRUNCATED_BY_TURNS = "truncated_by_turns"
    TRUNCATED_BY_TOKENS = "truncated_by_tokens"
    TRUNCATED_BY_TIME = "truncated_by_time"
    TRUNCATED_BY_TOOL_CALLS = "truncated_by_tool_calls"
    ENVIRONMENT_ERROR = "environment_error"
    TOOL_ERROR = "tool_error"
    ENGINE_ERROR = "engine_error"
    REWARD_ERROR = "reward_error"
    AGENT_ERROR = "agent_error"

    @property
    def is_truncated(self) -> bool:
        """Whether the episode was cut before its own end; its last state still has a value."""
        return self.value.startswith("truncated_")

    @property
    def is_error(self) -> bool:
        """Whether a component failed; the rewards of this episode mean nothing."""
        return self.value.endswith("_error")


@dataclass(slots=True)
class StepResult:
    """The result of one step of an environment; it tells an end from a truncation.

    >>> StepResult("You win.", 1.0, terminated=True, truncated=False, info={"success": True}).done
    True
    """

    observation: str
    """What the agent reads next."""
    reward: float
    """Finite."""
    terminated: bool
    """The episode reached its own end."""
    truncated: bool
    """The episode was cut: by `info["truncated"]`, or by `max_steps`."""
    info: dict[str, Any]
    """The environment's own additions."""

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Trajectory:
    """One episode as text: its states, actions, observations and rewards.

    The lists are parallel: in `states[t]` the agent took `actions[t]`, and the environment
    returned `observations[t]` and `rewards[t]`. Fields can be read by item too.

    >>> t = Trajectory(states=["door"], actions=["open"], rewards=[1.0], dones=[True], infos=[{}])
    >>> t.total_reward, t["num_turns"]
    (1.0, 1)
    """

    states: list[str] = field(default_factory=list)
    """`get_state_description()` before each action."""
    actions: list[str] = field(default_factory=list)
    """The texts of the agent's turns."""
    rewards: list[float] = field(default_factory=list)
    """The environment's reward for each action."""
    dones: list[bool] = field(default_factory=list)
    """Whether the environment ended the episode after each action."""
    infos: list[dict[str, Any]] = field(default_factory=list)
    """The `info` of each step; rewards use `success` and `invalid_action`."""
    observations: list[str] = field(default_factory=list)
    """The observation after each action."""
    prompts: list[str] = field(default_factory=list)
    """The system prompt and the first observation."""
    status: EpisodeStatus = EpisodeStatus.DONE
    """How it ended."""
    seed: int | None = None
    """The seed of the environment, if it was given one."""
    error: str | None = None
    """What went wrong, when `status.is_error`."""
    task: Mapping[str, Any] | None = None
    """The row of the dataset that was played, if there was one: `task["answer"]`, for rewards."""
    result: Any = None
    """What an agent that owns its loop returned."""

    @property
    def total_reward(self) -> float:
        """Sum of the step rewards."""
        return float(sum(self.rewards))

    @property
    def num_turns(self) -> int:
        """How many actions were taken."""
        return len(self.actions)

    @property
    def success(self) -> bool:
        """Whether the last step has `info["success"]`."""
        return bool(self.infos and self.infos[-1].get("success", False))

    @property
    def reports_success(self) -> bool:
        """Whether any step has `info["success"]`, true or false."""
        return any("success" in info for info in self.infos)

    def __getitem__(self, name: str) -> Any:
        if name in _TRAJECTORY_NAMES:
            return getattr(self, name)
        raise KeyError(f"a trajectory has no {name!r}. {did_you_mean(name, _TRAJECTORY_NAMES)}")

    def __contains__(self, name: object) -> bool:
        return name in _TRAJECTORY_NAMES

    @classmethod
    def of(cls, data: Trajectory | Mapping[str, Any]) -> Trajectory:
        """Returns a trajectory from a mapping with its fields."""
        if isinstance(data, Trajectory):
            return data
        if not isinstance(data, Mapping):
            raise ConfigError(f"expected a Trajectory or its fields, got {type(data).__name__}")
        names = {f.name for f in dataclasses.fields(cls)}
        known = {key: value for key, value in data.items() if key in names}
        if "status" in known:
            known["status"] = EpisodeStatus(known["status"])
        return cls(**known)


_TRAJECTORY_NAMES: tuple[str, ...] = (
    *(f.name for f in dataclasses.fields(Trajectory)),
    "total_reward",
    "num_turns",
    "success",
)


@dataclass
class RolloutData(Sequence[Trajectory]):
    """A batch of trajectories."""

    trajectories: list[Trajectory] = field(default_factory=list)
    """The episodes, in the order of the requests."""

    @overload
    def __getitem__(self, index: int) -> Trajectory: ...
    @overload
    def __getitem__(self, index: slice) -> RolloutData: ...
    def __getitem__(self, index: int | slice) -> Trajectory | RolloutData:
        if isinstance(index, slice):
            return RolloutData(self.trajectories[index])
        return self.trajectories[index]

    def __len__(self) -> int:
        return len(self.trajectories)
