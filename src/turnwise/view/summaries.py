"""A stored episode in one row, and the words by which it can be found."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_MAX_PREVIEW = 160
_MAX_TEXT = 20_000
"""Characters of one message that can be searched: a page of a book, not the book."""
_MAX_INTEGER = 2**63 - 1


class Summary(NamedTuple):
    """What a list of episodes shows of one, and what is searched."""

    row: tuple[Any, ...]
    """In the order of `COLUMNS`."""
    preview: str
    tools: Counter[str]
    texts: list[str]


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
)


def summarise(episodes: Sequence[Mapping[str, Any]], num_tokens: Sequence[int]) -> list[Summary]:
    """A summary each; `num_tokens` has a number for each agent of each episode."""
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
    )
    texts = {clean(text[:_MAX_TEXT]) for text in _texts(episode) if text}
    return Summary(row, _preview(agents), tools, list(texts))


def _texts(episode: Mapping[str, Any]) -> Iterator[str]:
    """All that was said. A turn repeats its words only where the messages have others."""
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


def words_of(content: Any) -> str:
    """A message's content as text; parts and structures as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    return json.dumps(content, ensure_ascii=False)


def _preview(agents: Sequence[Mapping[str, Any]]) -> str:
    """The last thing that the model said."""
    for agent in agents:
        for message in reversed(agent["messages"]):
            if message.get("role") == "assistant":
                start = words_of(message.get("content"))[: 4 * _MAX_PREVIEW]
                return clean(" ".join(start.split())[:_MAX_PREVIEW])
    return ""


def clean(text: str) -> str:
    """As SQLite can keep it: it takes no half of a surrogate pair, and searches end at a NUL.

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
    """The number, or None if it is none that can be compared."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def storable(seed: int) -> int | str:
    """A seed of any size: one that is too large for a number of SQLite's is text."""
    return seed if -_MAX_INTEGER <= seed <= _MAX_INTEGER else str(seed)
