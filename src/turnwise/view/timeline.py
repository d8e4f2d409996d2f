"""The timeline of one step: its phases, and what each episode spent its time on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.runs.episode_table import Phase, StoredEpisode

# The order of the stages of a turn, and their names in the page.
_PARTS = (("engine", "generate"), ("tools", "tool"), ("environment", "environment"))


def timeline(
    kind: str,
    step: int,
    episodes: Sequence[StoredEpisode],
    phases: Sequence[Phase],
    metrics: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the timeline of a step, in seconds after its start."""
    rows = [_row(f"{kind}-{step}-{place}", e) for place, e in enumerate(episodes)]
    drawn = [{"name": name, "start": start, "end": end} for name, start, end in phases]
    if kind == "train":
        for name in ("evaluate", "log"):
            took = metrics.get(f"time/{name}")
            if took and drawn:
                start = drawn[-1]["end"]
                drawn.append({"name": name, "start": start, "end": start + took})
        shares = {
            name.removeprefix("time/"): value
            for name, value in metrics.items()
            if name.startswith("time/")
            and name not in ("time/step", "time/memory_gib")
            and not name.endswith("_per_second")
        }
    else:
        shares = _shares(rows)
    ends = [row["end"] for row in rows] + [phase["end"] for phase in drawn]
    return {
        "step": step,
        "kind": kind,
        "seconds": max(ends, default=metrics.get("time/step", 0.0)),
        "phases": drawn,
        "episodes": rows,
        "shares": shares,
    }


def _row(name: str, episode: StoredEpisode) -> dict[str, Any]:
    start = episode.seconds.get("start", 0.0)
    end = start + episode.seconds.get("total", 0.0)
    if "agent" in episode.seconds:
        return {"id": name, "start": start, "end": end, "spans": _agent_spans(episode, start, end)}
    turns = [(turn, place) for agent in episode.agents for place, turn in enumerate(agent.turns)]
    if all("start" in turn.seconds for turn, _ in turns):
        turns.sort(key=lambda item: item[0].seconds["start"])
    spans: list[dict[str, Any]] = []
    begun = start
    if turns and "start" in turns[0][0].seconds:
        first = start + turns[0][0].seconds["start"]
        spans.append({"kind": "environment", "start": start, "end": first, "turn": -1})
        begun = first
    for turn, place in turns:
        if "start" in turn.seconds:
            at = start + turn.seconds["start"]
            _wait(spans, begun, at, place)
            begun = at
        for part, stage in _PARTS:
            if took := turn.seconds.get(part):
                spans.append({"kind": stage, "start": begun, "end": begun + took, "turn": place})
                begun += took
    if reward := episode.seconds.get("reward"):
        spans.append({"kind": "reward", "start": begun, "end": begun + reward, "turn": -1})
        begun += reward
    _wait(spans, begun, end, -1)
    return {"id": name, "start": start, "end": max(end, begun), "spans": spans}


def _agent_spans(episode: StoredEpisode, start: float, end: float) -> list[dict[str, Any]]:
    """Return the spans of an agent that owns its loop: its own work, and the calls of the model.

    Calls that are under way together count once.
    """
    spans: list[dict[str, Any]] = []
    begun = start
    turns = [(turn, place) for agent in episode.agents for place, turn in enumerate(agent.turns)]
    for turn, place in sorted(turns, key=lambda item: item[0].seconds.get("start", 0.0)):
        at = start + turn.seconds.get("start", 0.0)
        done = at + turn.seconds.get("engine", 0.0)
        if at > begun:
            spans.append({"kind": "agent", "start": begun, "end": at, "turn": -1})
        if done > begun:
            generated = {"kind": "generate", "start": max(at, begun), "end": done, "turn": place}
            spans.append(generated)
        begun = max(begun, done, at)
    reward = min(episode.seconds.get("reward", 0.0), max(end - begun, 0.0))
    for kind, until in (("agent", end - reward), ("reward", end)):
        if until > begun:
            spans.append({"kind": kind, "start": begun, "end": until, "turn": -1})
            begun = until
    return spans


def _wait(spans: list[dict[str, Any]], begun: float, end: float, place: int) -> None:
    """Add a span of waiting between two stages of an episode."""
    if end - begun > 1e-4:
        spans.append({"kind": "wait", "start": begun, "end": end, "turn": place})


def _shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    shares: defaultdict[str, float] = defaultdict(float)
    for span in (span for row in rows for span in row["spans"]):
        shares[span["kind"]] += span["end"] - span["start"]
    return shares
