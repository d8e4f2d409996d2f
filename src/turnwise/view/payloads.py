"""An episode and its tokens, in the form that the page receives."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.errors import ConfigError
from turnwise.reward import Reward
from turnwise.runs.episode_branches import TurnTree, layout, token_branches
from turnwise.runs.episode_table import Array, StoredAgent, StoredEpisode, StoredTurn
from turnwise.view.episode_list import task_key
from turnwise.view.token_texts import TokenTexts

_MAX_TOKENS = 2**20
"""The limit for one agent; more would take gigabytes to send and to draw."""


def episode_payload(kind: str, step: int, place: int, episode: StoredEpisode) -> dict[str, Any]:
    """Return an episode as a conversation, turn by turn."""
    return {
        "id": f"{kind}-{step}-{place}",
        "kind": kind,
        "step": step,
        "index": place,
        "seed": str(episode.seed),
        "group": episode.group,
        "member": episode.member,
        "task": episode.task,
        "task_key": task_key(episode.task_id, episode.seed, episode.part),
        "part": episode.part,
        "status": episode.status.value,
        "error": episode.error,
        "traceback": episode.traceback,
        "attempt": episode.attempt,
        "seconds": episode.seconds,
        "agents": [_agent(agent) for agent in episode.agents],
    }


def _agent(agent: StoredAgent) -> dict[str, Any]:
    turns = [_turn(turn) for turn in agent.turns]
    if agent.branches:
        for turn, (row, column) in zip(turns, layout(_tree(agent)), strict=True):
            turn["row"], turn["column"] = row, column
    return {
        "name": agent.name,
        "reward": None if agent.reward is None else _reward(agent.reward, agent.turns),
        "num_tokens": len(agent.ids),
        "messages": agent.messages,
        "turns": turns,
        "num_branches": max((turn.branch for turn in agent.turns), default=0) + 1,
        "result": agent.result,
    }


def _tree(agent: StoredAgent) -> TurnTree:
    return TurnTree([turn.follows for turn in agent.turns], [turn.branch for turn in agent.turns])


def _reward(reward: Reward, turns: Sequence[StoredTurn]) -> dict[str, Any]:
    actions = [place for place, turn in enumerate(turns) if turn.kind == "action"]
    by_turn = [0.0] * len(turns)
    if reward.per_turn is None or len(reward.per_turn) == len(actions):
        for place, value in zip(
            actions, reward.by_turn(len(actions)) if actions else (), strict=True
        ):
            by_turn[place] = value
    return {"total": reward.total, "parts": dict(reward.parts), "turns": by_turn}


def _turn(turn: StoredTurn) -> dict[str, Any]:
    return {**vars(turn), "tokens": list(turn.tokens), "calls": [vars(call) for call in turn.calls]}


def tokens_payload(episode: StoredEpisode, number: int, texts: TokenTexts) -> dict[str, Any]:
    """Return every token of an agent's stream with its mask and numbers."""
    if not 0 <= number < len(episode.agents):
        raise ConfigError(
            f"agent got {number}, and the episode has {len(episode.agents)}, counted from 0"
        )
    agent = episode.agents[number]
    if len(agent.ids) > _MAX_TOKENS:
        raise ConfigError(
            f"the agent has {len(agent.ids):,} tokens, and at most {_MAX_TOKENS:,} can be shown. "
            "Read them from the Parquet file."
        )
    turns = np.full(len(agent.ids), -1)
    for place, turn in enumerate(agent.turns):
        turns[turn.tokens[0] : turn.tokens[1]] = place
    ids = agent.ids.tolist()
    places = [turn.tokens for turn in agent.turns]
    return {
        "count": len(ids),
        "tokens": texts.texts(ids) or [f"⟨{number}⟩" for number in ids],
        "ids": ids,
        "mask": agent.mask.astype(int).tolist(),
        "turn": turns.tolist(),
        "branch": token_branches(len(ids), places, agent.branches, _tree(agent)),
        "branches": agent.branches,
        "columns": {name: _numbers(column) for name, column in agent.columns.items()},
        "note": texts.note,
    }


def _numbers(column: Array) -> list[float | None]:
    """Return numbers with the seven digits of a float32; None for those that are not finite."""
    return [float(f"{x:.7g}") if math.isfinite(x) else None for x in column.tolist()]


def json_bytes(data: Any) -> bytes:
    """Return JSON in ASCII; numbers that are not finite are null."""
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        text = json.dumps(_finite(data), separators=(",", ":"), default=str)
    return text.encode()


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(name): _finite(value) for name, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return [_finite(value) for value in data]
    return data
