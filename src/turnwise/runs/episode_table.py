"""Stored episodes as a table: the schema of `episodes/*.parquet`, writing and reading it.

One row is one episode. The first columns are short, for lists and statistics; `agents` has all the
rest, nested, so that a reader takes only the columns that it needs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise, zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from turnwise.reward import Reward
from turnwise.runs.episode_branches import turn_messages, turn_tree
from turnwise.runs.plain_json import json_text, plain_json
from turnwise.tools.thoughts import answer_of
from turnwise.types import EpisodeStatus

if TYPE_CHECKING:
    import torch

    from turnwise.episode import AgentRecord, EpisodeResult, TurnRecord

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Columns: TypeAlias = "Mapping[str, torch.Tensor | Array]"
"""By name, [rows, tokens]: a row is one agent of one episode, padded on the right."""
Phase: TypeAlias = tuple[str, float, float]
"""A phase of a step: its name, and its start and end in seconds since the step began."""

FORMAT = 1
"""The version of the schema, in the metadata of each file."""
FORMAT_KEY, PHASES_KEY, BASELINES_KEY = (
    f"turnwise.{name}" for name in ("episodes", "phases", "baselines")
)
COMPUTED = ("log_probs", "values", "advantages", "returns")
"""Columns of tokens that the learner computes."""
FLOAT_COLUMNS = ("sampler_log_probs", *COMPUTED)

# Limits in characters for objects of environments and tools; conversations are never cut.
_MAX_INFO = 4_000
_MAX_CALL = 20_000
_MAX_SUMMARY = 1_000
_MAX_SEARCHED = 20_000
"""Characters of one message that a search looks at: a page of a book, not the book."""


_TEXT = _JSON = pa.string()
_REAL, _BOOL, _SHORT, _LONG = pa.float64(), pa.bool_(), pa.int32(), pa.int64()
_SECONDS = pa.struct(
    {
        "start": _REAL,
        "engine": _REAL,
        "environment": _REAL,
        "tools": _REAL,
        "agent": _REAL,
        "reward": _REAL,
        "total": _REAL,
    }
)
_CALL = pa.struct(
    {
        "name": _TEXT,
        "arguments": _JSON,
        "result": _JSON,
        "success": _BOOL,
        "failure": _TEXT,
        "seconds": _REAL,
    }
)
_TURN = pa.struct(
    {
        "start": _SHORT,
        "end": _SHORT,
        "kind": _TEXT,
        "text": _TEXT,
        "observation": _TEXT,
        "state": _TEXT,
        "calls": pa.list_(_CALL),
        "malformed": _TEXT,
        "reward": _REAL,
        "done": _BOOL,
        "info": _JSON,
        "finish_reason": _TEXT,
        "weight_version": _LONG,
        "later_versions": pa.list_(pa.struct({"token": _SHORT, "version": _LONG})),
        "seconds": _SECONDS,
        "message": _SHORT,
        "branch": _SHORT,
        "follows": _SHORT,
    }
)
_REWARD = pa.struct(
    {
        "total": _REAL,
        "per_turn": pa.list_(_REAL),
        "parts": pa.list_(pa.struct({"name": _TEXT, "value": _REAL})),
    }
)
_AGENT_WORDS = {
    "name": _TEXT,
    "reward": _REWARD,
    "messages": pa.list_(pa.struct({"role": _TEXT, "content": _TEXT, "more": _JSON})),
    "turns": pa.list_(_TURN),
    "branches": pa.list_(pa.struct({"start": _SHORT, "after": _SHORT})),
    "result": _JSON,
}
_AGENT_TOKENS = {
    "token_ids": pa.list_(_SHORT),
    "mask": pa.list_(_BOOL),
    **dict.fromkeys(FLOAT_COLUMNS, pa.list_(pa.float32())),
}
SCHEMA = pa.schema(
    {
        "step": _LONG,
        "kind": _TEXT,
        "seed": _LONG,
        "group": _LONG,
        "member": _LONG,
        "part": _TEXT,
        "status": _TEXT,
        "reward": _REAL,
        "success": _BOOL,
        "num_turns": _LONG,
        "num_tokens": _LONG,
        "num_sampled_tokens": _LONG,
        "num_tool_calls": _LONG,
        "num_branches": _LONG,
        "tools": pa.list_(_TEXT),
        "seconds": _SECONDS,
        "task_id": _TEXT,
        "prompt": _TEXT,
        "answer": _TEXT,
        "text": _TEXT,
        "error": _TEXT,
        "traceback": _TEXT,
        "attempt": _LONG,
        "task": _JSON,
        "agents": pa.list_(pa.struct(_AGENT_WORDS | _AGENT_TOKENS)),
    }
)


@dataclass
class StoredCall:
    """A tool call and its result."""

    name: str
    arguments: Any
    result: Any
    """The result of the tool, or the error."""
    success: bool | None
    """None: it was not executed."""
    failure: str | None
    """A `ToolFailure`."""
    seconds: float


@dataclass
class StoredTurn:
    """One turn of an agent, and the response of the environment."""

    tokens: tuple[int, int]
    """Start and end of its sampled tokens."""
    kind: str
    """A `TurnKind`."""
    text: str
    observation: str
    state: str
    calls: list[StoredCall]
    malformed: str | None
    reward: float
    done: bool
    info: dict[str, Any]
    finish_reason: str
    weight_version: int
    later_versions: list[tuple[int, int]]
    """Weight updates during the turn, as in `TurnRecord`."""
    seconds: dict[str, float]
    message: int | None
    """The place of its message, as in `TurnRecord`."""
    branch: int
    """The branch of the conversation that it is on, from 0."""
    follows: int | None
    """The turn that it follows, from 0; None at the beginning of a conversation."""


@dataclass(repr=False)
class StoredAgent:
    """One agent's side of an episode."""

    name: str
    messages: list[dict[str, Any]]
    turns: list[StoredTurn]
    reward: Reward | None
    """None: it was not scored."""
    branches: list[tuple[int, int]]
    """Where each branch begins, and how many tokens stand before what it follows, as in
    `TokenStream.branches`. Empty for a conversation that only grows."""
    result: Any
    """What an agent that owns its loop returned; cut if it is long."""
    ids: Array
    """Every token, sampled or prompt."""
    mask: Array
    """True for sampled tokens."""
    columns: dict[str, Array] = field(default_factory=dict)
    """`sampler_log_probs` and what the learner computed, with one number for each of `ids`: NaN for
    tokens that were not sampled."""


@dataclass(repr=False)
class StoredEpisode:
    """One episode, however it ended."""

    seed: int
    group: int
    member: int
    status: EpisodeStatus
    seconds: dict[str, float]
    agents: list[StoredAgent]
    error: str | None
    attempt: int
    traceback: str | None
    """The lines of the user's code in which an episode failed."""
    part: str
    """The name of the environment in a mix; empty without a mix."""
    task: dict[str, Any] | None
    """The row of the dataset, if there is one; long rows are cut."""
    task_id: str | None
    """A hash of the whole row, the same in all steps."""

    @property
    def agent(self) -> StoredAgent:
        """The first agent; in self-play there are others."""
        return self.agents[0]

    def __repr__(self) -> str:
        task = f"group {self.group}, member {self.member}, seed {self.seed}"
        return f"<stored episode: {self.status}, {task}>"


# ---- writing ----


def episodes_to_table(
    results: Sequence[EpisodeResult],
    columns: Columns | None = None,
    *,
    step: int = 0,
    kind: str = "train",
    began: float | None = None,
    phases: Sequence[Phase] = (),
    baselines: Mapping[str, float] | None = None,
) -> pa.Table:
    """Return the table of a step's episodes.

    `columns` are some of `COMPUTED`, with one row per agent of each episode in order. `began` is
    the start of the step in seconds since 1970; episode times are relative to it. `baselines` are
    the rewards of greedy episodes by group and agent (`0/agent`), for estimators that need them.
    """
    records = [agent for result in results for agent in result.agents]
    agents = [_agent_row(agent, began is not None) for agent in records]
    structs = pa.StructArray.from_arrays(
        _array(agents, pa.struct(_AGENT_WORDS)).flatten() + _token_arrays(records, columns or {}),
        fields=list(SCHEMA.field("agents").type.value_type),
    )
    ends = [0, *accumulate(len(result.agents) for result in results)]
    rows = [
        {"step": step, "kind": kind, **_episode_row(result, agents[start:end], began)}
        for result, (start, end) in zip(results, pairwise(ends), strict=True)
    ]
    arrays = [_array([row[one.name] for row in rows], one.type) for one in list(SCHEMA)[:-1]]
    arrays.append(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), structs))
    about = {FORMAT_KEY: str(FORMAT)}
    if phases:
        rounded = [[name, round(start, 6), round(end, 6)] for name, start, end in phases]
        about[PHASES_KEY] = json.dumps(rounded)
    if baselines is not None:
        about[BASELINES_KEY] = json.dumps(dict(baselines))
    return pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata(about))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # half a surrogate pair is no text to other programs
        return pa.array(_whole_characters(values), kind)


def _token_arrays(records: Sequence[AgentRecord], columns: Columns) -> list[pa.Array]:
    streams = [agent.stream for agent in records]
    lengths = np.array([len(stream) for stream in streams], np.int64)
    total = int(lengths.sum())

    def concatenated(lists: Iterable[Sequence[Any]], kind: Any) -> Array:
        return np.fromiter(chain.from_iterable(lists), kind, total)

    mask = concatenated((stream.mask for stream in streams), np.bool_)
    flat: dict[str, Array] = {
        "token_ids": concatenated((stream.ids for stream in streams), np.int32),
        "mask": mask,
        "sampler_log_probs": concatenated((stream.log_probs for stream in streams), np.float32),
    }
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(streams)), lengths)
    position = np.arange(total) - np.repeat(starts, lengths)
    for name, column in columns.items():
        values = column if isinstance(column, np.ndarray) else column.detach().float().cpu().numpy()
        flat[name] = values.astype(np.float32, copy=False)[row, position]
    offsets = pa.array([*starts, total], pa.int32())
    arrays = {name: pa.nulls(len(streams), kind) for name, kind in _AGENT_TOKENS.items()}
    for name, values in flat.items():
        is_unknown = ~mask if name in FLOAT_COLUMNS else None
        elements = pa.array(values, _AGENT_TOKENS[name].value_type, mask=is_unknown)
        arrays[name] = pa.ListArray.from_arrays(offsets, elements)
    return list(arrays.values())


def _episode_row(
    result: EpisodeResult, agents: Sequence[Mapping[str, Any]], began: float | None
) -> dict[str, Any]:
    first, record = (agents[0], result.agents[0]) if agents else (None, None)
    seconds = _rounded(result.seconds)
    if began is not None and result.started:
        seconds["start"] = round(result.started - began, 6)
    turns = [turn for agent in agents for turn in agent["turns"]]
    calls = [call for turn in turns for call in turn["calls"]]
    task = record.trajectory.task if record is not None else None
    # Of all of the task: rows may differ only in their ends.
    whole = json.dumps(plain_json(task), sort_keys=True).encode()
    task_id = None if task is None else hashlib.blake2b(whole, digest_size=8).hexdigest()
    infos = [turn.info for turn in record.turns] if record is not None else []
    success = None
    if not result.status.is_error and any("success" in info for info in infos):
        success = bool(infos[-1].get("success", False))
    error = result.error[:_MAX_CALL] if result.error else None
    texts = [error]  # all that was said, for a search
    for agent in agents:
        texts += [text for one in agent["messages"] for text in (one["content"], one["more"])]
        spoken = ("text", "observation", "malformed")
        texts += [turn[name] for turn in agent["turns"] for name in spoken]
        texts.append(agent["result"])
    same = ("seed", "group", "member", "part", "attempt")
    return {
        **{name: getattr(result, name) for name in same},
        "status": result.status.value,
        "reward": first["reward"]["total"] if first and first["reward"] else None,
        "success": success,
        "num_turns": len(turns),
        "num_tokens": sum(len(agent.stream) for agent in result.agents),
        "num_sampled_tokens": sum(agent.num_sampled_tokens for agent in result.agents),
        "num_tool_calls": len(calls),
        "num_branches": max((turn["branch"] for turn in turns), default=0) + 1,
        "tools": sorted({call["name"] for call in calls}),
        "seconds": seconds,
        "task_id": task_id,
        "prompt": _prompt(first)[:_MAX_SUMMARY],
        "answer": _answer(agents)[:_MAX_SUMMARY],
        "text": "\n".join(dict.fromkeys(text[:_MAX_SEARCHED] for text in texts if text)),
        "error": error,
        "traceback": result.traceback[:_MAX_CALL] if result.traceback else None,
        "task": None if task is None else json_text(task, _MAX_INFO),
    }


def _prompt(agent: Mapping[str, Any] | None) -> str:
    """Return what an agent was asked: the last message of a user before its first turn."""
    if agent is None:
        return ""
    messages, known = agent["messages"], [turn["message"] for turn in agent["turns"]]
    numbers = (number for number in turn_messages(messages, known) if number is not None)
    asked = [m for m in messages[: next(numbers, len(messages))] if m["role"] == "user"]
    return (asked[-1]["content"] or asked[-1]["more"] or "") if asked else ""


def _answer(agents: Sequence[Mapping[str, Any]]) -> str:
    """Return the model's last text, without its thoughts if there is anything else."""
    for agent in agents:
        for message in reversed(agent["messages"]) if agent["turns"] else ():
            if message["role"] == "assistant":
                text = message["content"] or message["more"] or ""
                return answer_of(text) or text
    return ""


def _agent_row(agent: AgentRecord, with_starts: bool) -> dict[str, Any]:
    messages = []
    for message in agent.messages:
        more = {key: value for key, value in message.items() if key not in ("role", "content")}
        content = message.get("content")
        if not isinstance(content, str) and "content" in message:  # parts, or none
            more["content"], content = content, None
        text = json_text(more) if more else None
        messages.append({"role": str(message["role"]), "content": content, "more": text})
    tree = turn_tree([turn.tokens for turn in agent.turns], agent.stream.branches)
    turns = [
        {**_turn_row(turn, with_starts), "branch": branch, "follows": follows}
        for turn, branch, follows in zip(agent.turns, tree.branches, tree.follows, strict=True)
    ]
    result, reward = agent.trajectory.result, agent.reward
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = vars(result)
    return {
        "name": agent.name,
        "reward": reward and vars(reward) | {"parts": list(reward.parts.items())},
        "messages": messages,
        "turns": turns,
        "branches": agent.stream.branches,
        "result": None if result is None else json_text(result, _MAX_CALL),
    }


def _turn_row(turn: TurnRecord, with_start: bool) -> dict[str, Any]:
    info = turn.info
    if "success" in info:  # first, so that it is kept when a large `info` is cut
        info = {"success": info["success"], **info}
    start = {"start": round(turn.started, 6)} if with_start else {}
    calls = [
        {
            "name": call.name,
            "arguments": json_text(call.arguments, _MAX_CALL),
            "result": json_text(call.result, _MAX_CALL),
            "success": call.success,
            "failure": result.failure.value if result and result.failure else None,
            "seconds": round(result.seconds, 6) if result else 0.0,
        }
        # Calls beyond the limit were not executed and have no result.
        for call, result in zip_longest(turn.calls, turn.tool_results[: len(turn.calls)])
    ]
    same = ("kind", "text", "observation", "state", "malformed", "weight_version", "message")
    return {
        **{name: getattr(turn, name) for name in same},
        "start": turn.tokens[0],
        "end": turn.tokens[1],
        "calls": calls,
        "reward": float(turn.reward),
        "done": bool(turn.done),
        "info": json_text(info, _MAX_INFO),
        "finish_reason": turn.finish_reason.value,
        "later_versions": turn.later_versions,
        "seconds": _rounded(turn.seconds) | start,
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Round to microseconds, so that the file compresses well."""
    return {name: round(value, 6) for name, value in seconds.items()}


def _whole_characters(value: Any) -> Any:
    """Return the same with halves of surrogate pairs replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {name: _whole_characters(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_whole_characters, value))
    return value


# ---- reading ----


def table_to_episodes(table: pa.Table) -> list[StoredEpisode]:
    """Return the episodes of a table in its order."""
    nested = table["agents"].combine_chunks()
    structs = nested.flatten()
    words = pa.Table.from_struct_array(structs).select(list(_AGENT_WORDS)).to_pylist()
    tokens = {name: structs.field(name) for name in _AGENT_TOKENS}
    agents = (
        _agent(row, {name: column[number] for name, column in tokens.items()})
        for number, row in enumerate(words)
    )
    names = [one.name for one in dataclasses.fields(StoredEpisode) if one.name != "agents"]
    episodes = []
    counts = nested.value_lengths().to_pylist()
    for row, count in zip(table.drop_columns("agents").to_pylist(), counts, strict=True):
        row["status"] = EpisodeStatus(row["status"])
        row["seconds"] = _known(row["seconds"])
        row["task"] = _from_json(row["task"])
        fields = {name: row[name] for name in names}
        episodes.append(StoredEpisode(**fields, agents=list(islice(agents, count))))
    return episodes


def _from_json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _agent(row: Mapping[str, Any], tokens: Mapping[str, pa.ListScalar]) -> StoredAgent:
    """Return an agent; of its tokens, columns that are absent are left out, and null is NaN."""
    columns = {
        name: column.values.to_numpy(zero_copy_only=False)
        for name, column in tokens.items()
        if column.is_valid
    }
    reward = row["reward"]
    if reward is not None:
        per_turn = None if reward["per_turn"] is None else tuple(reward["per_turn"])
        parts = {part["name"]: part["value"] for part in reward["parts"]}
        reward = Reward(reward["total"], per_turn, parts)
    messages = []
    for one in row["messages"]:
        content = {} if one["content"] is None else {"content": one["content"]}
        messages.append({"role": one["role"], **content, **(_from_json(one["more"]) or {})})
    return StoredAgent(
        name=row["name"],
        messages=messages,
        turns=[_turn(turn) for turn in row["turns"]],
        reward=reward,
        branches=[(branch["start"], branch["after"]) for branch in row["branches"]],
        result=_from_json(row["result"]),
        ids=columns.pop("token_ids"),
        mask=columns.pop("mask"),
        columns=columns,
    )


def _turn(row: dict[str, Any]) -> StoredTurn:
    for call in row["calls"]:
        for name in ("arguments", "result"):
            call[name] = json.loads(call[name])
    row["calls"] = [StoredCall(**call) for call in row["calls"]]
    row["info"] = json.loads(row["info"])
    row["later_versions"] = [(one["token"], one["version"]) for one in row["later_versions"]]
    row["seconds"] = _known(row["seconds"])
    return StoredTurn(tokens=(row.pop("start"), row.pop("end")), **row)


def _known(seconds: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in seconds.items() if value is not None}
