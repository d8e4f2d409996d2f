"""Turns the page's filters, once checked, into a query of the list of episodes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from turnwise.errors import ConfigError, did_you_mean
from turnwise.types import EpisodeStatus
from turnwise.view.episode_list import TEXT_COLUMNS, EpisodeList

SORTS = (
    *("step", "reward", "turns", "tokens", "sampled_tokens", "tool_calls", "branches", "seconds"),
    *("seed", "success", "status", "kind", "index"),
)
_RANGES = ("reward", "turns", "tokens", "step", "branches")
_WORDS = ("kind", "status", "tool", "task", "part")
_PAGING = ("sort", "limit", "offset", "text", "in", "seed", "step", "success")
KNOWN = {
    *_WORDS,
    *_PAGING,
    *(f"{end}_{name}" for name in _RANGES for end in ("min", "max")),
}
_ERRORS = [status.value for status in EpisodeStatus if status.is_error]
_IS_SUCCESS = pc.coalesce(pc.field("success"), pc.scalar(False))
_SUCCESSES = {
    "yes": _IS_SUCCESS,
    # Counted as in the metrics: without a report there is no success. Failed episodes have neither.
    "no": ~_IS_SUCCESS & ~pc.field("status").isin(_ERRORS),
}
_MOST = 500
_MOST_TEXT = 1000
_MOST_VALUES = 200
"""Values in one address."""
_MAX_INTEGER = 2**63 - 1
_AROUND = 60
"""Characters of a text that are shown on either side of a hit."""


@dataclass
class EpisodeQuery:
    """The conditions that an episode must meet, the order, and the page of results."""

    conditions: list[pc.Expression] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    """Tools of which the episode must have called one; empty for any."""
    text: str = ""
    part: str = "anything"
    """Where the text must occur."""
    sort: str = "-step"
    limit: int = 50
    offset: int = 0

    @classmethod
    def parse(cls, asked: Sequence[tuple[str, str]]) -> EpisodeQuery:
        """Make a query from the address. Empty values are ignored; wrong ones are an error."""
        query = cls()
        num_values = sum(1 + value.count(",") for _, value in asked)
        if num_values > _MOST_VALUES:
            raise ConfigError(f"got {num_values:,} filters, expected at most {_MOST_VALUES}")
        for name, value in asked:
            if name not in KNOWN:
                raise ConfigError(f"there is no filter {name!r}. {did_you_mean(name, KNOWN)}")
            if value == "" or name in _WORDS:
                continue
            if name == "text":
                if len(value) > _MOST_TEXT:
                    raise ConfigError(f"text got {len(value)} characters, expected {_MOST_TEXT}")
                query.text = value
            elif name == "in":
                query.part = _one_of(name, value, TEXT_COLUMNS)
            elif name == "success":
                query.conditions.append(_SUCCESSES[_one_of(name, value, _SUCCESSES)])
            elif name == "sort":
                if value.removeprefix("-") not in SORTS:
                    raise ConfigError(f"sort got {value!r}. {did_you_mean(value[1:], SORTS)}")
                query.sort = value
            elif name == "limit":
                query.limit = _integer(name, value, 1)
                if query.limit > _MOST:
                    raise ConfigError(f"limit got {query.limit}, expected 1 to {_MOST}")
            elif name == "offset":
                query.offset = _integer(name, value, 0)
            elif name in ("seed", "step"):
                query.conditions.append(pc.field(name) == _integer(name, value))
            else:
                end, _, column = name.partition("_")
                bound = _number(name, value) if column == "reward" else _integer(name, value)
                known = pc.field(column)
                query.conditions.append(known >= bound if end == "min" else known <= bound)
        for name in _WORDS:
            given = [value for key, value in asked if key == name and value]
            # A tool's name is the model's own, and may have a comma in it.
            words = [*given, *(word for value in given for word in value.split(","))]
            if name == "status" and "error" in words:  # of whatever kind
                words += _ERRORS
            if name == "tool":
                query.tools = words
            elif words:
                column = "task_key" if name == "task" else name
                query.conditions.append(pc.field(column).isin(words))
        return query

    def run(self, episodes: EpisodeList) -> dict[str, Any]:
        """Return the number of episodes found, and those of the requested page."""
        table = episodes.table
        rows = pa.array(range(table.num_rows), pa.int64())
        if self.text:
            rows = pa.array(episodes.search(table, self.text, self.part), pa.int64())
        if self.tools:
            called = pc.is_in(pc.list_flatten(table["tools"]), pa.array(self.tools, pa.string()))
            callers = pc.list_parent_indices(table["tools"]).filter(called)
            rows = rows.filter(pc.is_in(rows, callers.cast(pa.int64())))
        if self.text or self.tools:
            table = table.take(rows)
        for condition in self.conditions:
            table = table.filter(condition)
        way = "descending" if self.sort.startswith("-") else "ascending"
        chosen = self.sort.removeprefix("-")
        usual = [("step", "descending"), ("kind", "descending"), ("index", "ascending")]
        keys = [(chosen, way), *(key for key in usual if key[0] != chosen)]
        order = pc.sort_indices(table, keys)
        page = table.take(order[self.offset : self.offset + self.limit])
        shown = list_episodes(page)
        if self.text:
            places = [((one["kind"], one["step"]), one["index"]) for one in shown]
            for one, text in zip(shown, episodes.texts(places, self.part), strict=True):
                one["snippet"] = snippet(text, self.text)
        return {"total": table.num_rows, "episodes": shown}


def list_episodes(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows of the list in the form that the page receives."""
    return [
        {**row, "id": f"{row['kind']}-{row['step']}-{row['index']}", "seed": str(row["seed"])}
        for row in rows.to_pylist()
    ]


def same_seed(episodes: EpisodeList, seed: str, kind: str | None) -> list[dict[str, Any]]:
    """Return the episodes of one seed of the environment, in the order of training."""
    return _over_steps(episodes, pc.field("seed") == _integer("seed", seed), kind)


def same_task(episodes: EpisodeList, key: str, kind: str | None) -> list[dict[str, Any]]:
    """Return the episodes of one task (`task_key`), in the order of training."""
    return _over_steps(episodes, pc.field("task_key") == key, kind)


def _over_steps(
    episodes: EpisodeList, condition: pc.Expression, kind: str | None
) -> list[dict[str, Any]]:
    rows = episodes.table.filter(condition & (pc.field("kind") == kind) if kind else condition)
    keys = [("step", "ascending"), ("kind", "descending"), ("index", "ascending")]
    return list_episodes(rows.take(pc.sort_indices(rows, keys)[:_MOST]))


def neighbours(
    episodes: EpisodeList, kind: str, step: int, index: int
) -> tuple[str | None, str | None]:
    """Return the ids of the episodes before and after one, of the same kind."""
    rows = episodes.table.filter(pc.field("kind") == kind)  # by step and index
    steps, indices = rows["step"].to_numpy(), rows["index"].to_numpy()
    (places,) = ((steps == step) & (indices == index)).nonzero()
    if not len(places):
        return None, None
    before, after = int(places[0]) - 1, int(places[0]) + 1
    ids = {n: f"{kind}-{steps[n]}-{indices[n]}" for n in (before, after) if 0 <= n < len(steps)}
    return ids.get(before), ids.get(after)


def overview(episodes: EpisodeList) -> Mapping[str, Any]:
    """Return the values that the filters offer."""
    table = episodes.table
    counts = {name: _counts(table[name]) for name in ("kind", "status", "part")}
    has_reports = table["success"].null_count < table.num_rows
    return {
        "steps": episodes.steps,
        "branched": table.filter(pc.field("branches") > 1).num_rows,
        "kinds": sorted(counts["kind"], key=lambda kind: (kind != "train", kind)),
        "statuses": counts["status"],
        "successes": {
            name: table.filter(condition).num_rows
            for name, condition in _SUCCESSES.items()
            if has_reports
        },
        "parts": {name: count for name, count in counts["part"].items() if name},
        "tools": _counts(pc.list_flatten(table["tools"])),
    }


def _counts(values: pa.ChunkedArray) -> dict[str, int]:
    return {one["values"]: one["counts"] for one in pc.value_counts(values).to_pylist()}


def snippet(text: str, searched: str) -> dict[str, Any] | None:
    """Return where a text was last said, with some words around it; None if it was not.

    The last place says most: what stands at the beginning, other episodes have too.

    >>> snippet("Is it more than 500? No.", "THAN 5")
    {'text': 'Is it more than 500? No.', 'start': 11, 'end': 17}
    """
    hits = list(re.finditer(re.escape(searched), text, re.IGNORECASE))
    if not hits:
        return None
    first, last = hits[-1].span()
    start, end = max(first - _AROUND, 0), min(last + _AROUND, len(text))
    before, hit = text[start:first], text[first:last]
    before = f"…{before}" if start else before
    after = text[last:end] + ("…" if end < len(text) else "")
    begin = _num_units(before)
    return {"text": before + hit + after, "start": begin, "end": begin + _num_units(hit)}


def _num_units(text: str) -> int:
    """Return the length as JavaScript counts it: a character beyond U+FFFF is two."""
    return len(text) + sum(ord(c) > 0xFFFF for c in text)


def _one_of(name: str, value: str, known: Mapping[str, Any]) -> str:
    if value not in known:
        raise ConfigError(f"{name} got {value[:80]!r}, expected {' or '.join(known)}")
    return value


def _integer(name: str, value: str, least: int | None = None) -> int:
    if not re.fullmatch(r"[-+]?[0-9]{1,40}", value):
        raise ConfigError(f"{name} got {value[:80]!r}, expected a whole number")
    number = int(value)
    if least is None:  # nothing beyond is stored
        return max(-_MAX_INTEGER, min(number, _MAX_INTEGER))
    if not least <= number <= _MAX_INTEGER:
        raise ConfigError(f"{name} got {number}, expected {least} to {_MAX_INTEGER}")
    return number


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ConfigError(f"{name} got {value[:80]!r}, expected a number")
    return number
