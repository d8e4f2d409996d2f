"""A stored episode as one row of the index, and the texts that can be searched."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from turnwise.runs.episode_branches import turn_messages, turn_tree
from turnwise.tools.thoughts import answer_of

_MAX_SHOWN = 200
_MAX_TEXT = 20_000
"""Characters of one message that can be searched: a page of a book, not the book."""
_MAX_INTEGER = 2**63 - 1


TASK, ANSWER = 1, 2
"""Bits that mark a text as the task (what the model was asked) or as its last answer."""


class Summary(NamedTuple):
    """What the list shows of an episode, and what is searched."""

    row: tuple[Any, ...]
    """The values in the order of `COLUMNS`."""
    task: str
    """The beginning of the task."""
    answer: str
    """The beginning of the answer, without thoughts."""
    tools: Counter[str]
    texts: dict[str, int]
    """Every text, and whether it is the task or the answer."""


COLUMNS = (
    "place",
    "seed",
    "grp",
    "member",
    "status",
    "reward",
    "turns",
    "tokens",
    "sampled_tokens",
    "tool_calls",
    "seconds",
    "success",
    "task",
    "part",
    "branches",
)


def summarise(episodes: Sequence[Mapping[str, Any]], num_tokens: Sequence[int]) -> list[Summary]:
    """Return a summary of each; `num_tokens` has a number for each agent of each episode."""
    lengths = iter(num_tokens)
    return [
        _summary(place, episode, sum(next(lengths) for _ in episode["agents"]))
        for place, episode in enumerate(episodes)
    ]


def _summary(place: int, episode: Mapping[str, Any], num_tokens: int) -> Summary:
    agents = episode["agents"]
    turns = [turn for agent in agents for turn in agent["turns"]]
    tools = Counter(clean(str(call["name"])) for turn in turns for call in turn.get("calls", ()))
    sampled = sum(turn["tokens"][1] - turn["tokens"][0] for turn in turns)
    reward = agents[0].get("reward", {}).get("total") if agents else None
    row = (
        place,
        storable(episode["seed"]),
        episode["group"],
        episode["member"],
        episode["status"],
        finite(reward),
        len(turns),
        num_tokens,
        sampled,
        tools.total(),
        finite(episode["seconds"].get("total")),
        _success(episode),
        task_key(episode),
        clean(episode.get("part") or ""),
        max(map(_num_branches, agents), default=1),
    )
    task, answer = _task(agents), _answer(agents)
    texts = {clean(text[:_MAX_TEXT]): 0 for text in _texts(episode) if text}
    for words, part in ((task, TASK), (answer, ANSWER)):
        if text := clean(words[:_MAX_TEXT]):
            texts[text] = texts.get(text, 0) | part
    return Summary(row, _beginning(task), _beginning(answer), tools, texts)


def _num_branches(agent: Mapping[str, Any]) -> int:
    """Return in how many conversations an agent's turns end."""
    branches = agent.get("branches")
    if not branches:
        return 1
    return max(1, turn_tree([turn["tokens"] for turn in agent["turns"]], branches).num_branches)


def task_key(episode: Mapping[str, Any]) -> str:
    """Return the key of an episode's task: the row of the dataset, else the environment's seed.

    In a mix, each environment has its own tasks.
    """
    key = str(episode.get("task_id") or f"seed-{episode['seed']}")
    if part := episode.get("part"):
        named = json.dumps([part, key]).encode()
        key = hashlib.blake2b(named, digest_size=8).hexdigest()
    return clean(key)


def _success(episode: Mapping[str, Any]) -> int | None:
    """Return whether the last turn reported success; None if no turn reported it."""
    agents = episode["agents"]
    turns = agents[0]["turns"] if agents else []
    infos = [turn.get("info", {}) for turn in turns]
    if episode["status"].endswith("_error") or not any("success" in info for info in infos):
        return None
    return int(bool(infos[-1].get("success", False)))


def _texts(episode: Mapping[str, Any]) -> Iterator[str]:
    """Yield every text; that of a turn only where the messages have another one."""
    yield episode.get("error") or ""
    for agent in episode["agents"]:
        for message in agent["messages"]:
            yield words_of(message.get("content"))
            if "tool_calls" in message:
                yield words_of(message["tool_calls"])
        for turn in agent["turns"]:
            yield turn.get("text", "")
            yield turn.get("observation", "")
            yield turn.get("malformed") or ""
        yield words_of(agent.get("result"))


def words_of(content: Any) -> str:
    """Return a message's content as text; structures as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    return json.dumps(content, ensure_ascii=False)


def opening(agent: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the messages before the model's first turn."""
    messages: Sequence[Mapping[str, Any]] = agent["messages"]
    own = (place for place in turn_messages(messages, agent["turns"]) if place is not None)
    return messages[: next(own, len(messages))]


def _task(agents: Sequence[Mapping[str, Any]]) -> str:
    """Return the task: the last message of a user before the model's first turn."""
    for agent in agents[:1]:
        for message in reversed(opening(agent)):
            if message.get("role") == "user":
                return words_of(message.get("content"))
    return ""


def _answer(agents: Sequence[Mapping[str, Any]]) -> str:
    """Return the model's last text, without its thoughts if there is anything else."""
    for agent in agents:
        if agent["turns"]:
            for message in reversed(agent["messages"]):
                if message.get("role") == "assistant":
                    words = words_of(message.get("content")) or words_of(message.get("tool_calls"))
                    return answer_of(words) or words
    return ""


def _beginning(text: str) -> str:
    return clean(" ".join(text[: 4 * _MAX_SHOWN].split())[:_MAX_SHOWN])


def clean(text: str) -> str:
    """Return text that SQLite can store: without halves of surrogate pairs and without NUL.

    >>> clean("a\\x00b\\ud800")
    'a\\ufffdb\\ufffd'
    """
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)
    return text


def finite(value: Any) -> float | None:
    """Return the number, or None if it cannot be compared."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def storable(seed: int) -> int | str:
    """Return a seed of any size: as text where it is too large for SQLite's integers."""
    return seed if -_MAX_INTEGER <= seed <= _MAX_INTEGER else str(seed)
