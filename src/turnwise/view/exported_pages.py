"""Renders the exported pages of `exported/`, which need neither network nor scripts.

No text from outside becomes markup, and none of it is invisible: every value is shown by
`visible_html`. In an attribute, a template takes the filter `attribute`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from turnwise.runs.episode_branches import turn_messages
from turnwise.view.legible import visible_attribute, visible_html


def render(template: str, **values: Any) -> Markup:
    """Return a template of `exported/` with these values."""
    return Markup(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "exported"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["attribute"] = lambda text: Markup(visible_attribute(text))
    environment.globals |= {
        "indented_json": lambda value: json.dumps(value, ensure_ascii=False, indent=1),
        "messages_of": _messages_of,
        "place_words": _place_words,
        "text_of": _text_of,
        "turn_facts": _turn_facts,
        "words_of": words_of,
    }
    return environment


def _visible(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(visible_html(str(value)))


def words_of(content: Any) -> str:
    """Return a message's content as text; structures as JSON."""
    return "" if content is None else _text_of(content)


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _messages_of(agent: Mapping[str, Any]) -> Iterator[tuple[str, str, int | None, str | None]]:
    """Yield the role and the text of every message, its turn if it is the model's, and the heading
    above it where a branch begins.

    What an agent that owns its loop returned is the last message.
    """
    messages, turns, result = agent["messages"], agent["turns"], agent["result"]
    own = turn_messages(messages, [turn["message"] for turn in turns])
    numbers = {place: number for number, place in enumerate(own)}
    headings = _headings(turns, own) if agent["num_branches"] > 1 else {}
    for number, place in enumerate(own):
        if place is None:  # the messages do not have this turn
            yield "assistant", turns[number]["text"], number, None
    for place, message in enumerate(messages):
        words = words_of(message.get("content"))
        yield str(message.get("role", "")), words, numbers.get(place), headings.get(place)
    if isinstance(result, Mapping) and {"exit_code", "output"} <= result.keys():
        yield f"command, exit code {result['exit_code']}", str(result["output"]), None, None
    elif result is not None:
        yield "returned by the agent", words_of(result), None, None


def _headings(turns: Sequence[Mapping[str, Any]], own: Sequence[int | None]) -> dict[int, str]:
    """Return headings by the message below them: where a turn does not follow the one above it."""
    headings, first = {}, 0
    for number, (turn, place) in enumerate(zip(turns, own, strict=True)):
        if number == 0 or turn["follows"] != number - 1:
            headings[first] = _place_words(turn).capitalize()
        first = first if place is None else place + 1
    return headings


def _place_words(turn: Mapping[str, Any]) -> str:
    """Return which branch a turn is on, and which turn it follows."""
    follows = turn["follows"]
    before = "from the start" if follows is None else f"follows turn {follows + 1}"
    return f"branch {turn['branch'] + 1} · {before}"


def _turn_facts(agent: Mapping[str, Any], number: int) -> Iterator[tuple[str, str]]:
    turn, earned = agent["turns"][number], (agent["reward"] or {}).get("turns", [])
    yield "turn", str(number + 1)
    if turn["kind"] == "summary":
        yield "kind", "summary"
    if "row" in turn:
        yield "place", _place_words(turn)
    yield "tokens", f"{turn['tokens'][0]} to {turn['tokens'][1]}"
    yield "ended by", turn["finish_reason"]
    yield "environment's reward", f"{turn['reward']:.6g}"
    if number < len(earned):
        yield "credited reward", f"{earned[number]:.6g}"
    if turn["info"]:
        yield "info", _text_of(turn["info"])
    for name, seconds in turn["seconds"].items():
        if name != "start":
            yield f"{name} seconds", f"{seconds:.4f}"
