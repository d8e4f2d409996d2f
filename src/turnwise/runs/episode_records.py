"""Writes an episode as JSON, by the schema of `episode_schema`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.runs.episode_schema import said_by_turn
from turnwise.runs.plain_json import plain_json

if TYPE_CHECKING:
    from turnwise.episode import AgentRecord, EpisodeResult, TurnRecord
    from turnwise.tools import ToolCall, ToolResult

# Limits in characters for objects of environments and tools; conversations are never cut.
_MAX_INFO = 4_000
_MAX_CALL = 20_000


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


def _write_task(task: Mapping[str, Any] | None) -> dict[str, Any]:
    """The row of a dataset, cut, and a hash of all of it: rows may differ only in their ends."""
    if task is None:
        return {}
    whole = json.dumps(plain_json(task), sort_keys=True).encode()
    task_id = hashlib.blake2b(whole, digest_size=8).hexdigest()
    return {"task": plain_json(task, _MAX_INFO), "task_id": task_id}


def _write_agent(agent: AgentRecord, with_starts: bool) -> dict[str, Any]:
    messages = [plain_json(message) for message in agent.messages]
    said = said_by_turn(messages, len(agent.turns))
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
