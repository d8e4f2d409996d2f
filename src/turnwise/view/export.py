"""Exports an episode as one HTML file: the conversation, and every token with its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from turnwise.runs.episode_table import StoredEpisode
from turnwise.view.exported_pages import render
from turnwise.view.payloads import episode_payload, tokens_payload
from turnwise.view.token_texts import TokenTexts

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
    run: str, kind: str, step: int, place: int, episode: StoredEpisode, texts: TokenTexts
) -> str:
    """Return the whole HTML file of an episode."""
    payload = episode_payload(kind, step, place, episode)
    audits = [tokens_payload(episode, n, texts) for n in range(len(episode.agents))]
    for audit in audits:
        _add_gap(audit["columns"])
    columns = _in_order({name for audit in audits for name in audit["columns"]})
    for audit in audits:
        known = [name for name in columns if name in audit["columns"]]
        audit |= {"buttons": [*known, "mask"], "shown": _tokens(audit, known)}
    return render(
        "episode.html",
        title=f"{run}: {payload['id']}",
        about=_about(payload),
        agents=list(zip(payload["agents"], audits, strict=True)),
        columns=columns,
        names=_NAMES,
        num_shades=NUM_SHADES,
    )


def _about(payload: Mapping[str, Any]) -> dict[str, str]:
    rewards = [agent["reward"] for agent in payload["agents"]]
    seconds = payload["seconds"].get("total")
    facts = {
        "kind": payload["kind"],
        "step": str(payload["step"]),
        "seed": payload["seed"],
        "group, member": f"{payload['group']}, {payload['member']}",
        "status": payload["status"],
        "error": payload["error"],
        "traceback": payload["traceback"],
        "reward": ", ".join("none" if r is None else f"{r['total']:.6g}" for r in rewards),
        "seconds": None if seconds is None else f"{seconds:.3f}",
    }
    optional = ("error", "traceback", "seconds")
    return {name: fact for name, fact in facts.items() if fact or name not in optional}


def _add_gap(columns: dict[str, list[float | None]]) -> None:
    """Add the gap between the learner's log-probs and the sampler's: it shows a stale sampler."""
    if "log_probs" in columns and "sampler_log_probs" in columns:
        pairs = zip(columns["log_probs"], columns["sampler_log_probs"], strict=True)
        columns["gap"] = [None if a is None or b is None else a - b for a, b in pairs]


def _in_order(names: set[str]) -> list[str]:
    known = [name for name in _NAMES if name in names]
    others = sorted(name for name in names - set(_NAMES) if name.isidentifier())
    return [*known, *others]


class _Token(NamedTuple):
    text: str
    """With line ends made visible, that still end the line."""
    title: str
    classes: str
    branch: str
    """Where a branch begins, what it follows; else empty."""


def _tokens(audit: Mapping[str, Any], shown: Sequence[str]) -> Iterator[_Token]:
    columns = {name: audit["columns"][name] for name in shown}
    largest = {
        name: max((abs(x) for x in column if x is not None), default=0.0)
        for name, column in columns.items()
    }
    rows = zip(audit["tokens"], audit["ids"], audit["mask"], audit["turn"], strict=True)
    follows = dict(audit["branches"])
    for place, (text, number, is_sampled, turn) in enumerate(rows):
        branch = f"branch {audit['branch'][place] + 1}" if follows else ""
        after = f"after token {follows[place] - 1}" if follows.get(place) else "from the start"
        known = {name: x for name, column in columns.items() if (x := column[place]) is not None}
        classes = ["t", *(["m"] if is_sampled else []), *([] if text else ["e"])]
        classes += [c for name, x in known.items() if (c := _shade(name, x, largest[name]))]
        whose = f"sampled in turn {turn + 1}" if is_sampled else "prompt token, not trained on"
        numbers = "".join(f"\n{_NAMES.get(name, name)} {x:.5g}" for name, x in known.items())
        yield _Token(
            text.replace("\n", "⏎\n"),
            f"token {place}, id {number}: {text!r}\n{whose}{branch and f', {branch}'}{numbers}",
            " ".join(classes),
            f"{branch}, {after}" if place in follows else "",
        )


def _shade(name: str, value: float, largest: float) -> str | None:
    if not largest or not value:
        return None
    shade = max(1, min(NUM_SHADES, round(NUM_SHADES * abs(value) / largest)))
    return f"{name}-{'p' if value > 0 else 'n'}{shade}"
