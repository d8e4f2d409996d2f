"""Turns the page's filters, once checked, into a query of the index."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.errors import ConfigError, did_you_mean
from turnwise.types import EpisodeStatus
from turnwise.view.index import Connection
from turnwise.view.summaries import ANSWER, TASK, clean, storable

_SORTED_COLUMNS = (
    *("step", "reward", "turns", "tokens", "sampled_tokens", "tool_calls", "branches", "seconds"),
    *("seed", "success", "status", "kind"),
)
SORTS = {**dict(zip(_SORTED_COLUMNS, _SORTED_COLUMNS, strict=True)), "index": "place"}
"""The columns of the index by their names in the address."""
_RANGES = ("reward", "turns", "tokens", "step", "branches")
_WORDS = ("kind", "status", "tool", "task", "part")
_PAGING = ("sort", "limit", "offset", "text", "in", "seed", "step", "success")
_PARTS = {"anything": 0, "task": TASK, "answer": ANSWER}
_ERRORS = [status.value for status in EpisodeStatus if status.is_error]
_HAS_FAILED = f"status IN ({', '.join(map(repr, _ERRORS))})"
_SUCCESSES = {
    "yes": "success = 1",
    # Counted as in the metrics: without a report there is no success. Failed episodes have neither.
    "no": f"success IS NOT 1 AND NOT {_HAS_FAILED}",
}
KNOWN = {
    *_WORDS,
    *_PAGING,
    *(f"{end}_{name}" for name in _RANGES for end in ("min", "max")),
}
_MOST = 500
_MOST_TEXT = 1000
_MOST_VALUES = 200
"""Values in one address, so that SQLite takes the query."""
_LEAST_INDEXED = 3
"""Characters that a search must have for the index of words to help."""
_MOST_PIECES = 32
"""How many of them the index is asked for; its hits are compared with the whole text."""
_LIKE = re.compile("[%_!]")
"""Characters with a special meaning in `LIKE`."""
_AROUND = 60
"""Characters of a message that are shown on either side of a hit."""

_COLUMNS = (
    "id, kind, step, place, seed, grp, member, status, reward, turns, tokens, sampled_tokens, "
    "tool_calls, seconds, success, task, part, branches"
)


@dataclass
class EpisodeQuery:
    """The conditions that an episode must meet, the order, and the page of results."""

    conditions: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    text: str = ""
    part: int = 0
    """Where the text must occur: 0 for anywhere, else `TASK` or `ANSWER`."""
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
                query.text = _text(value)
            elif name == "in":
                query.part = _PARTS[_one_of(name, value, _PARTS)]
            elif name == "success":
                query.conditions.append(_SUCCESSES[_one_of(name, value, _SUCCESSES)])
            elif name == "sort":
                query.sort = _sort(value)
            elif name == "limit":
                query.limit = _integer(name, value, 1, _MOST)
            elif name == "offset":
                query.offset = _integer(name, value, 0)
            else:
                query._compare(name, value)
        for name in _WORDS:
            given = [value for key, value in asked if key == name and value]
            if given:  # a tool's name is the model's own, and may have a comma in it
                query._is_any(name, [*given, *(w for value in given for w in value.split(","))])
        return query

    def _compare(self, name: str, value: str) -> None:
        if name in ("seed", "step"):
            self.conditions.append(f"{name} = ?")
            self.values.append(storable(_integer(name, value)))
            return
        end, _, column = name.partition("_")
        self.conditions.append(f"{column} {'>=' if end == 'min' else '<='} ?")
        number = _number(name, value) if column == "reward" else _integer(name, value)
        self.values.append(storable(number) if isinstance(number, int) else number)

    def _is_any(self, name: str, words: Sequence[str]) -> None:
        if name == "status" and "error" in words:  # of whatever kind
            words = [*words, *_ERRORS]
        marks = ", ".join("?" * len(words))
        if name == "tool":
            self.conditions.append(f"id IN (SELECT episode FROM called WHERE tool IN ({marks}))")
        else:
            self.conditions.append(f"{name} IN ({marks})")
        self.values += map(clean, words)

    def run(self, db: Connection) -> dict[str, Any]:
        """Return the number of episodes found, and those of the requested page."""
        conditions = list(self.conditions)
        if self.text:
            _find(db, self.text, self.part)
            conditions.append("id IN (SELECT episode FROM temp.found)")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        (total,) = db.execute(f"SELECT count(*) FROM episodes {where}", self.values).fetchone()
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM episodes {where} ORDER BY {_order(self.sort)} "
            "LIMIT ? OFFSET ?",
            (*self.values, self.limit, self.offset),
        ).fetchall()
        episodes = shown(db, rows)
        if self.text:
            for row, episode in zip(rows, episodes, strict=True):
                episode["snippet"] = _snippet(db, row[0], self.text, self.part)
        return {"total": total, "episodes": episodes}


def shown(db: Connection, rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return rows of episodes in the form that the page receives."""
    return [_episode(db, row) for row in rows]


def _episode(db: Connection, row: tuple[Any, ...]) -> dict[str, Any]:
    key, kind, step, place, seed, *rest = row
    names = ("group", "member", "status", "reward", "turns", "tokens", "sampled_tokens")
    found = db.execute("SELECT task, answer, tools FROM shown WHERE id = ?", (key,)).fetchone()
    task, answer, tools = found if found is not None else ("", "", "")
    *rest, success, task_key, part, branches = rest
    return {
        "id": f"{kind}-{step}-{place}",
        "kind": kind,
        "step": step,
        "index": place,
        "seed": str(seed),
        **dict(zip((*names, "tool_calls", "seconds"), rest, strict=True)),
        "success": None if success is None else bool(success),
        "tools": tools.split("\n") if tools else [],
        "task": task,
        "task_key": task_key,
        "part": part,
        "branches": branches,
        "answer": answer,
    }


def same_seed(db: Connection, seed: str, kind: str | None) -> list[dict[str, Any]]:
    """Return the episodes of one seed of the environment, in the order of training."""
    return _over_steps(db, "seed", storable(_integer("seed", seed)), kind)


def same_task(db: Connection, key: str, kind: str | None) -> list[dict[str, Any]]:
    """Return the episodes of one task (`task_key`), in the order of training."""
    return _over_steps(db, "task", clean(key), kind)


def _over_steps(
    db: Connection, column: str, value: int | str, kind: str | None
) -> list[dict[str, Any]]:
    conditions, values = f"{column} = ?", [value]
    if kind:
        conditions, values = f"{conditions} AND kind = ?", [*values, clean(kind)]
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM episodes WHERE {conditions} "
        "ORDER BY step, kind DESC, place LIMIT ?",
        (*values, _MOST),
    ).fetchall()
    return shown(db, rows)


def neighbours(db: Connection, kind: str, step: int, place: int) -> tuple[str | None, str | None]:
    """Return the ids of the episodes before and after one, of the same kind."""
    found = []
    for sign, way in (("<", "DESC"), (">", "ASC")):
        row = db.execute(
            f"SELECT step, place FROM episodes WHERE kind = ? AND (step, place) {sign} (?, ?) "
            f"ORDER BY step {way}, place {way} LIMIT 1",
            (kind, step, place),
        ).fetchone()
        found.append(None if row is None else f"{kind}-{row[0]}-{row[1]}")
    return found[0], found[1]


def overview(db: Connection) -> Mapping[str, Any]:
    """Return the values that the filters offer."""
    counts = {
        name: dict(db.execute(f"SELECT {name}, count(*) FROM episodes GROUP BY {name}"))
        for name in ("kind", "status", "part")
    }
    tools = dict(db.execute("SELECT tool, count(*) FROM called GROUP BY tool"))
    steps = [step for (step,) in db.execute("SELECT DISTINCT step FROM files ORDER BY step")]
    kinds = sorted(counts["kind"], key=lambda kind: (kind != "train", kind))
    (reports,) = db.execute("SELECT count(success) FROM episodes").fetchone()
    successes = {
        name: db.execute(f"SELECT count(*) FROM episodes WHERE {condition}").fetchone()[0]
        for name, condition in _SUCCESSES.items()
        if reports
    }
    (branched,) = db.execute("SELECT count(*) FROM episodes WHERE branches > 1").fetchone()
    return {
        "steps": steps,
        "branched": branched,
        "kinds": kinds,
        "statuses": counts["status"],
        "successes": successes,
        "parts": {name: count for name, count in counts["part"].items() if name},
        "tools": tools,
    }


def _find(db: Connection, text: str, part: int) -> None:
    """Fill `found` with the episodes that contain the text, unless it still has them."""
    (version,) = db.execute("PRAGMA data_version").fetchone()
    if db.searched == (text, part, version):
        return
    db.searched = None
    db.execute("CREATE TEMP TABLE IF NOT EXISTS found(episode INTEGER PRIMARY KEY)")
    db.execute("DELETE FROM temp.found")
    if text.isascii():  # SQLite's own comparison handles the case of ASCII, and is faster
        escaped = _LIKE.sub(lambda match: f"!{match[0]}", text)
        check, piece = "texts.text LIKE ? ESCAPE '!'", f"%{escaped}%"
    else:
        check, piece = "contains(texts.text, ?)", text.lower()
    source, values = "texts", [piece]
    if len(text) >= _LEAST_INDEXED:
        source = "words CROSS JOIN texts ON texts.id = words.rowid"
        check, values = f"words MATCH ? AND {check}", [_pieces(text), piece]
    db.execute(
        f"INSERT OR IGNORE INTO temp.found SELECT uses.episode FROM {source} "
        f"CROSS JOIN uses ON uses.text = texts.id WHERE {check} AND (uses.part & ?) = ?",
        (*values, part, part),
    )
    db.searched = text, part, version


def _pieces(text: str) -> str:
    """Return the query of the text index: the trigrams of the text, or enough of them."""
    starts = range(len(text) - _LEAST_INDEXED + 1)
    step = -(-len(starts) // _MOST_PIECES)
    pieces = {text[start : start + _LEAST_INDEXED] for start in starts[::step]}
    return " AND ".join('"' + piece.replace('"', '""') + '"' for piece in sorted(pieces))


def _snippet(db: Connection, episode: int, text: str, within: int) -> dict[str, Any] | None:
    """Return a snippet of the rarest message with the text: common ones say little."""
    rows = db.execute(
        "SELECT texts.text FROM uses CROSS JOIN texts ON texts.id = uses.text "
        "WHERE uses.episode = ? AND (uses.part & ?) = ? ORDER BY uses.text DESC",
        (episode, within, within),
    )
    part = text.lower()
    return next((snippet(message, text) for (message,) in rows if part in message.lower()), None)


def snippet(message: str, text: str) -> dict[str, Any]:
    """Return where a text occurs in a message, with some words around it.

    >>> snippet("Is it more than 500? No.", "THAN 5")
    {'text': 'Is it more than 500? No.', 'start': 11, 'end': 17}
    """
    match = re.search(re.escape(text), message, re.IGNORECASE)
    first, last = match.span() if match else (0, 0)
    start, end = max(first - _AROUND, 0), min(last + _AROUND, len(message))
    before, hit = message[start:first], message[first:last]
    before = f"…{before}" if start else before
    after = message[last:end] + ("…" if end < len(message) else "")
    begin = _num_units(before)
    return {"text": before + hit + after, "start": begin, "end": begin + _num_units(hit)}


def _num_units(text: str) -> int:
    """Return the length as JavaScript counts it: a character beyond U+FFFF is two."""
    return len(text) + sum(ord(c) > 0xFFFF for c in text)


def _order(sort: str) -> str:
    name = sort.removeprefix("-")
    way = "DESC" if sort.startswith("-") else "ASC"
    first = "" if name in ("step",) else f"{SORTS[name]} {way} NULLS LAST, "
    newest = f"step {way}" if name == "step" else "step DESC"
    return f"{first}{newest}, kind DESC, place"


def _text(value: str) -> str:
    if len(value) > _MOST_TEXT:
        raise ConfigError(f"text got {len(value)} characters, expected {_MOST_TEXT} at most")
    return clean(value)


def _one_of(name: str, value: str, known: Mapping[str, Any]) -> str:
    if value not in known:
        raise ConfigError(f"{name} got {value[:80]!r}, expected {' or '.join(known)}")
    return value


def _sort(value: str) -> str:
    if value.removeprefix("-") not in SORTS:
        raise ConfigError(f"sort got {value!r}. {did_you_mean(value.lstrip('-'), SORTS)}")
    return value


def _integer(name: str, value: str, least: int | None = None, most: int = 2**63 - 1) -> int:
    if not re.fullmatch(r"[-+]?[0-9]{1,40}", value):
        raise ConfigError(f"{name} got {value[:80]!r}, expected a whole number")
    number = int(value)
    if least is not None and not least <= number <= most:
        raise ConfigError(f"{name} got {number}, expected {least} to {most}")
    return number


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ConfigError(f"{name} got {value[:80]!r}, expected a number")
    return number
