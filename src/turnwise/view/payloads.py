"""What the page receives of an episode: its conversation, its tokens, and its timeline."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.errors import ConfigError, import_extra
from turnwise.reward import Reward
from turnwise.runs.episode_branches import TurnTree, layout, token_branches, turn_messages
from turnwise.runs.episode_table import Phase, StoredAgent, StoredEpisode, StoredTurn
from turnwise.view.episodes import task_key

# ---- the conversation ----


def episode_payload(kind: str, step: int, index: int, episode: StoredEpisode) -> dict[str, Any]:
    """Return an episode as a conversation, turn by turn."""
    names = ("group", "member", "task", "part", "error", "traceback", "attempt", "seconds")
    return {
        "id": f"{kind}-{step}-{index}",
        "kind": kind,
        "step": step,
        "index": index,
        "seed": str(episode.seed),
        **{name: getattr(episode, name) for name in names},
        "task_key": task_key(episode.task_id, episode.seed, episode.part),
        "status": episode.status.value,
        "agents": [_agent(agent) for agent in episode.agents],
    }


def _agent(agent: StoredAgent) -> dict[str, Any]:
    turns = [
        {**vars(turn), "tokens": list(turn.tokens), "calls": [vars(call) for call in turn.calls]}
        for turn in agent.turns
    ]
    if agent.branches:
        for turn, (row, column) in zip(turns, layout(_tree(agent)), strict=True):
            turn["row"], turn["column"] = row, column
    return {
        "name": agent.name,
        "reward": None if agent.reward is None else _reward(agent.reward, agent.turns),
        "num_tokens": len(agent.ids),
        "messages": agent.messages,
        "positions": turn_messages(agent.messages, [turn.message for turn in agent.turns]),
        "turns": turns,
        "num_branches": max((turn.branch for turn in agent.turns), default=0) + 1,
        "result": agent.result,
    }


def _tree(agent: StoredAgent) -> TurnTree:
    return TurnTree([turn.follows for turn in agent.turns], [turn.branch for turn in agent.turns])


def _reward(reward: Reward, turns: Sequence[StoredTurn]) -> dict[str, Any]:
    actions = [number for number, turn in enumerate(turns) if turn.kind == "action"]
    by_turn = [0.0] * len(turns)
    if actions and (reward.per_turn is None or len(reward.per_turn) == len(actions)):
        for number, value in zip(actions, reward.by_turn(len(actions)), strict=True):
            by_turn[number] = value
    return {"total": reward.total, "parts": dict(reward.parts), "turns": by_turn}


# ---- tokens ----


def tokens_payload(episode: StoredEpisode, number: int, texts: TokenTexts) -> dict[str, Any]:
    """Return every token of an agent's stream with its mask and numbers."""
    if not 0 <= number < len(episode.agents):
        raise ConfigError(f"agent got {number}, expected 0 to {len(episode.agents) - 1}")
    agent = episode.agents[number]
    turns = np.full(len(agent.ids), -1)
    for turn_number, turn in enumerate(agent.turns):
        turns[turn.tokens[0] : turn.tokens[1]] = turn_number
    ids = agent.ids.tolist()
    spans = [turn.tokens for turn in agent.turns]
    return {
        "count": len(ids),
        "tokens": texts.texts(ids),
        "ids": ids,
        "mask": agent.mask.astype(int).tolist(),
        "turn": turns.tolist(),
        "branch": token_branches(len(ids), spans, agent.branches, _tree(agent)),
        "branches": agent.branches,
        # With the seven digits of a float32; None for those that are not finite.
        "columns": {
            name: [float(f"{x:.7g}") if math.isfinite(x) else None for x in column.tolist()]
            for name, column in agent.columns.items()
        },
        "note": texts.note,
    }


class TokenTexts:
    """The tokenizer of a run: the text of each token, which joined are the text of the stream.

    A character can be several tokens, and a model can sample bytes that are no text at all.
    """

    def __init__(self, path: Path) -> None:
        self.note: str | None = None
        """The reason why there are no texts."""
        self._bytes: dict[int, bytes] = {}
        if not path.is_file():
            self.note = (
                "The run's folder has no tokenizer.json: its tokenizer has none. Tokens are shown "
                "by their numbers."
            )
            return
        try:
            self._read(path.read_text("utf-8"))
        except Exception as error:  # the rest of the run can still be shown
            self.note = f"The run's tokenizer.json cannot be read: {str(error)[:200]}"

    def _read(self, text: str) -> None:
        data = json.loads(text)
        vocabulary = import_extra("tokenizers", "view").Tokenizer.from_str(text).get_vocab()
        is_of_bytes = "ByteLevel" in json.dumps(data.get("decoder"))
        added = {token["id"]: token["content"] for token in data.get("added_tokens", ())}
        for token, number in vocabulary.items():
            if number in added:
                self._bytes[number] = added[number].encode()
            elif is_of_bytes and all(character in _ALPHABET for character in token):
                self._bytes[number] = bytes(_ALPHABET[character] for character in token)
            elif byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
                self._bytes[number] = bytes.fromhex(byte[1])
            else:  # a piece of text with a mark for spaces, as in Llama 2's
                self._bytes[number] = token.replace("▁", " ").encode()

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return a text for each token; its number where the texts are not known."""
        if not self._bytes:
            return [f"⟨{number}⟩" for number in ids]
        return joined_bytes([self._bytes.get(number, b"\xff") for number in ids])


def joined_bytes(tokens: Sequence[bytes]) -> list[str]:
    """Return the text that each token completes; a byte that is not text as its number.

    >>> joined_bytes([b"a", "é".encode()[:1], "é".encode()[1:], bytes([255]), b"b"])
    ['a', '', 'é', '\\\\xff', 'b']
    """
    texts = [""] * len(tokens)
    owners = [number for number, token in enumerate(tokens) for _ in token]
    end = 0
    for character in b"".join(tokens).decode("utf-8", "surrogateescape"):
        if "\udc80" <= character <= "\udcff":  # what stands for a byte that is no text
            size, text = 1, f"\\x{ord(character) - 0xDC00:02x}"
        else:
            size, text = len(character.encode()), character
        end += size
        texts[owners[end - 1]] += text
    return texts


# The characters by which byte-level tokenizers write bytes: printable ones stand for themselves,
# the others for those from U+0100 on.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))
_ALPHABET = {chr(byte): byte for byte in _PRINTABLE}
_ALPHABET |= {chr(0x100 + place): byte for place, byte in enumerate(_OTHERS)}


# ---- the timeline of a step ----

# The order of the stages of a turn, and their names in the page.
_PARTS = (("engine", "generate"), ("tools", "tool"), ("environment", "environment"))
Span = dict[str, Any]


def timeline(
    kind: str,
    step: int,
    episodes: Sequence[StoredEpisode],
    phases: Sequence[Phase],
    metrics: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the phases of a step, and what each episode spent its time on, in seconds after the
    start of the step."""
    rows = []
    for index, episode in enumerate(episodes):
        start = episode.seconds.get("start", 0.0)
        end = start + episode.seconds.get("total", 0.0)
        spans = _spans(episode, start, end)
        last = max([end, *(span["end"] for span in spans)])
        rows.append({"id": f"{kind}-{step}-{index}", "start": start, "end": last, "spans": spans})
    drawn: list[Span] = [{"name": name, "start": start, "end": end} for name, start, end in phases]
    shares: defaultdict[str, float] = defaultdict(float)
    if kind == "train":
        for name in ("evaluate", "log"):
            took = metrics.get(f"time/{name}")
            if took and drawn:
                start = drawn[-1]["end"]
                drawn.append({"name": name, "start": start, "end": start + took})
        for name, value in metrics.items():
            is_share = name.startswith("time/") and not name.endswith("_per_second")
            if is_share and name not in ("time/step", "time/memory_gib"):
                shares[name.removeprefix("time/")] = value
    else:
        for span in (span for row in rows for span in row["spans"]):
            shares[span["kind"]] += span["end"] - span["start"]
    ends = [row["end"] for row in rows] + [phase["end"] for phase in drawn]
    return {
        "step": step,
        "kind": kind,
        "seconds": max(ends, default=metrics.get("time/step", 0.0)),
        "phases": drawn,
        "episodes": rows,
        "shares": shares,
    }


def _spans(episode: StoredEpisode, start: float, end: float) -> list[Span]:
    """Return the stages of each turn one after the other, and what lies between them: waiting, or
    the work of an agent that owns its loop. Calls that are under way together count once."""
    spans: list[Span] = []
    begun = start
    has_agent = "agent" in episode.seconds
    between = "agent" if has_agent else "wait"

    def add(kind: str, until: float, turn: int = -1) -> None:
        nonlocal begun
        if until - begun > 1e-4:
            spans.append({"kind": kind, "start": begun, "end": until, "turn": turn})
        begun = max(begun, until)

    turns = [(turn, number) for agent in episode.agents for number, turn in enumerate(agent.turns)]
    if all("start" in turn.seconds for turn, _ in turns):
        turns.sort(key=lambda item: item[0].seconds["start"])
    for order, (turn, number) in enumerate(turns):
        at = start + turn.seconds["start"] if "start" in turn.seconds else begun
        if order == 0 and not has_agent:
            add("environment", at)  # its reset
        else:
            add(between, at, -1 if has_agent else number)
        for part, stage in _PARTS:
            if took := turn.seconds.get(part):
                at += took
                add(stage, at, number)
    reward = min(episode.seconds.get("reward", 0.0), max(end - begun, 0.0))
    if has_agent:  # it works until the reward
        add(between, end - reward)
    add("reward", begun + reward)
    add(between, end)
    return spans


# ---- JSON ----


def json_bytes(data: Any) -> bytes:
    """Return JSON in ASCII; numbers that are not finite are null."""
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        finite = json.loads(json.dumps(data, default=str), parse_constant=lambda constant: None)
        text = json.dumps(finite, separators=(",", ":"))
    return text.encode()
