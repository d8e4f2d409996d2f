"""Exports an episode as one HTML file: the conversation, and every token with its numbers.

Exported pages need neither network nor scripts. No text from outside becomes markup in them, and
none of it is invisible: every value of a template passes `visible_text`, and is then escaped.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from turnwise.runs.episode_table import StoredEpisode
from turnwise.view.payloads import TokenTexts, episode_payload, tokens_payload

NUM_SHADES = 5
"""The number of shades for positive values, and for negative ones."""

# The title of each column, in the order of the buttons.
_NAMES = {
    "advantages": "advantage",
    "sampler_log_probs": "log-prob at sampling",
    "log_probs": "log-prob at training",
    "gap": "training minus sampling",
    "values": "value",
    "returns": "return",
    "mask": "sampled tokens",
}


def export_episode(
    run: str, kind: str, step: int, index: int, episode: StoredEpisode, texts: TokenTexts
) -> str:
    """Return the whole HTML file of an episode."""
    payload = episode_payload(kind, step, index, episode)
    audits = [tokens_payload(episode, n, texts) for n in range(len(episode.agents))]
    for audit in audits:
        columns = audit["columns"]
        if "log_probs" in columns and "sampler_log_probs" in columns:  # shows a stale sampler
            pairs = zip(columns["log_probs"], columns["sampler_log_probs"], strict=True)
            columns["gap"] = [None if a is None or b is None else a - b for a, b in pairs]
        known = [name for name in _NAMES if name in columns]
        audit |= {"buttons": [*known, "mask"], "shown": _tokens(audit, known)}
    return render(
        "episode.html",
        title=f"{run}: {payload['id']}",
        episode=payload,
        agents=list(zip(payload["agents"], audits, strict=True)),
        names=_NAMES,
        num_shades=NUM_SHADES,
    )


def _tokens(audit: Mapping[str, Any], shown: Sequence[str]) -> Iterator[dict[str, str]]:
    columns = {name: audit["columns"][name] for name in shown}
    largest = {
        name: max((abs(x) for x in column if x is not None), default=0.0)
        for name, column in columns.items()
    }
    rows = zip(audit["tokens"], audit["ids"], audit["mask"], audit["turn"], strict=True)
    follows = dict(audit["branches"])
    for number, (text, token_id, is_sampled, turn) in enumerate(rows):
        branch = f"branch {audit['branch'][number] + 1}" if follows else ""
        after = f"after token {follows[number] - 1}" if follows.get(number) else "from the start"
        known = {name: x for name, column in columns.items() if (x := column[number]) is not None}
        classes = ["t", *(["m"] if is_sampled else []), *([] if text else ["e"])]
        for name, value in known.items():
            if value:
                shade = max(1, round(NUM_SHADES * abs(value) / largest[name]))
                classes.append(f"{name}-{'p' if value > 0 else 'n'}{shade}")
        whose = f"sampled in turn {turn + 1}" if is_sampled else "prompt token, not trained on"
        numbers = "".join(f"\n{_NAMES.get(name, name)} {x:.5g}" for name, x in known.items())
        about = f"{whose}{branch and f', {branch}'}{numbers}"
        yield {
            "text": text.replace("\n", "⏎\n"),  # visible, and still ends the line
            "title": f"token {number}, id {token_id}: {text!r}\n{about}",
            "classes": " ".join(classes),
            "branch": f"{branch}, {after}" if number in follows else "",
        }


# ---- templates ----


def render(template: str, **values: Any) -> Markup:
    """Return a template of `exported/` with these values."""
    return Markup(_TEMPLATES.get_template(template).render(values))


def _as_text(value: Any, indent: int | None = None) -> str:
    """Return a message's content or any other value as text; structures as JSON."""
    if indent is None and (value is None or isinstance(value, str)):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str, indent=indent)


def _messages(agent: Mapping[str, Any]) -> Iterator[tuple[str, str, int | None, str | None]]:
    """Yield the role and the text of every message, its turn if it is the model's, and the heading
    above it where a branch begins.

    What an agent that owns its loop returned is the last message.
    """
    messages, turns, result = agent["messages"], agent["turns"], agent["result"]
    positions = agent["positions"]
    numbers = {position: number for number, position in enumerate(positions)}
    headings, first = {}, 0
    for number, (turn, position) in enumerate(zip(turns, positions, strict=True)):
        if agent["num_branches"] > 1 and (number == 0 or turn["follows"] != number - 1):
            headings[first] = _position(turn).capitalize()
        if position is None:  # the messages do not have this turn
            yield "assistant", turn["text"], number, None
        else:
            first = position + 1
    for position, message in enumerate(messages):
        text, role = _as_text(message.get("content")), str(message.get("role", ""))
        yield role, text, numbers.get(position), headings.get(position)
    if isinstance(result, Mapping) and {"exit_code", "output"} <= result.keys():
        yield f"command, exit code {result['exit_code']}", str(result["output"]), None, None
    elif result is not None:
        yield "returned by the agent", _as_text(result), None, None


def _position(turn: Mapping[str, Any]) -> str:
    """Return which branch a turn is on, and which turn it follows."""
    follows = turn["follows"]
    before = "from the start" if follows is None else f"follows turn {follows + 1}"
    return f"branch {turn['branch'] + 1} · {before}"


# ---- text from outside ----

# Control characters (those of terminals among them), marks that turn the order of writing round,
# characters without width, separators of lines that are none, halves of pairs, and variation
# selectors: a reader would not see them, or see something else.
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_PLAIN = re.compile(r"[\x20-\x7e\n\t]*")


def is_odd(character: str) -> bool:
    """Return whether a reader would not see a character as what it is.

    >>> [is_odd(c) for c in "a\\n\\x1b\\u202e\\u200b"]
    [False, False, True, True, True]
    """
    if character in "\n\t":
        return False
    return unicodedata.category(character) in _INVISIBLE or 0xE0100 <= ord(character) <= 0xE01EF


def visible_text(value: Any) -> str:
    """Return text, or any value as text, with odd characters as their numbers; markup as it is.

    >>> visible_text("a\\x1b[31m")
    'a⟦U+001B⟧[31m'
    """
    text = value if isinstance(value, str) else str(value)
    if isinstance(text, Markup) or _PLAIN.fullmatch(text):
        return text
    return "".join(f"⟦U+{ord(c):04X}⟧" if is_odd(c) else c for c in text)


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "exported"),
    autoescape=True,
    finalize=visible_text,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals |= {"as_text": _as_text, "messages": _messages, "position": _position}
