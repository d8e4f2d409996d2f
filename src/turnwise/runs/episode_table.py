"""Stored episodes as a table: the schema of `episodes/*.parquet`, writing and reading it.

One row is one episode. The first columns are short, for lists and statistics; `agents` has all the
rest, nested, so that a reader takes only the columns that it needs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, pairwise, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from turnwise.bounded_files import parse_json
from turnwise.errors import ConfigError
from turnwise.reward import Reward
from turnwise.runs.episode_branches import turn_messages, turn_tree
from turnwise.runs.plain_json import plain_json
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
TOKEN_COLUMNS = ("token_ids", "mask", *FLOAT_COLUMNS)

# Limits in characters for objects of environments and tools; conversations are never cut.
_MAX_INFO = 4_000
_MAX_CALL = 20_000
_MAX_SUMMARY = 1_000
_MAX_SEARCHED = 20_000
"""Characters of one message that a search looks at: a page of a book, not the book."""


class _OrNull(NamedTuple):
    kind: pa.DataType


def _fields(**kinds: pa.DataType | _OrNull) -> list[pa.Field]:
    return [
        pa.field(name, kind.kind)
        if isinstance(kind, _OrNull)
        else pa.field(name, kind, nullable=False)
        for name, kind in kinds.items()
    ]


def _list_of(kind: pa.DataType, nullable: bool = False) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=nullable))


def _list(**kinds: pa.DataType | _OrNull) -> pa.DataType:
    """Return lists of structs with these fields."""
    return _list_of(pa.struct(_fields(**kinds)))


_TEXT, _JSON = pa.string(), pa.string()
_REAL, _BOOL = pa.float64(), pa.bool_()
_SHORT, _LONG = pa.int32(), pa.int64()
_PARTS_OF_TIME = ("start", "engine", "environment", "tools", "agent", "reward", "total")
_SECONDS = pa.struct([pa.field(name, _REAL) for name in _PARTS_OF_TIME])
_CALLS = _list(
    name=_TEXT,
    arguments=_JSON,
    result=_JSON,
    success=_OrNull(_BOOL),
    failure=_OrNull(_TEXT),
    seconds=_REAL,
)
_TURNS = _list(
    start=_SHORT,
    end=_SHORT,
    kind=_TEXT,
    text=_TEXT,
    observation=_TEXT,
    state=_TEXT,
    calls=_CALLS,
    malformed=_OrNull(_TEXT),
    reward=_REAL,
    done=_BOOL,
    info=_JSON,
    finish_reason=_TEXT,
    weight_version=_LONG,
    later_versions=_list(token=_SHORT, version=_LONG),
    seconds=_SECONDS,
    message=_OrNull(_SHORT),
    branch=_SHORT,
    follows=_OrNull(_SHORT),
)
_REWARD = pa.struct(
    _fields(total=_REAL, per_turn=_OrNull(_list_of(_REAL)), parts=_list(name=_TEXT, value=_REAL))
)
_AGENT_WORDS = _fields(
    name=_TEXT,
    reward=_OrNull(_REWARD),
    messages=_list(role=_TEXT, content=_OrNull(_TEXT), more=_OrNull(_JSON)),
    turns=_TURNS,
    branches=_list(start=_SHORT, after=_SHORT),
    result=_OrNull(_JSON),
)
_AGENT_TOKENS = [
    *_fields(token_ids=_list_of(_SHORT), mask=_list_of(_BOOL)),
    *(pa.field(name, _list_of(pa.float32(), nullable=True)) for name in FLOAT_COLUMNS),
]
SCHEMA = pa.schema(
    _fields(
        step=_LONG,
        kind=_TEXT,
        seed=_LONG,
        group=_LONG,
        member=_LONG,
        part=_TEXT,
        status=_TEXT,
        reward=_OrNull(_REAL),
        success=_OrNull(_BOOL),
        num_turns=_LONG,
        num_tokens=_LONG,
        num_sampled_tokens=_LONG,
        num_tool_calls=_LONG,
        num_branches=_LONG,
        tools=_list_of(_TEXT),
        seconds=_SECONDS,
        task_id=_OrNull(_TEXT),
        prompt=_TEXT,
        answer=_TEXT,
        text=_TEXT,
        error=_OrNull(_TEXT),
        traceback=_OrNull(_TEXT),
        attempt=_LONG,
        task=_OrNull(_JSON),
        agents=_list_of(pa.struct([*_AGENT_WORDS, *_AGENT_TOKENS])),
    )
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
        place = f"group {self.group}, member {self.member}, seed {self.seed}"
        return f"<stored episode: {self.status}, {place}>"


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
    tokens = _token_arrays(records, columns or {})
    agents = [_agent_row(agent, began is not None) for agent in records]
    ends = list(accumulate(len(result.agents) for result in results))
    rows = []
    for result, end in zip(results, ends, strict=True):
        row = _episode_row(result, agents[end - len(result.agents) : end], began)
        rows.append({"step": step, "kind": kind, **row})
    kinds = {column.name: column.type for column in SCHEMA}
    nested = kinds.pop("agents")
    try:
        words = pa.array(agents, pa.struct(_AGENT_WORDS))
        arrays = [pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()]
    except UnicodeEncodeError:  # half a surrogate pair is no text to other programs
        words = pa.array(_whole_characters(agents), pa.struct(_AGENT_WORDS))
        rows = _whole_characters(rows)
        arrays = [pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()]
    structs = pa.StructArray.from_arrays(
        [*words.flatten(), *tokens], fields=[*_AGENT_WORDS, *_AGENT_TOKENS]
    )
    offsets = pa.array([0, *ends], pa.int32())
    arrays.append(pa.ListArray.from_arrays(offsets, structs, type=nested))
    about = {FORMAT_KEY: str(FORMAT)}
    if phases:
        rounded = [[name, round(start, 6), round(end, 6)] for name, start, end in phases]
        about[PHASES_KEY] = json.dumps(rounded)
    if baselines is not None:
        about[BASELINES_KEY] = json.dumps(dict(baselines))
    return pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata(about))


def _token_arrays(records: Sequence[AgentRecord], columns: Columns) -> list[pa.Array]:
    """Return each of `TOKEN_COLUMNS` with one list for each agent."""
    streams = [agent.stream for agent in records]
    lengths = np.array([len(stream) for stream in streams], np.int64)
    starts, total = np.cumsum(lengths) - lengths, int(lengths.sum())
    mask = np.fromiter(chain.from_iterable(s.mask for s in streams), np.bool_, total)
    flat: dict[str, Array] = {
        "token_ids": np.fromiter(chain.from_iterable(s.ids for s in streams), np.int32, total),
        "mask": mask,
        "sampler_log_probs": np.fromiter(
            chain.from_iterable(s.log_probs for s in streams), np.float32, total
        ),
    }
    row = np.repeat(np.arange(len(streams)), lengths)
    position = np.arange(total) - np.repeat(starts, lengths)
    width = max(map(len, streams), default=0)
    for name, column in columns.items():
        shape = tuple(column.shape)
        if name not in COMPUTED:
            raise ConfigError(f"a column is named {name!r}, expected one of {', '.join(COMPUTED)}")
        if len(shape) != 2 or shape[0] != len(streams) or shape[1] < width:
            raise ConfigError(
                f"the column {name!r} got shape {shape}, expected [{len(streams)}, {width}]: a row "
                "for each agent of each episode, as long as the longest"
            )
        if isinstance(column, np.ndarray):
            flat[name] = column.astype(np.float32)[row, position]
        else:
            flat[name] = column.detach().float().cpu().numpy()[row, position]
    offsets = pa.array([*starts, total], pa.int32())
    arrays = []
    for token_field in _AGENT_TOKENS:
        name, kind = token_field.name, token_field.type
        if name in flat:
            is_unknown = ~mask if name in FLOAT_COLUMNS else None
            elements = pa.array(flat[name], kind.value_type, mask=is_unknown)
            arrays.append(pa.ListArray.from_arrays(offsets, elements, type=kind))
        else:
            arrays.append(pa.nulls(len(streams), kind))
    return arrays


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
    task_id = None
    if task is not None:  # a hash of all of it: rows may differ only in their ends
        whole = json.dumps(plain_json(task), sort_keys=True).encode()
        task_id = hashlib.blake2b(whole, digest_size=8).hexdigest()
    infos = [turn.info for turn in record.turns] if record is not None else []
    success = None
    if not result.status.is_error and any("success" in info for info in infos):
        success = bool(plain_json(infos[-1].get("success", False)))
    error = plain_json(result.error, _MAX_CALL) or None
    texts = [error]  # all that was said, for a search
    for agent in agents:
        texts += [text for one in agent["messages"] for text in (one["content"], one["more"])]
        spoken = ("text", "observation", "malformed")
        texts += [turn[name] for turn in agent["turns"] for name in spoken]
        texts.append(agent["result"])
    return {
        "seed": result.seed,
        "group": result.group,
        "member": result.member,
        "part": result.part,
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
        "traceback": plain_json(result.traceback, _MAX_CALL) or None,
        "attempt": result.attempt,
        "task": None if task is None else _json(task, _MAX_INFO),
    }


def _prompt(agent: Mapping[str, Any] | None) -> str:
    """Return what an agent was asked: the last message of a user before its first turn."""
    messages = agent["messages"] if agent else []
    known = [turn["message"] for turn in agent["turns"]] if agent else []
    numbers = (number for number in turn_messages(messages, known) if number is not None)
    for message in reversed(messages[: next(numbers, len(messages))]):
        if message["role"] == "user":
            return message["content"] or message["more"] or ""
    return ""


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
        text = _json(more) if more else None
        messages.append({"role": str(message["role"]), "content": content, "more": text})
    tree = turn_tree([turn.tokens for turn in agent.turns], agent.stream.branches)
    turns = [
        {**_turn_row(turn, with_starts), "branch": branch, "follows": follows}
        for turn, branch, follows in zip(agent.turns, tree.branches, tree.follows, strict=True)
    ]
    result, reward = agent.trajectory.result, agent.reward
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = vars(result)
    scored = None
    if reward is not None:
        parts = [{"name": name, "value": float(value)} for name, value in reward.parts.items()]
        per_turn = None if reward.per_turn is None else list(map(float, reward.per_turn))
        scored = {"total": float(reward.total), "per_turn": per_turn, "parts": parts}
    return {
        "name": agent.name,
        "reward": scored,
        "messages": messages,
        "turns": turns,
        "branches": [{"start": start, "after": after} for start, after in agent.stream.branches],
        "result": None if result is None else _json(result, _MAX_CALL),
    }


def _turn_row(turn: TurnRecord, with_start: bool) -> dict[str, Any]:
    info = turn.info
    if "success" in info:  # first, so that it is kept when a large `info` is cut
        info = {"success": info["success"], **info}
    start = {"start": round(turn.started, 6)} if with_start else {}
    calls = []
    # Calls beyond the limit were not executed and have no result.
    for call, result in zip_longest(turn.calls, turn.tool_results[: len(turn.calls)]):
        failure = None if result is None else result.failure
        calls.append(
            {
                "name": call.name,
                "arguments": _json(call.arguments, _MAX_CALL),
                "result": _json(call.result, _MAX_CALL),
                "success": call.success,
                "failure": None if failure is None else failure.value,
                "seconds": 0.0 if result is None else round(result.seconds, 6),
            }
        )
    same = ("kind", "text", "observation", "state", "malformed", "weight_version", "message")
    return {
        **{name: getattr(turn, name) for name in same},
        "start": turn.tokens[0],
        "end": turn.tokens[1],
        "calls": calls,
        "reward": float(turn.reward),
        "done": bool(turn.done),
        "info": _json(info, _MAX_INFO),
        "finish_reason": turn.finish_reason.value,
        "later_versions": [{"token": t, "version": v} for t, v in turn.later_versions],
        "seconds": _rounded(turn.seconds) | start,
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Round to microseconds, so that the file compresses well."""
    return {name: round(value, 6) for name, value in seconds.items()}


def _json(value: Any, room: float = math.inf) -> str:
    """Return the JSON of any value, of about `room` characters."""
    return json.dumps(plain_json(value, room), ensure_ascii=False, separators=(",", ":"))


def _whole_characters(value: Any) -> Any:
    """Return the same with halves of surrogate pairs replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {name: _whole_characters(inner) for name, inner in value.items()}
    return [_whole_characters(inner) for inner in value] if isinstance(value, list) else value


# ---- reading ----


def table_to_episodes(table: pa.Table, where: str = "the table") -> list[StoredEpisode]:
    """Return the episodes of a table in its order; `where` names it in a `ConfigError`."""
    if not table.schema.equals(SCHEMA):
        raise ConfigError(f"{where} has other columns than format {FORMAT} of turnwise's episodes")
    nested = table["agents"].combine_chunks()
    structs = nested.flatten()
    words = pa.StructArray.from_arrays(
        [structs.field(one.name) for one in _AGENT_WORDS], fields=_AGENT_WORDS
    )
    tokens = {name: _split(structs.field(name)) for name in TOKEN_COLUMNS}
    agents = (
        _agent(row, {name: lists[number] for name, lists in tokens.items()}, where)
        for number, row in enumerate(words.to_pylist())
    )
    names = [one.name for one in dataclasses.fields(StoredEpisode) if one.name != "agents"]
    episodes = []
    counts = nested.value_lengths().to_pylist()
    for row, count in zip(table.drop_columns("agents").to_pylist(), counts, strict=True):
        if row["status"] not in list(EpisodeStatus):
            raise ConfigError(f"{where}: status got {row['status']!r:.80}")
        row["status"] = EpisodeStatus(row["status"])
        row["seconds"] = _known(row["seconds"])
        row["task"] = None if row["task"] is None else _object(row["task"], f"{where}: task")
        fields = {name: row[name] for name in names}
        episodes.append(StoredEpisode(**fields, agents=list(islice(agents, count))))
    return episodes


def _split(lists: pa.ListArray) -> list[Array | None]:
    """Return each list as an array; None for one that is absent."""
    flat = lists.flatten().to_numpy(zero_copy_only=False)
    ends = accumulate(lists.value_lengths().fill_null(0).to_pylist(), initial=0)
    is_known = lists.is_valid().to_pylist()
    return [
        flat[start:end] if known else None
        for (start, end), known in zip(pairwise(ends), is_known, strict=True)
    ]


def _agent(row: Mapping[str, Any], tokens: Mapping[str, Array | None], where: str) -> StoredAgent:
    """Return an agent; numbers that point to nothing are refused, since a file may be foreign."""
    columns = {name: array for name, array in tokens.items() if array is not None}
    ids, mask = columns.pop("token_ids"), columns.pop("mask")
    if any(len(array) != len(ids) for array in (mask, *columns.values())):
        raise ConfigError(f"{where}: the columns of tokens are not equally long")
    branches = [(branch["start"], branch["after"]) for branch in row["branches"]]
    for (start, after), (before, _) in zip(branches, [(0, 0), *branches], strict=False):
        if not 0 <= after < start <= len(ids) or start < before:
            raise ConfigError(
                f"{where}: a branch begins at the token {start} of {len(ids)} and follows the "
                f"first {after}, expected earlier ones, and branches in order"
            )
    turns = [_turn(turn, where) for turn in row["turns"]]
    for number, turn in enumerate(turns):
        start, end = turn.tokens
        follows, message = turn.follows, turn.message
        if not 0 <= start <= end <= len(ids):
            raise ConfigError(f"{where}: a turn has the tokens {start} to {end} of {len(ids)}")
        if not 0 <= turn.branch <= number or (follows is not None and not 0 <= follows < number):
            raise ConfigError(f"{where}: a turn follows {follows}, expected an earlier one")
        if message is not None and not 0 <= message < len(row["messages"]):
            raise ConfigError(f"{where}: a turn has the message {message}, which is not there")
    reward, result = row["reward"], row["result"]
    if reward is not None:
        per_turn = None if reward["per_turn"] is None else tuple(reward["per_turn"])
        parts = {part["name"]: part["value"] for part in reward["parts"]}
        reward = Reward(reward["total"], per_turn, parts)
    messages = []
    for one in row["messages"]:
        content = {} if one["content"] is None else {"content": one["content"]}
        more = {} if one["more"] is None else _object(one["more"], f"{where}: a message")
        messages.append({"role": one["role"], **content, **more})
    return StoredAgent(
        name=row["name"],
        messages=messages,
        turns=turns,
        reward=reward,
        branches=branches,
        result=None if result is None else parse_json(result, f"{where}: result"),
        ids=ids,
        mask=mask,
        columns=columns,
    )


def _turn(row: dict[str, Any], where: str) -> StoredTurn:
    for call in row["calls"]:
        for name in ("arguments", "result"):
            call[name] = parse_json(call[name], f"{where}: {name}")
    row["calls"] = [StoredCall(**call) for call in row["calls"]]
    row["info"] = _object(row["info"], f"{where}: info")
    row["later_versions"] = [(one["token"], one["version"]) for one in row["later_versions"]]
    row["seconds"] = _known(row["seconds"])
    return StoredTurn(tokens=(row.pop("start"), row.pop("end")), **row)


def _object(text: str, where: str) -> dict[str, Any]:
    value = parse_json(text, where)
    if not isinstance(value, dict):
        raise ConfigError(f"{where} got {text!r:.80}, expected a JSON object")
    return value


def _known(seconds: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in seconds.items() if value is not None}
