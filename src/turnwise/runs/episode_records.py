"""Stored episodes: their JSON, and the objects that are read from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from turnwise.errors import ConfigError
from turnwise.reward import Reward
from turnwise.runs.episode_branches import turn_tree
from turnwise.runs.episode_columns import Array, TokenColumns
from turnwise.runs.plain_json import plain_json
from turnwise.types import EpisodeStatus

if TYPE_CHECKING:
    from turnwise.episode import AgentRecord, EpisodeResult, TurnRecord
    from turnwise.tools import ToolCall, ToolResult

# Limits in characters for objects of environments and tools; conversations are never cut.
_MAX_INFO = 4_000
_MAX_CALL = 20_000


@dataclass
class StoredCall:
    """A tool call and its result."""

    name: str
    arguments: Any = field(default_factory=dict)
    result: Any = None
    """The result of the tool, or the error."""
    success: bool | None = None
    """None: it was not executed."""
    failure: str | None = None
    """A `ToolFailure`."""
    seconds: float = 0.0


@dataclass
class StoredTurn:
    """One turn of an agent, and the response of the environment."""

    tokens: tuple[int, int]
    """Start and end of its sampled tokens."""
    text: str
    finish_reason: str
    weight_version: int
    kind: str = "action"
    """A `TurnKind`."""
    state: str = ""
    calls: list[StoredCall] = field(default_factory=list)
    malformed: str | None = None
    observation: str = ""
    reward: float = 0.0
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    message: int | None = None
    """The place of its message, as in `TurnRecord`."""
    branch: int = 0
    """The branch of the conversation that it is on, from 0."""
    follows: int | None = None
    """The turn that it follows, from 0; None at the beginning of a conversation."""
    later_versions: list[list[int]] = field(default_factory=list)
    """Weight updates during the turn, as in `TurnRecord`."""


@dataclass(repr=False)
class StoredAgent:
    """One agent's side of an episode."""

    name: str
    messages: list[dict[str, Any]]
    turns: list[StoredTurn]
    reward: Reward | None
    """None: it was not scored."""
    ids: Array
    """Every token, sampled or prompt."""
    mask: Array
    """True for sampled tokens."""
    columns: dict[str, Array]
    """`sampler_log_probs` and others, with one number per sampled token."""
    branches: list[list[int]] = field(default_factory=list)
    """Where each branch begins, and how many tokens stand before what it follows, as in
    `TokenStream.branches`. Empty for a conversation that only grows."""
    result: Any = None
    """What an agent that owns its loop returned; cut if it is long."""

    def column(self, name: str) -> Array:
        """Return a column aligned with `ids`; NaN for tokens that were not sampled."""
        aligned = np.full(len(self.ids), np.nan, np.float32)
        aligned[self.mask] = self.columns[name]
        return aligned


@dataclass(repr=False)
class StoredEpisode:
    """One episode, however it ended."""

    seed: int
    group: int
    member: int
    status: EpisodeStatus
    error: str | None
    attempt: int
    seconds: dict[str, float]
    agents: list[StoredAgent]
    traceback: str | None = None
    """The lines of the user's code in which an episode failed."""
    part: str = ""
    """The name of the environment in a mix; empty without a mix."""
    task: dict[str, Any] | None = None
    """The row of the dataset, if there is one; long rows are cut."""
    task_id: str | None = None
    """A hash of the whole row, the same in all steps."""

    @property
    def agent(self) -> StoredAgent:
        """The first agent; in self-play there are others."""
        return self.agents[0]

    def __repr__(self) -> str:
        place = f"group {self.group}, member {self.member}, seed {self.seed}"
        return f"<stored episode: {self.status}, {place}>"


def write_episode(result: EpisodeResult, began: float | None = None) -> dict[str, Any]:
    """Return the JSON of an episode without defaults. `began` is the start of its step."""
    seconds = _rounded(result.seconds)
    if began is not None and result.started:
        seconds["start"] = round(result.started - began, 6)
    return {
        "seed": result.seed,
        "group": result.group,
        "member": result.member,
        "status": result.status.value,
        **_nonempty(
            error=plain_json(result.error, _MAX_CALL),
            traceback=plain_json(result.traceback, _MAX_CALL),
        ),
        **({} if result.attempt == 1 else {"attempt": result.attempt}),
        **_nonempty(part=result.part),
        **_write_task(result.agents[0].trajectory.task if result.agents else None),
        "seconds": seconds,
        "agents": [_write_agent(agent, began is not None) for agent in result.agents],
    }


def read_episode(
    data: Mapping[str, Any], rows: Sequence[TokenColumns], place: str = "the file"
) -> StoredEpisode:
    """Return an episode from its checked JSON and the tokens of its agents."""
    for agent, row in zip(data["agents"], rows, strict=True):
        for turn in agent["turns"]:
            start, end = turn["tokens"]
            if not start <= end <= len(row.ids):
                raise ConfigError(
                    f"{place}: a turn has the tokens {start} to {end} of {len(row.ids)}"
                )
        _check_branches(agent.get("branches", ()), len(row.ids), place)
    return StoredEpisode(
        seed=data["seed"],
        group=data["group"],
        member=data["member"],
        status=EpisodeStatus(data["status"]),
        error=data.get("error"),
        attempt=data.get("attempt", 1),
        seconds=data["seconds"],
        agents=[_read_agent(*pair) for pair in zip(data["agents"], rows, strict=True)],
        traceback=data.get("traceback"),
        part=data.get("part", ""),
        task=data.get("task"),
        task_id=data.get("task_id"),
    )


def _check_branches(branches: Sequence[Sequence[int]], num_tokens: int, place: str) -> None:
    last = 0
    for start, after in branches:
        if not after < start <= num_tokens or start < last:
            raise ConfigError(
                f"{place}: a branch begins at the token {start} of {num_tokens} and follows the "
                f"first {after}, expected earlier ones, and branches in order"
            )
        last = start


def _write_task(task: Mapping[str, Any] | None) -> dict[str, Any]:
    """The row of a dataset, cut, and a hash of all of it: rows may differ only in their ends."""
    if task is None:
        return {}
    whole = json.dumps(plain_json(task), sort_keys=True).encode()
    task_id = hashlib.blake2b(whole, digest_size=8).hexdigest()
    return {"task": plain_json(task, _MAX_INFO), "task_id": task_id}


def _write_agent(agent: AgentRecord, with_starts: bool) -> dict[str, Any]:
    messages = [plain_json(message) for message in agent.messages]
    said = _said(messages, len(agent.turns))
    turns = [_write_turn(turn, *words) for turn, words in zip(agent.turns, said, strict=True)]
    if with_starts:
        for turn, stored in zip(agent.turns, turns, strict=True):
            stored.setdefault("seconds", {})["start"] = round(turn.started, 6)
    written: dict[str, Any] = {"name": agent.name, "messages": messages, "turns": turns}
    if agent.stream.branches:
        written["branches"] = [list(branch) for branch in agent.stream.branches]
    if (result := agent.trajectory.result) is not None:
        is_record = dataclasses.is_dataclass(result) and not isinstance(result, type)
        written["result"] = plain_json(vars(result) if is_record else result, _MAX_CALL)
    if (reward := agent.reward) is not None:
        rest = {"per_turn": reward.per_turn, "parts": reward.parts or None}
        known = {name: value for name, value in rest.items() if value is not None}
        written["reward"] = plain_json({"total": reward.total, **known})
    return written


def _read_agent(data: Mapping[str, Any], row: TokenColumns) -> StoredAgent:
    messages = data["messages"]
    said = _said(messages, len(data["turns"]))
    reward = data.get("reward")
    if reward is not None:
        per_turn = reward.get("per_turn")
        reward = Reward(
            reward["total"],
            None if per_turn is None else tuple(per_turn),
            reward.get("parts", {}),
        )
    turns = [_read_turn(*pair) for pair in zip(data["turns"], said, strict=True)]
    branches = data.get("branches", [])
    tree = turn_tree([turn.tokens for turn in turns], branches)
    for number, turn in enumerate(turns):
        turn.branch, turn.follows = tree.branches[number], tree.follows[number]
    return StoredAgent(
        name=data["name"],
        messages=messages,
        turns=turns,
        reward=reward,
        ids=row.ids,
        mask=row.mask,
        columns=row.columns,
        branches=branches,
        result=data.get("result"),
    )


def _said(messages: Sequence[Mapping[str, Any]], num_turns: int) -> list[tuple[str, str]]:
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


def _write_turn(turn: TurnRecord, text: str, observation: str) -> dict[str, Any]:
    return {
        "tokens": list(turn.tokens),
        "finish_reason": turn.finish_reason.value,
        "weight_version": turn.weight_version,
        **({} if turn.kind == "action" else {"kind": turn.kind}),
        **({} if turn.text == text else {"text": turn.text}),
        **({} if turn.observation == observation else {"observation": turn.observation}),
        **_nonempty(
            state=turn.state,
            calls=_write_calls(turn.calls, turn.tool_results),
            malformed=turn.malformed,
            reward=plain_json(turn.reward),
            done=turn.done,
            info=plain_json(_success_first(turn.info), _MAX_INFO),
            seconds=_rounded(turn.seconds),
            message=turn.message,
            later_versions=[list(change) for change in turn.later_versions],
        ),
    }


def _success_first(info: dict[str, Any]) -> dict[str, Any]:
    """Return `info` with `success` first, so that it is kept when a large `info` is cut."""
    return {"success": info["success"], **info} if "success" in info else info


def _read_turn(data: Mapping[str, Any], said: tuple[str, str]) -> StoredTurn:
    start, end = data["tokens"]
    rest = {
        name: value for name, value in data.items() if name not in ("tokens", "calls", "reward")
    }
    calls = [StoredCall(**call) for call in data.get("calls", ())]
    # A reward that is not finite is stored as text.
    reward = float(data.get("reward", 0.0))
    words = {"text": said[0], "observation": said[1]}
    return StoredTurn(tokens=(start, end), calls=calls, reward=reward, **words | rest)


def _write_calls(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[dict[str, Any]]:
    """Return calls with their results; calls beyond the limit were not executed and have none."""
    written = []
    for number, call in enumerate(calls):
        data = {
            "name": call.name,
            "arguments": plain_json(call.arguments, _MAX_CALL),
            "result": plain_json(call.result, _MAX_CALL),
            "success": call.success,
        }
        if number < len(results):
            result = results[number]
            failure = None if result.failure is None else result.failure.value
            data |= _nonempty(failure=failure, seconds=round(result.seconds, 6))
        written.append(data)
    return written


def _nonempty(**values: Any) -> dict[str, Any]:
    """Return the values that are not empty, False or 0, which are the defaults when read."""
    return {name: value for name, value in values.items() if value}


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Round to microseconds, so that the file compresses well."""
    return {part: round(value, 6) for part, value in seconds.items()}
