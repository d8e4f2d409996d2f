"""Exports an episode as one HTML file: the conversation, and every token with its numbers.

The file needs neither network nor scripts.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.runs.episode_branches import turn_messages
from turnwise.runs.episode_records import StoredEpisode
from turnwise.view.branch_map import branch_map, is_branched, place_words
from turnwise.view.legible import visible_attribute, visible_html
from turnwise.view.payloads import episode_payload, tokens_payload
from turnwise.view.summaries import words_of
from turnwise.view.token_texts import TokenTexts

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

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
}


def export_episode(
    run: str, kind: str, step: int, place: int, episode: StoredEpisode, texts: TokenTexts
) -> str:
    """Return the whole HTML file of an episode."""
    payload = episode_payload(kind, step, place, episode)
    tokens = [tokens_payload(episode, n, texts) for n in range(len(episode.agents))]
    for audit in tokens:
        _add_gap(audit["columns"])
    columns = _in_order({name for audit in tokens for name in audit["columns"]})
    title = visible_html(f"{run}: {payload['id']}")
    parts = [f"<h1>{title}</h1>", _facts(_about(payload))]
    for number, (agent, audit) in enumerate(zip(payload["agents"], tokens, strict=True)):
        if len(tokens) > 1:
            parts.append(f"<h2>Agent {visible_html(str(agent['name']))}</h2>")
        parts += ["<h2>Conversation</h2>", *conversation(agent, f"agent-{number}-")]
        parts += ["<h2>Tokens</h2>", *_audit(audit, columns, number)]
    return document(title, style_sheet("episode.css") + _shades(columns), parts)


def document(title: str, style: str, body: Iterable[str]) -> str:
    """Return a whole HTML file; `title` is HTML already."""
    head = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{title}</title><style>{style}</style></head><body>",
    ]
    return "\n".join([*head, *body, "</body></html>\n"])


def style_sheet(name: str) -> str:
    return (Path(__file__).parent / "styles" / name).read_text(encoding="utf-8")


def _shades(columns: Sequence[str]) -> str:
    """Return the rules that colour tokens by the column whose button is chosen."""
    rules = []
    for column in columns:
        for shade in range(1, NUM_SHADES + 1):
            strength = 0.12 + 0.68 * shade / NUM_SHADES
            for sign, colour in (("p", "--plus"), ("n", "--minus")):
                rules.append(
                    f".by-{column}:checked ~ .stream .{column}-{sign}{shade} "
                    f"{{ background: rgb(var({colour}) / {strength:.2f}); }}"
                )
    return "\n".join(rules)


# ---- the conversation ----


def _about(payload: Mapping[str, Any]) -> dict[str, str]:
    rewards = [agent["reward"] for agent in payload["agents"]]
    totals = ", ".join("none" if r is None else f"{r['total']:.6g}" for r in rewards)
    seconds = payload["seconds"].get("total")
    return {
        "kind": payload["kind"],
        "step": str(payload["step"]),
        "seed": payload["seed"],
        "group, member": f"{payload['group']}, {payload['member']}",
        "status": payload["status"],
        **({"error": str(payload["error"])} if payload["error"] else {}),
        **({"traceback": str(payload["traceback"])} if payload["traceback"] else {}),
        "reward": totals,
        **({} if seconds is None else {"seconds": f"{seconds:.3f}"}),
    }


def _facts(facts: Mapping[str, str]) -> str:
    rows = (f"<dt>{html.escape(n)}</dt><dd>{visible_html(v)}</dd>" for n, v in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def conversation(agent: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every message, and after each message of the model its results.

    Of an agent with branches, the messages stand in the order of its turns, below a map of them.
    The ids of turns begin with `prefix`.
    """
    messages, turns = agent["messages"], agent["turns"]
    earned = (agent["reward"] or {}).get("turns", [])
    own = turn_messages(messages, turns)
    numbers = {place: number for number, place in enumerate(own) if place is not None}
    begins = {}
    if is_branched(agent):
        yield branch_map(agent, prefix)
        begins = _branch_heads(turns, own)
    for number, place in enumerate(own):  # turns that the messages do not have
        if place is None:
            yield _message("assistant", turns[number]["text"], _turn(turns[number], number, earned))
    for place, message in enumerate(messages):
        if place in begins:
            yield f'<p class="branch">{begins[place]}</p>'
        extra, anchor = "", ""
        if (number := numbers.get(place, -1)) >= 0:
            extra = _turn(turns[number], number, earned)
            anchor = f' id="{prefix}turn-{number + 1}"' if begins else ""
        yield _message(
            str(message.get("role", "")), words_of(message.get("content")), extra, anchor
        )
    if agent["result"] is not None:
        yield _returned(agent["result"])


def _branch_heads(turns: Sequence[Mapping[str, Any]], own: Sequence[int | None]) -> dict[int, str]:
    """Return headings by the message before which they stand: where a turn does not follow the one
    above it."""
    heads, first = {}, 0
    for number, (turn, place) in enumerate(zip(turns, own, strict=True)):
        if number == 0 or turn["follows"] != number - 1:
            heads[first] = place_words(turn).capitalize()
        first = first if place is None else place + 1
    return heads


def _returned(result: Any) -> str:
    """Return what an agent that owns its loop returned; of a command, its exit code and output."""
    if isinstance(result, Mapping) and {"exit_code", "output"} <= result.keys():
        return _message(f"command, exit code {result['exit_code']}", str(result["output"]), "")
    return _message("returned by the agent", words_of(result), "")


def _message(role: str, words: str, extra: str, anchor: str = "") -> str:
    kind = "assistant" if role == "assistant" else "other"
    return (
        f'<div class="message {kind}"{anchor}><div class="who">{visible_html(role)}</div>'
        f'<div class="words">{visible_html(words)}</div>{extra}</div>'
    )


def _turn(turn: Mapping[str, Any], place: int, earned: Sequence[float]) -> str:
    calls = "".join(_call(call) for call in turn["calls"])
    facts = [
        ("turn", str(place + 1)),
        *([("kind", "summary")] if turn["kind"] == "summary" else []),
        *([("place", place_words(turn))] if "row" in turn else []),
        ("tokens", f"{turn['tokens'][0]} to {turn['tokens'][1]}"),
        ("ended by", turn["finish_reason"]),
        ("environment's reward", f"{turn['reward']:.6g}"),
    ]
    if place < len(earned):
        facts.append(("credited reward", f"{earned[place]:.6g}"))
    if turn["info"]:
        facts.append(("info", json.dumps(turn["info"], ensure_ascii=False)))
    facts += [(f"{n} seconds", f"{s:.4f}") for n, s in turn["seconds"].items() if n != "start"]
    line = " · ".join(f"{html.escape(n)} <b>{visible_html(v)}</b>" for n, v in facts)
    malformed = turn["malformed"]
    bad = f'<div class="bad">malformed: {visible_html(malformed)}</div>' if malformed else ""
    ending = _ending(turn)
    return f'{calls}{bad}{ending}<div class="facts">{line}</div>'


def _ending(turn: Mapping[str, Any]) -> str:
    """Return the last observation, which no message has because the model never read it."""
    if not turn["done"] or not turn["observation"]:
        return ""
    words = visible_html(turn["observation"])
    who = '<div class="who">final observation</div>'
    return f'<div class="call">{who}<div class="words">{words}</div></div>'


def _call(call: Mapping[str, Any]) -> str:
    arguments = json.dumps(call["arguments"], ensure_ascii=False, indent=1)
    outcome = "not called" if call["success"] is None else "worked" if call["success"] else "failed"
    failure = f" ({call['failure']})" if call["failure"] else ""
    bad = "" if call["success"] else ' class="bad"'
    return (
        f'<div class="call"><div class="who">tool call <b>{visible_html(str(call["name"]))}</b>, '
        f"<span{bad}>{outcome}{visible_html(failure)}</span></div>"
        f"<pre>{visible_html(arguments)}</pre>"
        f'<div class="words">{visible_html(words_of(call["result"]))}</div></div>'
    )


# ---- the tokens ----


def _add_gap(columns: dict[str, list[float | None]]) -> None:
    """Add the gap between the learner's log-probs and the sampler's: it shows a stale sampler."""
    if "log_probs" in columns and "sampler_log_probs" in columns:
        pairs = zip(columns["log_probs"], columns["sampler_log_probs"], strict=True)
        columns["gap"] = [None if a is None or b is None else a - b for a, b in pairs]


def _in_order(names: set[str]) -> list[str]:
    known = [name for name in _NAMES if name in names]
    others = sorted(name for name in names - set(_NAMES) if name.isidentifier())
    return [*known, *others]


def _audit(audit: Mapping[str, Any], columns: Sequence[str], number: int) -> Iterator[str]:
    shown = [name for name in columns if name in audit["columns"]]
    first = shown[0] if shown else "mask"
    yield '<div class="audit">'
    for name in [*shown, "mask"]:
        words = html.escape(_NAMES.get(name, name)) if name != "mask" else "sampled tokens"
        checked = " checked" if name == first else ""
        key = f"by-{name}-{number}"
        yield (
            f'<input type="radio" name="by-{number}" id="{key}" class="by-{name}"{checked}>'
            f'<label for="{key}">{words}</label>'
        )
    yield (
        '<p class="legend">Underlined: sampled by the model, and trained on. Blue is above zero, '
        "orange below; darker is farther from zero. Hover over a token for its numbers.</p>"
    )
    if audit["note"]:
        yield f'<p class="legend">{visible_html(audit["note"])}</p>'
    yield f'<div class="stream">{"".join(_tokens(audit, shown))}</div></div>'


def _tokens(audit: Mapping[str, Any], shown: Sequence[str]) -> Iterator[str]:
    columns = {name: audit["columns"][name] for name in shown}
    largest = {
        name: max((abs(x) for x in column if x is not None), default=0.0)
        for name, column in columns.items()
    }
    rows = zip(audit["tokens"], audit["ids"], audit["mask"], audit["turn"], strict=True)
    follows = dict(audit["branches"])
    for place, (text, number, is_sampled, turn) in enumerate(rows):
        if place in follows:
            words = f"branch {audit['branch'][place] + 1}, after token {follows[place] - 1}"
            if follows[place] == 0:
                words = f"branch {audit['branch'][place] + 1}, from the start"
            yield f'<span class="branch">{words}</span>'
        known = {name: x for name, column in columns.items() if (x := column[place]) is not None}
        classes = ["t", *(["m"] if is_sampled else []), *([] if text else ["e"])]
        classes += [c for name, x in known.items() if (c := _shade(name, x, largest[name]))]
        whose = f"sampled in turn {turn + 1}" if is_sampled else "prompt token, not trained on"
        numbers = "".join(f"\n{_NAMES.get(name, name)} {x:.5g}" for name, x in known.items())
        branch = f", branch {audit['branch'][place] + 1}" if follows else ""
        title = f"token {place}, id {number}: {text!r}\n{whose}{branch}{numbers}"
        yield (
            f'<span class="{" ".join(classes)}" title="{visible_attribute(title)}">'
            f"{_token_html(text)}</span>"
        )


def _shade(name: str, value: float, largest: float) -> str | None:
    if not largest or not value:
        return None
    shade = max(1, min(NUM_SHADES, round(NUM_SHADES * abs(value) / largest)))
    return f"{name}-{'p' if value > 0 else 'n'}{shade}"


def _token_html(text: str) -> str:
    """Return a token's text as HTML, with line ends made visible and still ending the line."""
    return visible_html(text).replace("\n", "⏎\n")
